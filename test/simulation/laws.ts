import { outstandingOf, settle, untouchedAtMs } from "../../core/accounts/account.ts";
import type { Windows } from "../../core/algorithms/windows/fixed-window.ts";
import { type Cost, costOf, forPriority, type Policy, type Rule } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Reservation } from "../../core/reservations/reservation.ts";
import { maxUnits } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { decide } from "../support/decide.ts";

export class BrokenLaw extends Error {}

/** @throws BrokenLaw unless the law is kept */
export function law(isKept: boolean, inWords: () => string): void {
  if (!isKept) throw new BrokenLaw(inWords());
}

/** The object's clock, by which its fixed windows begin. */
export interface ObjectClock {
  readonly nowMs: number;
  /** The most by which crashes can have put it back. */
  readonly backMs: number;
}

/**
 * The exact limiter, which sees every admitted unit at its instant: a bucket that may not be overdrawn, which
 * is the bound of every interval at once (for a sliding window counter, with burst = limit), or a log in
 * which no window may exceed the limit.
 *
 * Clocks here have whole milliseconds, as `Date.now()`: admissions at 50.5 ms by a stopwatch and at 450 keep
 * to a window of 400 ms, from 50 to 450, although only 399.5 have passed.
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

  /** Takes back unused units; from a log the oldest that are still in its window. */
  credit(units: number, atMs: number): void {
    const nowMs = Math.floor(atMs);
    this.#forgetLeft(nowMs);
    this.#spentParts = Math.max(0, this.#spentParts - units * (this.#rule.quota.windowMs ?? 1));
    let left = units;
    for (let first = this.#log.shift(); first !== undefined; first = this.#log.shift()) {
      if (first.units > left) return void this.#log.unshift({ ...first, units: first.units - left });
      left -= first.units;
    }
  }

  /** Takes back units of a charge of `chargedAtMs`, except those that time has refilled since. */
  uncharge(units: number, chargedAtMs: number, unchargedAtMs: number): void {
    const { quota } = this.#rule;
    const [atMs, nowMs] = [Math.floor(chargedAtMs), Math.floor(unchargedAtMs)];
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

  /** Records an admission, and returns its excess over the bound; 0 or less: the bound is kept. */
  admit(units: number, atMs: number, clock: ObjectClock = { nowMs: atMs, backMs: 0 }): number {
    const { capacity, quota, algorithm } = this.#rule;
    const nowMs = Math.floor(atMs);
    const windowMs = quota.windowMs ?? 1;
    if (algorithm.name === "fixed-window") return this.#admitInWindow(units, nowMs, windowMs, clock);
    if (algorithm.name.endsWith("-bucket") || algorithm.name === "sliding-window-counter") {
      const left = Math.max(0, this.#spentParts - quota.units * (nowMs - this.#atMs));
      this.#spentParts = left + units * windowMs;
      this.#atMs = nowMs;
      return this.#spentParts / windowMs - capacity;
    }
    this.#log.push({ atMs: nowMs, units });
    this.#forgetLeft(nowMs);
    // A window touches two cycles, whose start by the object's clock is unknown here.
    const most = algorithm.name === "permits-per-cycle" ? 2 * capacity : capacity;
    return this.#log.reduce((sum, each) => sum + each.units, 0) - most;
  }

  #forgetLeft(nowMs: number): void {
    const windowMs = this.#rule.quota.windowMs ?? 1;
    if (this.#rule.algorithm.name !== "sliding-log" && this.#rule.algorithm.name !== "permits-per-cycle")
      return;
    while ((this.#log[0]?.atMs ?? nowMs) + windowMs <= nowMs) this.#log.shift();
  }

  /** Any interval has `capacity` for each window that it meets. Each window of a steady clock has no more. */
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
 * The exact limiters of a policy, for each rule and priority. Units of a priority count with those of all
 * less important ones, within the part of the limit that it sees.
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
      oracles: forPriority(policy, policy.priorities.names[rank]).rules.map((rule) => [
        rule,
        new Oracle(rule),
      ]),
    }));
  }

  reset(): void {
    for (const { oracles } of this.#levels) for (const [, oracle] of oracles) oracle.reset();
  }

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
 * Conservation at the object: free, outstanding and used units add up to the capacity. Between the levels:
 * all units that isolates may still spend, or have spent and not reported, are outstanding.
 *
 * After a crash, units that were ahead of storage count as used. They may exceed the capacity; then nothing
 * is free.
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
      const unreported = (reservation.used[index] ?? 0) - (holder?.rules.get(rule.name)?.used ?? 0);
      // More unreported than held units belong to another hold, e.g. from before a crash.
      if (hold !== undefined && unreported > 0 && unreported + spendable <= hold.units) away += unreported;
    }
    law(
      away <= outstanding,
      () => `isolates have ${away} units of ${rule.name}, and only ${outstanding} are outstanding`,
    );
  }
}

/** An isolate whose reported values are checked. */
export interface Telling {
  readonly reservation: Reservation;
  readonly nowMs: number;
  /** Units that calls of this isolate wait for. */
  readonly open: number;
}

/** Errors of reported values: parts of the capacity, and of the time that an empty quota takes to refill. */
export interface Off {
  readonly tooMany: number;
  readonly tooFew: number;
  readonly late: number;
}

/**
 * The error of a decision's values. The truth is what the object has left plus what this isolate still has,
 * also on its way back; unused units are settled.
 *
 * Without calls of others, an isolate never reports too much, or a refill that is too late. It reports too
 * little by at most the units on their way back.
 */
export function checkFigures(
  { rules, success }: Decision,
  { ruleStates, holders }: Pick<KeyState, "ruleStates" | "holders">,
  nowMs: number,
  { reservation, nowMs: isolateMs, open }: Telling,
  isAlone: boolean,
): Off[] {
  const holder = holders.get(reservation.holder);
  return rules.flatMap((said, index) => {
    const { rule, account } = ruleStates[index] ?? {};
    if (rule === undefined || account === undefined) return [];
    const own = account.holds.find(({ id }) => id === holder?.hold);
    const unreported = (reservation.used[index] ?? 0) - (holder?.rules.get(rule.name)?.used ?? 0);
    const spendable = reservation.spendableAt(isolateMs)[index] ?? 0;
    // Of a bucket of its own the object knows how much may be in it.
    const atObject = own?.rate === undefined ? outstandingOf(account) - unreported : own.units;
    const here = isAlone ? atObject : spendable;
    const truth = decide(rule, account, nowMs, 0).remaining + here;
    const settled = own === undefined ? account : settle(rule, account, nowMs, own.id, unreported);
    const resetAfterMs = untouchedAtMs(rule, settled, nowMs) - nowMs;
    const isSlow = rule.capacity < (rule.quota.windowMs ?? 0) / 500;
    if (isAlone) {
      law(
        said.remaining <= truth + open,
        () => `remaining is said to be ${said.remaining} and is ${truth}, beside ${open} that are asked for`,
      );
      law(
        !success || !isSlow || said.remaining >= truth - open - maxUnits(rule),
        () => `remaining is said to be ${said.remaining} and is ${truth}`,
      );
      const openMs = open === 0 ? 0 : rule.algorithm.refillMs(rule.config, open);
      law(
        // What came to a bucket, and how much of it is used, nobody knows while messages are on their way.
        own?.rate !== undefined || said.resetAfterMs + openMs >= resetAfterMs,
        () => `${rule.name} is said to be whole in ${said.resetAfterMs} ms, and is in ${resetAfterMs} ms`,
      );
    }
    const more = (said.remaining - truth) / rule.capacity;
    const late = (said.resetAfterMs - resetAfterMs) / rule.algorithm.refillMs(rule.config, rule.capacity);
    return [{ tooMany: Math.max(0, more), tooFew: Math.max(0, -more), late }];
  });
}
