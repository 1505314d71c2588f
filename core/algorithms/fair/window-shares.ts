/**
 * Fair shares of a log or a window, whose units do not come back evenly: what one group has taken at once is gone for all
 * until the window has passed. So nobody is held to a part beforehand, and who has used most yields.
 *
 * The *use* of a group is how many units it takes in a window, averaged over the past: each admission adds half of its cost,
 * and all uses fade alike, in two windows to 1/e. A group that is alone passes whenever there are units, and so does one
 * that has used no more for its weight than another one then. The one that has used most
 *
 * - keeps a pace: all groups together have taken no more than 98 % of the rate brings, and at most one usual cost more. Who
 *   takes a bunch takes one again when it leaves the window, and nothing is left between. While all have used less than
 *   half of the limit, a third of the limit may be taken at once: with that on top of 0.7, as a flood began, the window
 *   was full, nothing came back for a while, and so again in each of the next windows;
 * - leaves a reserve, unless its use is within its part. The units of others come and go like a random walk that rises by
 *   what this group takes of what comes back: if that is a fraction p, the chance to fall by r usual costs is about
 *   exp(-r p / (1 - p)). So the reserve is 4 (1 - p) / p usual costs, but at least 3, and at most the root of how many fit
 *   into the limit: more would leave more unused than it protects.
 *
 * Example: 100 in 5 s, two groups. One takes 8 a second at random, the other one floods: it yields, has a use of 57, and
 * leaves 3 units. Of the first one's calls 99.5 % are admitted, and 97 of the 100 are used.
 *
 * Weak where few usual costs fit into the limit, and for bursts above the reserve beside a flood. With costs of many sizes,
 * the usual cost is the average of units, so large calls count most. Uses are fractions, and never say how many units there are.
 */
import {
  ACTIVE_MS,
  type Group,
  isAlone,
  isWithin,
  MAX_TRUSTED_MS,
  NOBODY,
  placed,
  reweighed,
  type Shares,
  type ShareTerms,
  type Sharing,
  SLACK,
  type Standing,
  standingOf,
} from "./standing.ts";

/** Parts of the rate and of the limit. */
const PACE = 0.98;
const CALM = 0.5;
const BURST = 1 / 3;
/** Windows in which a use fades to 1/e. */
const MEMORY = 2;
/** In usual costs. */
const MIN_RESERVE = 3;
const RESERVE = 4;
/** Then uses are written anew, so that fractions stay exact enough. */
const MIN_SCALE = 2 ** -40;
/** A wait looks at so many of the instants at which another rule holds. */
const MAX_STEPS = 32;

export const windowShares: Sharing = {
  paidTo,
  passes: (standing, cost) => !isTop(standing, cost) || isPaced(standing),
  reserve,
  yields,
  mostNow,
  passesAtMs,
  sureAfterMs,
  withTaken,
};

/** The terms of a log or a window. */
export function termsOfWindow(units: number, windowMs: number, weightOf: ShareTerms["weightOf"]): ShareTerms {
  return { rate: units / windowMs, burst: units, cut: 1, perUnit: 1 / MEMORY, weightOf };
}

function windowOf({ rate, burst }: Pick<ShareTerms, "rate" | "burst">): number {
  return burst / rate;
}

/** Units of a group are in the window as long as this. */
function activeMs(terms: ShareTerms): number {
  return Math.max(ACTIVE_MS, windowOf(terms));
}

/** `owed` is what all have taken beyond the pace; `clearAt` a use for its weight, before it faded by `scale`. */
function paidTo(terms: ShareTerms, before: Shares | undefined, nowMs: number): Shares {
  if (before === undefined) return { ...NOBODY, atMs: nowMs };
  const atMs = Math.max(before.atMs, nowMs);
  const passedMs = atMs - before.atMs;
  const { used, squares } = before.groups.length === 0 ? NOTHING : (before.faded ?? fadedOf(before.groups));
  const scale = (before.faded?.scale ?? 1) * Math.exp(-passedMs / (MEMORY * windowOf(terms)));
  const owed = Math.max(0, before.owed - PACE * terms.rate * passedMs);
  const paid: Shares = { ...before, atMs, owed, faded: { scale, used, squares } };
  const kept = atMs > before.anyIdleFromMs ? reweighed(terms.weightOf, withoutIdle(terms, paid)) : paid;
  return scale < MIN_SCALE ? begunAgain(kept, scale) : kept;
}

const NOTHING = { scale: 1, used: 0, squares: 0 };

function fadedOf(groups: readonly Group[]) {
  const used = groups.reduce((sum, { clearAt, weight }) => sum + clearAt * weight, 0);
  return { scale: 1, used, squares: used };
}

function withoutIdle(terms: ShareTerms, shares: Shares): Shares {
  const groups = shares.groups.filter(({ seenMs }) => shares.atMs - seenMs <= activeMs(terms));
  let [anyIdleFromMs, weights] = [Infinity, 0];
  for (const { seenMs, weight } of groups) {
    anyIdleFromMs = Math.min(anyIdleFromMs, seenMs + activeMs(terms));
    weights += weight;
  }
  return { ...shares, groups, weights, anyIdleFromMs, faded: less(shares, fadedOf(groups).used) };
}

/** With other uses in all, of the same usual cost. */
function less({ faded = NOTHING }: Shares, used: number) {
  const { scale, squares } = faded;
  return { scale, used, squares: faded.used > 0 ? (squares * used) / faded.used : used };
}

function begunAgain(shares: Shares, scale: number): Shares {
  const groups = shares.groups.map((group) => ({ ...group, clearAt: group.clearAt * scale }));
  const { used, squares } = shares.faded ?? NOTHING;
  return { ...shares, groups, faded: { scale: 1, used: used * scale, squares: squares * scale } };
}

/** What all have used, in a window. */
function usedBy({ faded = NOTHING }: Shares): number {
  return faded.used * faded.scale;
}

function usualCost({ faded = NOTHING }: Shares): number {
  return faded.used > 0 ? Math.max(1, faded.squares / faded.used) : 1;
}

function topOf({ groups, faded }: Shares): number {
  return (groups.at(-1)?.clearAt ?? 0) * (faded?.scale ?? 1);
}

/** Whether the group has then used more for its weight than any other one: it yields. */
function isTop(standing: Standing, cost: number): boolean {
  const { terms, shares, group, owes } = standing;
  return !isAlone(standing) && (owes + cost * terms.perUnit) / group.weight > topOf(shares) + SLACK;
}

/** What a cost adds does not fade before it is added, so it may be at the top later. */
function yields(standing: Standing, cost: number): boolean {
  const { terms, shares, group, owes } = standing;
  const fades = Math.exp(-MAX_TRUSTED_MS / (MEMORY * windowOf(terms)));
  const later = owes + (cost * terms.perUnit) / fades;
  return !isAlone(standing) && later / group.weight > topOf(shares) + SLACK;
}

function isCalm({ terms, shares }: Standing): boolean {
  return usedBy(shares) < CALM * terms.burst;
}

/** What all may have taken beyond the pace. */
function aheadOf(standing: Standing): number {
  return isCalm(standing) ? BURST * standing.terms.burst : usualCost(standing.shares);
}

function isPaced(standing: Standing): boolean {
  return standing.all <= aheadOf(standing) + SLACK;
}

/** What has to be left after a cost. */
function reserve(standing: Standing, cost: number): number {
  if (!isTop(standing, cost) || isWithin(standing, cost)) return 0;
  return Math.max(0, Math.min(mostReserved(standing), standing.terms.burst - standing.heldByAll - cost));
}

function mostReserved({ terms, shares, owes }: Standing): number {
  const usual = usualCost(shares);
  const others = Math.max(0, usedBy(shares) - owes) / Math.max(SLACK, owes);
  return Math.ceil(Math.min(Math.sqrt(terms.burst * usual), usual * Math.max(MIN_RESERVE, RESERVE * others)));
}

function mostNow(standing: Standing, free: number): number {
  if (isAlone(standing)) return free;
  const { terms, shares, group, owes, part, heldByAll } = standing;
  const upTo = (most: number) => Math.floor((most - owes) / terms.perUnit + SLACK);
  const unasked = upTo((topOf(shares) + SLACK) * group.weight);
  const reserved = free >= terms.burst - heldByAll ? free : free - mostReserved(standing);
  const asTop = isPaced(standing) ? Math.max(upTo(part), reserved) : 0;
  return Math.max(0, Math.min(free, Math.max(unasked, asTop)));
}

/** When a cost passes if nobody else asks. @param unitsAtMs when there are units for it, and so many more */
function passesAtMs(standing: Standing, cost: number, unitsAtMs: (reserved: number) => number): number {
  const { terms, shares, group, held, heldByAll } = standing;
  let now = standing;
  for (let step = 0; ; step += 1) {
    const { atMs } = now.shares;
    const lateBy = isTop(now, cost) ? Math.max(0, now.all - aheadOf(now) - SLACK) : 0;
    const pacedMs = atMs + Math.ceil(lateBy / (PACE * terms.rate));
    const passesMs = Math.max(pacedMs, unitsAtMs(reserve(now, cost)));
    const fadedMs = nextFadedMs(now, cost);
    // A walk through a thousand groups takes long.
    const changeMs = passesMs <= now.shares.anyIdleFromMs ? fadedMs : Math.min(fadedMs, nextIdleMs(now));
    // At that instant the other rule holds already.
    if (passesMs < changeMs || step === MAX_STEPS) return Math.max(passesMs, shares.atMs);
    const then = paidTo(terms, now.shares, changeMs);
    now = standingOf(terms, then, group.name, held, heldByAll, group.namedBy);
  }
}

/** The first instant from the next one on at which another rule holds for a cost, since uses have faded. */
function nextFadedMs(standing: Standing, cost: number): number {
  const { terms, shares, group, owes, part, held } = standing;
  const units = cost * terms.perUnit;
  const used = owes - held;
  // At equality the rule is still the present one. Rounding counts as in `isTop` and `isWithin`.
  const fadesMs = (from: number, to: number) =>
    to > 0 && from >= to
      ? shares.atMs + Math.max(1, Math.ceil(MEMORY * windowOf(terms) * Math.log(from / to)))
      : Infinity;
  return Math.min(
    fadesMs(usedBy(shares), CALM * terms.burst),
    fadesMs(used, part - held - units + SLACK),
    // What it adds does not fade before it is added.
    fadesMs(topOf(shares) * group.weight - used, units + held - SLACK * group.weight),
  );
}

/** When the first group is forgotten: its own use counts no more then either. */
function nextIdleMs({ terms, shares }: Standing): number {
  let firstMs = Infinity;
  for (const { seenMs } of shares.groups)
    firstMs = Math.min(firstMs, Math.max(shares.atMs, seenMs + activeMs(terms)) + 1);
  return firstMs;
}

/** Until its use is within its part. */
function sureAfterMs({ terms, owes, part, held }: Standing, cost: number): number | null {
  if (cost > part + SLACK) return null;
  const most = part - held - cost * terms.perUnit;
  const used = owes - held;
  if (used <= most) return 0;
  return most > 0 ? Math.ceil(MEMORY * windowOf(terms) * Math.log(used / most)) : null;
}

function withTaken(standing: Standing, units: number): Shares {
  const { terms, shares, group, isKnown } = standing;
  const { atMs, owed, weights, anyIdleFromMs } = shares;
  const { scale, used, squares } = shares.faded ?? NOTHING;
  const added = (units * terms.perUnit) / scale;
  const use = Math.max(0, group.clearAt * group.weight + added);
  const more = use - group.clearAt * group.weight;
  const taken = { ...group, clearAt: use / group.weight, seenMs: units > 0 ? atMs : group.seenMs };
  const after: Shares = {
    ...shares,
    groups: placed(standing, taken),
    anyIdleFromMs: Math.min(anyIdleFromMs, taken.seenMs + activeMs(terms)),
    weights: weights + (isKnown ? 0 : group.weight),
    // A group alone has more than the pace: without a bound it could not go on beside another one.
    owed: Math.max(0, Math.min(terms.burst, owed + units)),
    faded:
      units > 0 ? { scale, used: used + more, squares: squares + more * units } : less(shares, used + more),
  };
  return isKnown ? after : reweighed(terms.weightOf, after);
}
