import type { Policy } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import type { ReserveCall } from "../protocol/messages.ts";
import type { Wanted } from "./demand.ts";

/** A question to the level beneath that has been sent, and what callers who wait for its answer count on. */
export class PendingRequest<Call = ReserveCall> {
  readonly call: Call;
  readonly sentAtMs: number;
  readonly wanted: Wanted;
  /** By rule. */
  readonly #promised: number[];

  constructor(call: Call, wanted: Wanted, sentAtMs: number) {
    this.call = call;
    this.wanted = wanted;
    this.sentAtMs = sentAtMs;
    this.#promised = wanted.units.map(() => 0);
  }

  /** Promises a caller its part of what is asked for; `false`: there is not so much in it. */
  promise({ rules }: Policy, cost: Cost): boolean {
    const after = rules.map((rule, index) => (this.#promised[index] ?? 0) + costOf(rule, cost));
    if (after.some((units, index) => units > (this.wanted.units[index] ?? 0))) return false;
    this.#promised.splice(0, after.length, ...after);
    return true;
  }
}
