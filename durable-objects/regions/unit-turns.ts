/**
 * Where a log or window is full, calls wait at a region's object for its next units, each for one: its turn.
 *
 * Of a window the burst of a region's bucket is held twice, so each unit of burst is a unit that nobody admits. But a bucket
 * with a burst of two is full as soon as no call comes for a moment, and what comes then is lost. With calls that wait, no
 * unit waits for a call. Example: a region has 100 units a second, and the next one comes in 4 ms. Three calls come: they are
 * decided in 4, 14 and 24 ms, and each finds its unit.
 *
 * What it costs: such a call waits for up to `MAX_TURN_MS`, and what it is bad at: where units come more slowly than that, no
 * call waits, and the burst stays larger (operations/own-buckets.ts).
 *
 * A turn only says when a call is decided. The account decides it then, so no turn admits what the account lacks.
 */
import { rateWindowMs } from "../../core/accounts/hold.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import { MAX_TURN_MS, takeTurns } from "../../core/reservations/sizing.ts";

/** A rule, and the rate of the region's bucket by it: units in a window of `rateWindowMs`. */
export interface RuleRate {
  readonly rule: Rule;
  readonly rate: number;
}

/** Whether calls of a region's holders wait for units, if the limit is full. */
export function areInTurn(rates: readonly RuleRate[], holders: number): boolean {
  const isByWindow = ({ rule }: RuleRate) => rule.algorithm.isCutByWindow === true;
  return rates.some(isByWindow) && takeTurns(holders, unitMsOf(rates));
}

/** The time between two units. */
function unitMsOf(rates: readonly RuleRate[]): number {
  return Math.max(...rates.map(({ rule, rate }) => rateWindowMs(rule) / rate));
}

export class UnitTurns {
  /** Not a count of calls: a request that waits may end at any moment, and could not be counted out. */
  #lastAtMs = -Infinity;

  /**
   * Gives a call of cost 1 its turn, behind those that wait by now. @returns how long it waits; 0: it is decided at once
   * @param decisions what the account says of it now
   */
  take(rates: readonly RuleRate[], decisions: readonly RuleDecision[], nowMs: number): number {
    const nextMs = Math.max(...decisions.map(({ retryAfterMs }) => retryAfterMs ?? Infinity));
    if (nextMs <= 0 && this.#lastAtMs <= nowMs) return 0;
    const atMs = Math.max(nowMs + nextMs, this.#lastAtMs + unitMsOf(rates));
    // Also after the clock was set back.
    if (atMs > nowMs + MAX_TURN_MS) return 0;
    this.#lastAtMs = atMs;
    return Math.ceil(atMs - nowMs);
  }
}

/**
 * Holders ask for 1 / 0.6 of the units of a full log or window: a holder is quiet for 0.6 of the time in which its next unit
 * comes, less the time to its next call. At twice a log without that, calls came at hardly more than the rate, and a tenth of
 * the units found none.
 */
const QUIET_PART = 0.6;
const MIN_QUIET_PART = 0.1;

/** The part of the usual time for which holders deny by themselves. @param demand by rule, the units that calls need in a second */
export function quietPart(rates: readonly RuleRate[], demand: readonly number[], holders: number): number {
  if (!rates.some(({ rule }) => rule.algorithm.isCutByWindow)) return 1;
  if (!areInTurn(rates, holders)) return QUIET_PART;
  const served = rates.map(({ rule, rate }, index) => {
    const units = (1_000 * rate) / rateWindowMs(rule);
    return units / Math.max(units, demand[index] ?? 0, 1);
  });
  return Math.max(MIN_QUIET_PART, QUIET_PART - Math.min(...served));
}
