/** The units that callers really got from a pool, known completely. */
import { type Cost, costOf, type Policy } from "../../core/policies/policy.ts";
import type { PoolAnswer, PoolCall } from "../../durable-objects/pool/protocol.ts";
import { law, Oracle } from "./laws.ts";
import type { Stored } from "./pools-server.ts";

/** A lease or hold as its caller has it: its lifetime begins before the call. */
export interface Having {
  readonly id: string;
  readonly region: number;
  readonly isolate: number;
  readonly units: Cost;
  untilMs: number;
}

export class Truth {
  readonly #policy: Policy;
  readonly #oracles: readonly Oracle[];
  readonly #charged = new Set<string>();
  /** By name: the time of a charge, and its units of each rule. */
  readonly #charges = new Map<string, { readonly atMs: number; readonly cost: readonly number[] }>();
  /** The number of charges returned by name. */
  uncharged = 0;
  readonly leases = new Map<string, Having>();
  readonly holds = new Map<string, Having>();
  /** Writes were lost, unknown to the next caller. From then on nothing is promised. */
  isVoid = false;
  /** When writes were lost last, by the pool's clock. */
  lostMs: number | undefined;
  #isForgetful = false;

  constructor(policy: Policy) {
    this.#policy = policy;
    this.#oracles = policy.rules.map((rule) => new Oracle(rule));
  }

  admit(cost: Cost, nowMs: number): void {
    for (const [index, rule] of this.#policy.rules.entries()) {
      if (rule.lease !== undefined) continue;
      const over = this.#oracles[index]?.admit(costOf(rule, cost), nowMs) ?? 0;
      law(over <= 0 || this.isVoid, () => `${over} units of ${rule.name} over the bound`);
    }
  }

  checkLeases(nowMs: number): void {
    for (const [id, { untilMs }] of this.leases) if (untilMs <= nowMs) this.leases.delete(id);
    for (const rule of this.#policy.rules) {
      if (rule.lease === undefined) continue;
      let units = 0;
      for (const lease of this.leases.values()) units += costOf(rule, lease.units);
      law(
        units <= rule.capacity || this.isVoid,
        () => `${units} units of ${rule.name} are leased, of ${rule.capacity}`,
      );
    }
  }

  lost(poolMs: number): void {
    this.lostMs = poolMs;
    this.#isForgetful = true;
  }

  /**
   * Records a call that the pool has executed. Units that the pool took itself, and did not add to the
   * region's, are used at this instant.
   * @param names of the keys of the call, the last possibly of an answer
   * @returns whether there were any
   */
  carriedOut(
    call: PoolCall,
    answer: PoolAnswer,
    names: readonly string[],
    stored: Stored,
    at: Instant,
  ): boolean {
    const [name = "", chargeName = ""] = names.toReversed();
    this.#checkLoss(call, stored, at.poolMs);
    const { rules = [{ success: false }], granted } = answer;
    if (call.op === "refund" && answer.rules !== undefined)
      this.#refunded(call, name, this.#charges.get(chargeName), at.nowMs);
    const isLeasing = this.#policy.rules.some(({ lease }) => lease !== undefined);
    const isAdded = isLeasing && granted !== undefined && granted.overtakenBy === undefined;
    const isTaken = call.op === "limit" && rules.every(({ success }) => success);
    if (!isTaken || (isAdded && call.request === undefined)) return false;
    if (call.request !== undefined && this.#charged.has(name)) return true;
    this.#charged.add(name);
    this.#charges.set(name, { atMs: at.nowMs, cost: call.cost });
    for (const [index, rule] of this.#policy.rules.entries()) {
      if (rule.lease !== undefined) continue;
      const over = this.#oracles[index]?.admit(call.cost[index] ?? 0, at.nowMs) ?? 0;
      law(over <= 0 || this.isVoid, () => `the pool took ${over} units of ${rule.name} over the bound`);
    }
    return true;
  }

  /** Credits a refund: once, unless the pool has lost writes since. */
  #refunded(
    { cost, isNamed }: PoolCall,
    name: string,
    charge: { readonly atMs: number; readonly cost: readonly number[] } | undefined,
    nowMs: number,
  ): void {
    if (this.#charged.has(name) && this.lostMs === undefined) return;
    this.#charged.add(name);
    if (isNamed === true) this.uncharged += 1;
    for (const [index, oracle] of this.#oracles.entries()) {
      const units = cost[index] ?? 0;
      if (isNamed !== true) oracle.credit(units, nowMs);
      else if (charge !== undefined)
        oracle.uncharge(Math.min(units, charge.cost[index] ?? 0), charge.atMs, nowMs);
    }
  }

  /** After writes were lost, a region that knows of them informs the pool, unless another calls first. */
  #checkLoss({ holding, seen: writes, op }: PoolCall, { fields }: Stored, poolMs: number): void {
    if (this.lostMs === undefined) return;
    const seen = holding?.seen;
    const isCovered = Number(fields["lost"] ?? -1) >= this.lostMs;
    const isHolder = seen !== undefined && seen.atMs < this.lostMs && poolMs < seen.untilMs;
    // An older copy of the pool may have these writes.
    const isNewer = Number(fields["since"] ?? Infinity) > (writes?.atMs ?? 0);
    const isKnowing = isHolder || (isNewer && poolMs < (writes?.wholeMs ?? 0));
    if (!this.#isForgetful) return;
    if (isCovered) this.#isForgetful = false;
    else {
      law(
        !isKnowing || this.isVoid,
        () => "a region knew that writes were lost, and the pool did not believe it",
      );
      if (op !== "peek") this.isVoid = true;
    }
  }
}

interface Instant {
  readonly nowMs: number;
  readonly poolMs: number;
}
