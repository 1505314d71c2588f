import { decide, outstandingOf, wholeAtMs } from "../../core/accounts/account.ts";
import type { Rule } from "../../core/policies/policy.ts";
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

/**
 * The exact limiter, which sees every admitted unit at the instant of its admission. It is either a bucket that may
 * not be overdrawn, which is the bound of every interval at once, or a log in which no window may have more units
 * than the limit.
 */
export class Oracle {
  readonly #rule: Rule;
  #spentParts = 0;
  #atMs = 0;
  readonly #log: { readonly atMs: number; readonly units: number }[] = [];

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

  /** Notes that units were admitted, and returns how many are over the bound; 0 or less: the bound is kept. */
  admit(units: number, nowMs: number): number {
    const { capacity, quota, algorithm } = this.#rule;
    const windowMs = quota.windowMs ?? 1;
    if (algorithm.name === "token-bucket") {
      const left = Math.max(0, this.#spentParts - quota.units * (nowMs - this.#atMs));
      this.#spentParts = left + units * windowMs;
      this.#atMs = nowMs;
      return this.#spentParts / windowMs - capacity;
    }
    this.#log.push({ atMs: nowMs, units });
    while ((this.#log[0]?.atMs ?? nowMs) + windowMs <= nowMs) this.#log.shift();
    return this.#log.reduce((sum, each) => sum + each.units, 0) - capacity;
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
 */
export function checkFigures(
  decision: Decision,
  { policy, ruleStates }: KeyState,
  nowMs: number,
  own: readonly number[],
  hasCrashed: boolean,
): void {
  for (const [index, said] of decision.rules.entries()) {
    const ruleState = ruleStates[index];
    if (ruleState === undefined) continue;
    const { remaining } = decide(ruleState.rule, ruleState.account, nowMs, 0);
    const most = remaining + (own[index] ?? 0);
    law(said.remaining <= most, () => `remaining is said to be ${said.remaining} and is at most ${most}`);
    const resetMs = wholeAtMs(ruleState.rule, ruleState.account, nowMs) - nowMs;
    law(
      hasCrashed || said.resetAfterMs >= resetMs,
      () => `${policy.name} is said to be whole in ${said.resetAfterMs} ms, and is in ${resetMs} ms`,
    );
  }
}
