/**
 * Notices: a key's use has reached a fraction of its limit (`notify` of a policy), and somebody is told once.
 *
 * A threshold that was reached is kept with the key, so it is told again only after use has been a tenth of the limit
 * below it, or in the next of fixed windows. What is to be told is kept too, with its id, until it has arrived.
 *
 * Use is what was debited, or is leased. Units that isolates and callers hold are not used until they report them, so
 * nobody is told of use that there was not. They do count for the threshold 1 when a call is denied, and before a
 * threshold may be reached again: otherwise a limit that many isolates use up would be told with each of their reports.
 *
 * Pure: values in, values out, and time is an argument.
 */
import type { Rule } from "../policies/policy.ts";
import { decideRule, outstandingOf } from "./account.ts";
import { type Account, configBeside } from "./hold.ts";

/** Stored: add fields, never rename one. */
export interface Notice {
  /** The same each time it is sent. */
  readonly id: string;
  /** That the key had. Absent: none. */
  readonly plan?: string;
  readonly threshold: number;
  readonly atMs: number;
  readonly limit: number;
  readonly used: number;
  readonly resetAfterMs: number;
}

/** Stored: add fields, never rename one. */
interface Reached {
  readonly threshold: number;
  /** Of fixed windows: the end of this one. */
  readonly untilMs?: number;
}

/** Of one rule of a key. */
export interface Noticed {
  readonly reached: readonly Reached[];
  readonly unsent: readonly Notice[];
}

export const NOTHING_NOTICED: Noticed = { reached: [], unsent: [] };

/** How long a notice is sent again. */
export const SENT_FOR_MS = 86_400_000;
/** A key is kept longer by so much, until an alarm has given its notices up. */
const GIVEN_UP_WITHIN_MS = 21_600_000;
/** Of one rule of a key. Further ones replace the oldest: a receiver that is away hears of the last. */
export const MAX_UNSENT = 16;

interface Use {
  readonly limit: number;
  readonly used: number;
}

/** @param held units that count as used beside those debited: of a rule that leases, those that are leased */
export function useOf(rule: Rule, { state, holds }: Account, nowMs: number, held: number): Use {
  const { algorithm, config, capacity } = rule;
  const limit = algorithm.limitNow?.(config, state, nowMs) ?? capacity;
  const { remaining, quotaRemaining = remaining } = algorithm.decide(
    configBeside(rule, holds),
    state,
    nowMs,
    0,
    held,
  );
  return { limit, used: Math.max(0, limit - quotaRemaining) };
}

/** Floating-point error in a product must not add a unit. */
const ERROR = 1e-6;
const REARMED_BELOW = 0.1;

function unitsAt(threshold: number, limit: number): number {
  return Math.max(1, Math.ceil(threshold * limit - ERROR));
}

/** With no more used than this a threshold may be reached again. */
function unitsBelow(threshold: number, limit: number): number {
  return Math.max(0, (threshold - REARMED_BELOW) * limit + ERROR);
}

/** What holders have used of buckets of their own. */
function lackedBy({ holds }: Account): number {
  let lacked = 0;
  for (const { lacks = 0 } of holds) lacked += lacks;
  return lacked;
}

/** The thresholds that stay reached after use was as low as this. */
export function afterLow(noticed: Noticed, { limit, used }: Use, nowMs: number): Noticed {
  const reached = noticed.reached.filter(({ threshold, untilMs }) =>
    untilMs === undefined ? used > unitsBelow(threshold, limit) : nowMs < untilMs,
  );
  return reached.length === noticed.reached.length ? noticed : { ...noticed, reached };
}

export interface Change {
  readonly before: Account;
  readonly after: Account;
  /** Units in leases, before and after. */
  readonly leased: readonly [before: number, after: number];
  /** A call was denied since units were missing. */
  readonly isDenied?: boolean | undefined;
}

/** What is noticed of a rule after its account has changed. The same value: nothing. */
export function noticedAfter(
  rule: Rule,
  noticed: Noticed,
  thresholds: readonly number[],
  { before, after, leased, isDenied = false }: Change,
  nowMs: number,
  make: () => Pick<Notice, "id" | "plan">,
): Noticed {
  const isLeasing = rule.lease !== undefined;
  const low = () => useOf(rule, before, nowMs, isLeasing ? leased[0] : outstandingOf(before));
  const base = noticed.reached.length === 0 ? noticed : afterLow(noticed, low(), nowMs);
  const use = useOf(rule, after, nowMs, isLeasing ? leased[1] : lackedBy(after));
  const { limit } = use;
  if (limit < 1) return base;
  const all = isDenied && !isLeasing ? useOf(rule, after, nowMs, outstandingOf(after)) : use;
  // A large cost may be denied long before.
  const isAllUsed = isDenied && all.used > unitsBelow(1, limit);
  const useAt = (threshold: number) => (threshold === 1 ? all : use);
  const risen = thresholds.filter(
    (threshold) =>
      (useAt(threshold).used >= unitsAt(threshold, limit) || (threshold === 1 && isAllUsed)) &&
      !base.reached.some((each) => each.threshold === threshold),
  );
  if (risen.length === 0) return base;
  const { resetAfterMs } = decideRule(rule, after, nowMs, 0);
  const isWindow = rule.algorithm.hasWindows === true;
  const known = base.reached.filter(({ threshold }) => thresholds.includes(threshold));
  const marks = risen.map((threshold) => ({
    threshold,
    ...(isWindow && { untilMs: nowMs + resetAfterMs }),
  }));
  const notices = risen.map((threshold) => ({
    ...make(),
    threshold,
    atMs: nowMs,
    ...useAt(threshold),
    resetAfterMs,
  }));
  return { reached: [...known, ...marks], unsent: [...base.unsent, ...notices] };
}

/**
 * When a threshold is reached if no unit that is held comes back: the end of the hold by which its units count as used.
 * `Infinity`: by none. Units that refill meanwhile are not considered, so it may be too early.
 */
export function mayReachAtMs(
  rule: Rule,
  { reached }: Noticed,
  thresholds: readonly number[],
  account: Account,
  nowMs: number,
): number {
  const { holds } = account;
  if (rule.lease !== undefined || holds.length === 0) return Infinity;
  const { limit, used } = useOf(rule, account, nowMs, lackedBy(account));
  const isReached = (threshold: number) => reached.some((each) => each.threshold === threshold);
  const next = Math.min(...thresholds.filter((threshold) => !isReached(threshold)));
  let missing = unitsAt(next, limit) - used;
  for (const { units, lacks = 0, expiresAtMs } of holds) {
    missing -= units - lacks;
    if (missing <= 0) return expiresAtMs;
  }
  return Infinity;
}

/** Until when a key has to be kept for what is noticed of it; -Infinity: not for that. */
export function noticedUntilMs({ reached, unsent }: Noticed): number {
  const ends = reached.map(({ untilMs = -Infinity }) => untilMs);
  return Math.max(-Infinity, ...ends, ...unsent.map(({ atMs }) => atMs + SENT_FOR_MS + GIVEN_UP_WITHIN_MS));
}
