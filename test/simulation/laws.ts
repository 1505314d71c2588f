import { decide, outstandingOf, wholeAtMs } from "../../core/accounts/account.ts";
import type { RuleAccount } from "../../core/accounts/joint-decision.ts";
import type { Windows } from "../../core/algorithms/window-ends.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";
import { seenBy } from "../../core/policies/seen-by.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Reservation } from "../../core/reservations/reservation.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";

/** A law that was broken, in words. */
export class BrokenLaw extends Error {}

/**
 * Checks a law.
 *
 * @throws BrokenLaw unless it is kept
 */
export function law(isKept: boolean, inWords: () => string): void {
  if (!isKept) throw new BrokenLaw(inWords());
}

/** How the object's clock is: a fixed window is one by that clock. */
export interface ObjectClock {
  readonly nowMs: number;
  /** The most by which crashes can have put it back. */
  readonly backMs: number;
}

/**
 * The exact limiter, which sees every admitted unit at the instant of its admission. It is either a bucket that may
 * not be overdrawn, which is the bound of every interval at once, or a log in which no window may have more units
 * than the limit. Of a sliding window counter it is a bucket with burst = limit.
 */
export class Oracle {
  readonly #rule: Rule;
  #spentParts = 0;
  #atMs = 0;
  readonly #log: { readonly atMs: number; readonly units: number; readonly window?: number }[] = [];

  constructor(rule: Rule) {
    this.#rule = rule;
  }

  reset(): void {
    this.#spentParts = 0;
    this.#log.length = 0;
  }

  /** Takes back units that were admitted and not used; from a log the oldest. */
  credit(units: number): void {
    this.#spentParts = Math.max(0, this.#spentParts - units * (this.#rule.quota.windowMs ?? 1));
    let left = units;
    for (let first = this.#log.shift(); first !== undefined; first = this.#log.shift()) {
      if (first.units > left) return void this.#log.unshift({ ...first, units: first.units - left });
      left -= first.units;
    }
  }

  /** Takes back units of a charge that was made at `atMs`: those that time has not given back since. */
  uncharge(units: number, atMs: number, nowMs: number): void {
    const { quota } = this.#rule;
    const parts = (since: number, spent: number) => Math.max(0, spent - quota.units * (nowMs - since));
    const given = parts(atMs, units * (quota.windowMs ?? 1));
    this.#spentParts = Math.max(0, parts(this.#atMs, this.#spentParts) - given);
    this.#atMs = nowMs;
    let left = units;
    for (const [index, entry] of this.#log.entries()) {
      const most = entry.atMs === atMs ? Math.min(left, entry.units) : 0;
      this.#log[index] = { ...entry, units: entry.units - most };
      left -= most;
    }
  }

  /** Notes that units were admitted, and returns how many are over the bound; 0 or less: the bound is kept. */
  admit(units: number, nowMs: number, clock: ObjectClock = { nowMs, backMs: 0 }): number {
    const { capacity, quota, algorithm } = this.#rule;
    const windowMs = quota.windowMs ?? 1;
    if (algorithm.name === "fixed-window") return this.#admitInWindow(units, nowMs, windowMs, clock);
    if (algorithm.name.endsWith("-bucket") || algorithm.name === "sliding-window-counter") {
      const left = Math.max(0, this.#spentParts - quota.units * (nowMs - this.#atMs));
      this.#spentParts = left + units * windowMs;
      this.#atMs = nowMs;
      return this.#spentParts / windowMs - capacity;
    }
    this.#log.push({ atMs: nowMs, units });
    while ((this.#log[0]?.atMs ?? nowMs) + windowMs <= nowMs) this.#log.shift();
    // A window touches two cycles. Those of the object begin when its clock says so, which nobody here knows.
    const most = algorithm.name === "permits-per-cycle" ? 2 * capacity : capacity;
    return this.#log.reduce((sum, each) => sum + each.units, 0) - most;
  }

  /** Any interval has `capacity` for each window that it meets. While the clock ran on, each window has no more. */
  #admitInWindow(units: number, nowMs: number, windowMs: number, clock: ObjectClock): number {
    const { capacity, config } = this.#rule;
    const { align, jitterMs } = config as Windows;
    const window = align === "epoch" && jitterMs === 0 ? Math.floor(clock.nowMs / windowMs) : undefined;
    this.#log.push({ atMs: nowMs, units, ...(window !== undefined && { window }) });
    let [over, sum, inWindow] = [-Infinity, 0, 0];
    for (const each of this.#log.toReversed()) {
      sum += each.units;
      const lengthMs = nowMs - each.atMs + jitterMs + clock.backMs;
      over = Math.max(over, sum - capacity * (Math.floor(lengthMs / windowMs) + 2));
      if (window !== undefined && each.window === window && clock.backMs === 0) inWindow += each.units;
    }
    return Math.max(over, inWindow - capacity);
  }
}

/**
 * The exact limiters of a policy: for each rule, and for each priority. Units of a priority count with those of all
 * less important ones, and together they keep to what that priority sees of the limit.
 */
export class Oracles {
  readonly #policy: Policy;
  readonly #levels: readonly {
    readonly rank: number;
    readonly oracles: readonly (readonly [Rule, Oracle])[];
  }[];

  constructor(policy: Policy) {
    this.#policy = policy;
    const { seen } = policy.priorities;
    const ranks = seen.size === 0 ? [0] : [...seen.keys()].map((name) => this.#rankOf(name));
    this.#levels = ranks.map((rank) => ({
      rank,
      oracles: seenBy(policy, policy.priorities.names[rank]).rules.map((rule) => [rule, new Oracle(rule)]),
    }));
  }

  reset(): void {
    for (const { oracles } of this.#levels) for (const [, oracle] of oracles) oracle.reset();
  }

  /** Notes that a call was admitted. */
  admit(cost: Cost, nowMs: number, priority: string | undefined, clock: ObjectClock): void {
    const own = this.#rankOf(priority ?? this.#policy.priorities.usual);
    for (const { rank, oracles } of this.#levels)
      for (const [rule, oracle] of rank <= own ? oracles : []) {
        const over = oracle.admit(costOf(rule, cost), nowMs, clock);
        const whose = rank === 0 ? "" : ` of ${this.#policy.priorities.names[rank]} and less`;
        law(over <= 0, () => `${over} units of ${rule.name} over the bound${whose}`);
      }
  }

  #rankOf(name: string): number {
    return this.#policy.priorities.names.indexOf(name);
  }
}

/**
 * Conservation at the object: the units that are free, outstanding and used add up to the capacity.
 *
 * Conservation between the levels: all units that isolates may still spend, and all that they have spent and not
 * reported, are outstanding.
 *
 * An object that has crashed counts units as used that were only ahead of storage. They may be more than there are,
 * and then nothing is free.
 */
export function checkConservation(
  entry: KeyState,
  nowMs: number,
  isolates: readonly { readonly reservation: Reservation | undefined; readonly nowMs: number }[],
  hasCrashed: boolean,
): void {
  for (const [index, { rule, account }] of entry.ruleStates.entries()) {
    const outstanding = outstandingOf(account);
    const level = decide(rule, { state: account.state, holds: [] }, nowMs, 0).remaining;
    const free = decide(rule, account, nowMs, 0).remaining;
    const used = rule.capacity - level;
    law(
      hasCrashed ? free <= level : free + outstanding + used === rule.capacity,
      () =>
        `free ${free} + outstanding ${outstanding} + used ${used} is not the capacity of ${rule.capacity}`,
    );
    let away = 0;
    for (const { reservation, nowMs: isolateMs } of isolates) {
      if (reservation === undefined) continue;
      const spendable = reservation.spendableAt(isolateMs)[index] ?? 0;
      away += spendable;
      const holder = entry.holders.get(reservation.holder);
      const hold = account.holds.find(({ id }) => id === holder?.hold);
      const unreported = (reservation.used[index] ?? 0) - (holder?.used[index] ?? 0);
      // When more units are unreported than are held, they belong to another hold, from before a crash, say. That
      // hold has been settled, or is among the outstanding.
      if (hold !== undefined && unreported > 0 && unreported + spendable <= hold.units) away += unreported;
    }
    law(
      away <= outstanding,
      () => `isolates have ${away} units of ${rule.name}, and only ${outstanding} are outstanding`,
    );
  }
}

/**
 * An isolate's figures promise no more than the object's would. An object that has crashed may have counted more
 * units as used than there are. Then it takes longer to be whole than any isolate can know.
 *
 * @param jumpedMs by how much the isolate's clock was put on: the end of a window that it was told is nearer by that
 */
export function checkFigures(
  decision: Decision,
  ruleStates: readonly RuleAccount[],
  nowMs: number,
  own: readonly number[],
  hasCrashed: boolean,
  jumpedMs = 0,
): void {
  for (const [index, said] of decision.rules.entries()) {
    const ruleState = ruleStates[index];
    if (ruleState === undefined) continue;
    const { remaining } = decide(ruleState.rule, ruleState.account, nowMs, 0);
    const most = remaining + (own[index] ?? 0);
    law(said.remaining <= most, () => `remaining is said to be ${said.remaining} and is at most ${most}`);
    const resetMs = wholeAtMs(ruleState.rule, ruleState.account, nowMs) - nowMs;
    const nearerMs = ruleState.rule.algorithm.endsLateMs === undefined ? 0 : jumpedMs;
    law(
      hasCrashed || said.resetAfterMs + nearerMs >= resetMs,
      () => `${ruleState.rule.name} is said to be whole in ${said.resetAfterMs} ms, and is in ${resetMs} ms`,
    );
  }
}
