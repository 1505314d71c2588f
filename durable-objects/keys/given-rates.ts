/**
 * What a bucket of a log or window may have used of a rate that its holder gives up. All that it may admit in a window is held
 * for it, but of a region's bucket it is known since when it had that rate. Example: it got 500 units in 2 s, and 0.4 s later
 * keeps 200 of them, since other regions have been heard by then: at most 98 of the 300 were used, and 202 are free.
 */
import { settle } from "../../core/accounts/account.ts";
import { type Account, type Hold, rateWindowMs, type RuleAccount } from "../../core/accounts/hold.ts";
import { RATE_WINDOWS } from "../../core/algorithms/token-bucket.ts";
import { MAX_MARGIN_MS } from "../../core/reservations/sizing.ts";

export interface GivenRate {
  /** In a window of `rateWindowMs`. */
  readonly units: number;
  readonly sinceMs: number;
  /** The units that left the log for it then, though they still counted. */
  readonly moved: number;
}

/** After the object's clock was put back: a holder may have used all that it has. */
export const UNKNOWN_RATES: readonly GivenRate[] = [
  { units: Number.MAX_SAFE_INTEGER, sinceMs: -Infinity, moved: Number.MAX_SAFE_INTEGER },
];

/** The most that are remembered: of more, the two oldest count as the larger of them. */
const MAX_RATES = 16;

/**
 * Ends a hold with the units used. What a bucket of a log gives up of its rate was used at that pace at most, and at that pace
 * it comes back. With it comes what left the log for the bucket: also a bucket that is returned unused owes that.
 */
export function settleRate(
  { rule, account, rates }: RuleAccount & { readonly rates: readonly GivenRate[] | undefined },
  { hold, used, rate }: { readonly hold: Hold; readonly used: number; readonly rate: number },
  nowMs: number,
): Account {
  const { evenPace } = rule.algorithm;
  const inWindow = hold.rate?.isHeld === true ? Math.floor(hold.rate.units / RATE_WINDOWS) : 0;
  const given = Math.max(0, inWindow - Math.floor(rate / RATE_WINDOWS));
  const even = Math.min(used, given);
  const known = rates && owedFor(rates, { used: even, rate }, rateWindowMs(rule), nowMs);
  const back = Math.min(given, known ?? even);
  const isFlat = evenPace === undefined || back === 0;
  const { state, holds } = settle(rule, account, nowMs, hold.id, used - even + (isFlat ? back : 0));
  return {
    state: isFlat ? state : evenPace.debit(rule.config, state, nowMs, { units: back, perWindow: given }),
    holds,
  };
}

/** What came in the last window faster than at `rate`, as far as it was used, and what left the log for it. */
function owedFor(
  rates: readonly GivenRate[],
  { used, rate }: { readonly used: number; readonly rate: number },
  perMs: number,
  nowMs: number,
): number {
  const fromMs = nowMs - perMs / RATE_WINDOWS;
  let [parts, owed] = [0, 0];
  for (const [index, { units, sinceMs, moved }] of rates.entries()) {
    // The object's clock may have been set back a little.
    const untilMs = rates[index + 1]?.sinceMs ?? nowMs + MAX_MARGIN_MS;
    parts += Math.max(0, units - rate) * Math.max(0, untilMs - Math.max(fromMs, sinceMs));
    if (untilMs > fromMs) owed += moved;
  }
  return Math.min(used, Math.ceil(parts / perMs)) + owed;
}

/** The rates with the present one. @param left what its holder has not given up of the ones before */
export function withRate(
  rates: readonly GivenRate[],
  { left, now: units, moved }: { readonly left: number; readonly now: number; readonly moved: number },
  nowMs: number,
): readonly GivenRate[] {
  const before = rates.map((rate) => ({ ...rate, units: Math.min(rate.units, left) }));
  const [first, second, ...others] = before;
  const last = before.at(-1);
  if (last?.units === units && last.moved === 0 && moved === 0) return before;
  const present = { units, sinceMs: nowMs, moved };
  if (first === undefined || second === undefined || before.length < MAX_RATES) return [...before, present];
  const oldest = {
    units: Math.max(first.units, second.units),
    sinceMs: first.sinceMs,
    moved: first.moved + second.moved,
  };
  return [oldest, ...others, present];
}
