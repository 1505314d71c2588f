/**
 * What a bucket of a log or window may have used of a rate that its holder gives up. All that it may admit in a window is held
 * for it, but of a region's bucket it is known since when it had that rate. Example: it got 500 units in 2 s, and 0.4 s later
 * keeps 200 of them, since other regions have been heard by then: at most 98 of the 300 were used, and 202 are free.
 */
import { settle } from "../../core/accounts/account.ts";
import { type Account, type Hold, rateWindowMs, type RuleAccount } from "../../core/accounts/hold.ts";
import { RATE_WINDOWS } from "../../core/algorithms/token-bucket.ts";
import { MAX_MARGIN_MS } from "../../core/reservations/sizing.ts";

/** Units in a window of `rateWindowMs`, and since when they come. */
export interface GivenRate {
  readonly units: number;
  readonly sinceMs: number;
}

/** After the object's clock was put back: a holder may have used all that it has. */
export const UNKNOWN_RATES: readonly GivenRate[] = [{ units: Number.MAX_SAFE_INTEGER, sinceMs: -Infinity }];

/** The most that are remembered: of more, the two oldest count as the larger of them. */
const MAX_RATES = 16;

/** Ends a hold with the units used. What a bucket of a log gives up of its rate was used at that pace at most. */
export function settleRate(
  { rule, account, rates }: RuleAccount & { readonly rates: readonly GivenRate[] | undefined },
  { hold, used, rate }: { readonly hold: Hold; readonly used: number; readonly rate: number },
  nowMs: number,
): Account {
  const { evenPace } = rule.algorithm;
  const inWindow = hold.rate?.isHeld === true ? Math.floor(hold.rate.units / RATE_WINDOWS) : 0;
  const even = Math.max(0, Math.min(used, inWindow - Math.floor(rate / RATE_WINDOWS)));
  if (rates !== undefined) {
    // Not at an even pace: units of regions would come back one by one, to those that ask often.
    const unused = Math.max(0, even - cameBeyond(rates, rate, rateWindowMs(rule), nowMs));
    return settle(rule, account, nowMs, hold.id, used - unused);
  }
  if (evenPace === undefined || even === 0) return settle(rule, account, nowMs, hold.id, used);
  const { state, holds } = settle(rule, account, nowMs, hold.id, used - even);
  return { state: evenPace.debit(rule.config, state, nowMs, even), holds };
}

/** The most units that came faster than at `rate` in the last window. The object's clock may have been set back a little. */
function cameBeyond(rates: readonly GivenRate[], rate: number, perMs: number, nowMs: number): number {
  const fromMs = nowMs - perMs / RATE_WINDOWS;
  const parts = rates.reduce((sum, { units, sinceMs }, index) => {
    const untilMs = rates[index + 1]?.sinceMs ?? nowMs + MAX_MARGIN_MS;
    return sum + Math.max(0, units - rate) * Math.max(0, untilMs - Math.max(fromMs, sinceMs));
  }, 0);
  return Math.ceil(parts / perMs);
}

/** The rates with the present one. @param left what its holder has not given up of the ones before */
export function withRate(
  rates: readonly GivenRate[],
  { left, now: units }: { readonly left: number; readonly now: number },
  nowMs: number,
): readonly GivenRate[] {
  const before = rates.map((rate) => ({ ...rate, units: Math.min(rate.units, left) }));
  const [first, second, ...others] = before;
  if (before.at(-1)?.units === units) return before;
  if (first === undefined || second === undefined || before.length < MAX_RATES)
    return [...before, { units, sinceMs: nowMs }];
  const oldest = { units: Math.max(first.units, second.units), sinceMs: first.sinceMs };
  return [oldest, ...others, { units, sinceMs: nowMs }];
}
