import type { HeldPolicy } from "../policies/held-policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import type { ReserveCall } from "../protocol/messages.ts";
import type { Wanted } from "./demand.ts";

/** A message to the level beneath that has not been answered, and the units in it that waiting calls count on. */
export class PendingRequest<Call = ReserveCall> {
  readonly call: Call;
  readonly sentAtMs: number;
  readonly wanted: Wanted;
  /** By rule: units that are promised to calls. */
  readonly #promised: number[];

  constructor(call: Call, wanted: Wanted, sentAtMs: number) {
    this.call = call;
    this.wanted = wanted;
    this.sentAtMs = sentAtMs;
    this.#promised = wanted.units.map(() => 0);
  }

  /** Promises a call its units of those that the message wants; `false`: too few are left for this call. */
  promise({ rules }: HeldPolicy, cost: Cost): boolean {
    const after = rules.map((rule, index) => (this.#promised[index] ?? 0) + costOf(rule, cost));
    if (after.some((units, index) => units > (this.wanted.units[index] ?? 0))) return false;
    this.#promised.splice(0, after.length, ...after);
    return true;
  }
}
