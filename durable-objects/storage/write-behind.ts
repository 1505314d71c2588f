/**
 * Write-behind: the object's memory holds units of its own storage, so not every decision writes.
 *
 * Memory may be *ahead* of what is stored of a key by so many units, until an instant. Both are stored. A record says
 * for its key how many units it may be. Where there is no record, or what it counts has come back, one row says it for
 * all keys of a policy: the lead (leads.ts). It also says until when, for all.
 *
 * Before an answer leaves, two things are true, else one of the two is written first: what storage alone would say of the
 * key, with the units ahead of it held, is no more than what memory offers beside the units that isolates hold (`covers`);
 * and the lead lasts until the last of those units must have been spent.
 *
 * When the object starts, it takes what is stored as it is. It does not know how many units ahead of it were given out,
 * and isolates may still be spending them. So they become a hold. The hold lasts until the lead ends, and no longer than
 * units that were given out before may be spent after the start, and then its units count as used: at once, if the lead
 * ended before. A crash therefore never admits a unit twice, and loses at most the units ahead, once. Nothing is rewritten
 * for that. Holds and leases of callers are rows of their own and come back as they were.
 *
 * Once: what was presumed is nobody's debt. A record that is written while such a hold lasts says so apart (`presumed`),
 * with what is left of its time, so that the next object does not give it a new life. When the hold has ended, the first
 * change of the key writes a record that does not say it any more: else the next object would presume it again.
 *
 * All of that are durations, which begin anew when an object starts: no clock of another machine can cut them short.
 *
 * These functions are pure: time is an argument.
 */
import { place, spendableUntilMs, unstoredOf, UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import type { PackedState, Segment } from "../../core/algorithms/algorithm.ts";
import { withoutBlock } from "../../core/algorithms/penalty.ts";
import type { Lifetimes, Rule } from "../../core/policies/policy.ts";
import { mostLost } from "../../core/reservations/sizing.ts";
import type { StoredAccount } from "./records.ts";

/**
 * The part of the capacity by which memory may be ahead at most. Where less than that comes back soon, it is less
 * (`mostLost`). So 100,000 a second write one row for 2,000 decisions, and limits that are small and slow have less than
 * one unit: they write every decision and lose none.
 */
const MAX_SHARE = 0.02;

/**
 * A record is ahead by no more than this part of what the key is known to have used since it was loaded. So an object
 * that leaves memory again and again, after a few calls each, loses few units beside those that were used.
 */
const USED_SHARE = 1 / 8;

/**
 * A record tells apart the units that were presumed after so many crashes. Of more, those that end first end a little
 * later, with the next.
 */
const MAX_PRESUMED = 4;

/**
 * By how many units the memory of a key may be ahead of its storage. 0 for leases and for units that no time gives back:
 * each of these is written; and for shares of a pool, whose units are not stored here.
 */
export function aheadUnits(rule: Rule): number {
  const { algorithm, capacity, lease } = rule;
  if (lease !== undefined || algorithm.isLasting === true || algorithm.isShare === true) return 0;
  return Math.floor(Math.min(capacity * MAX_SHARE, mostLost(rule)));
}

/** By how many units memory may go ahead of a record that is written now, beside what holders have. */
export function aheadOfRecord(rule: Rule, used: number): number {
  return Math.min(aheadUnits(rule), Math.floor(used * USED_SHARE));
}

/**
 * The record of an account.
 *
 * @param ahead units that memory may give out before the next write, beside those that holders have now
 * @param lifetimes of reservations under today's policy
 * @param before the record that was written last
 * @param by the memory that the account is in
 */
export function record(
  rule: Rule,
  account: Account,
  ahead: number,
  nowMs: number,
  lifetimes: Lifetimes,
  before: StoredAccount | undefined,
  by?: number,
): { readonly stored: StoredAccount; readonly segment?: PackedState["segment"] } {
  const { state } = account;
  const { isShare = false } = rule.algorithm;
  const units = isShare ? 0 : ahead + unstoredOf(account);
  const ttlMs = lifeMs(account, nowMs, lifetimes, before);
  const header = {
    algorithm: storedName(rule),
    ahead: units,
    ...(units > 0 && { ttlMs, presumed: presumedIn(account, nowMs) }),
    ...(rule.lease === undefined && rule.unit !== "requests" && { unit: rule.unit }),
    ...(!isShare && by !== undefined && { by }),
  };
  if (state === undefined) return { stored: header };
  const earlier = before?.algorithm === header.algorithm ? readable(rule, before.state) : undefined;
  const { record: packed, segment } = rule.algorithm.pack(rule.config, state, nowMs, earlier);
  return { stored: { ...header, state: packed }, segment };
}

/**
 * For how long holders may have units of a record that is written now, in milliseconds: for longer costs another row. A
 * busy key has the shortest lifetimes. Longer ones are measured, and a little longer or shorter the next time.
 */
function lifeMs(
  account: Account,
  nowMs: number,
  { leastMs, mostMs }: Lifetimes,
  before: StoredAccount | undefined,
): number {
  const heldMs = spendableUntilMs(account) - nowMs;
  if (heldMs <= leastMs) return leastMs;
  return Math.max(heldMs, Math.min(2 * heldMs, mostMs), before?.ttlMs ?? 0);
}

/** The units that are presumed, and how much longer, in the order in which they end. */
function presumedIn({ holds }: Account, nowMs: number): NonNullable<StoredAccount["presumed"]> {
  const parts: [units: number, leftMs: number][] = [];
  for (const { isRestored, units, expiresAtMs } of holds)
    if (isRestored === true) parts.push([units, expiresAtMs - nowMs]);
  const merged = parts.splice(0, Math.max(0, parts.length - MAX_PRESUMED));
  const [next] = parts;
  if (next !== undefined) for (const [units] of merged) next[0] += units;
  return parts;
}

/** Whether holders spend nothing for longer than an object would presume that starts with this record. */
export function lastsLongEnough(stored: StoredAccount | undefined, account: Account, nowMs: number): boolean {
  // Without units ahead, or written by an earlier version, it is presumed for as long as a reservation may live.
  if (stored?.presumed === undefined) return true;
  return spendableUntilMs(account) - nowMs <= (stored.ttlMs ?? 0);
}

/**
 * Whether storage may stay as it is: an object that starts with this record would offer no more than the account.
 *
 * @param ahead by how many units memory may be ahead of the record
 */
export function covers(
  rule: Rule,
  stored: StoredAccount | undefined,
  account: Account,
  nowMs: number,
  ahead = stored?.ahead ?? 0,
): boolean {
  const known = readable(rule, stored?.state);
  return rule.algorithm.covers(rule.config, known, ahead, account.state, unstoredOf(account), nowMs);
}

/** What is known of the lead when a key is loaded. */
export interface CrashAllowance {
  /** This object's memory. */
  readonly memory: number;
  /** When it was first asked, and until when it may be ahead. */
  readonly startMs: number;
  readonly untilMs: number;
  /** What the object before it had promised; absent: nothing. */
  readonly found?: {
    readonly units: number;
    readonly untilMs: number;
    readonly ttlMs: number;
    /** Before that, a version that keeps nothing of what records say of times may have given out units. */
    readonly exactFromMs: number;
  };
}

const NO_LEAD: CrashAllowance = { memory: Number.NaN, startMs: 0, untilMs: -Infinity };

/** Whether a record can be read under this rule: one of another algorithm cannot. */
export function isReadable(rule: Rule, stored: StoredAccount | undefined): stored is StoredAccount {
  return stored !== undefined && stored.algorithm === storedName(rule);
}

/** From when on what a record counts has come back. Infinity: it never does, or it need not be known. */
export function recordWholeAtMs(rule: Rule, state: unknown): number {
  return aheadUnits(rule) === 0 ? Infinity : rule.algorithm.wholeAtMs(rule.config, state);
}

/**
 * The account that an object starts with when it finds a record, or none.
 *
 * @param ttlMs the longest that a holder may spend reserved units under today's policy, in milliseconds
 */
export function restore(
  rule: Rule,
  stored: StoredAccount | undefined,
  segments: readonly Segment[],
  nowMs: number,
  ttlMs: number,
  lead = NO_LEAD,
): Account {
  const { algorithm, config } = rule;
  const read = isReadable(rule, stored) ? stored : undefined;
  const known = readable(rule, read?.state);
  const state = known === undefined ? undefined : algorithm.unpack(config, known, segments);
  const untouched: Account = state === undefined ? UNTOUCHED : { state, holds: [] };
  return presumed(rule, read, state, nowMs, ttlMs, lead).reduce(
    (account, { units, expiresAtMs }, index) =>
      units === 0
        ? account
        : place(account, { id: `${RESTORED}:${index}`, units, expiresAtMs, isRestored: true }),
    untouched,
  );
}

/** How many units may have been given out beyond a record, and until when holders may spend them. */
function presumed(
  rule: Rule,
  read: StoredAccount | undefined,
  state: unknown,
  nowMs: number,
  ttlMs: number,
  { memory, startMs, untilMs, found }: CrashAllowance,
): readonly { readonly units: number; readonly expiresAtMs: number }[] {
  const { ahead = 0, by } = read ?? {};
  // This object has written it and let the key go since: it holds what isolates had then.
  const isOwn = by === memory;
  // The units may have been promised by an earlier policy, and today's promises none.
  const { algorithm, config } = rule;
  const isLed =
    !isOwn && found !== undefined && found.units > 0 && algorithm.wholeAtMs(config, state) <= found.untilMs;
  const units = isLed ? Math.max(ahead, found.units) : ahead;
  const isOld = ahead > 0 && by === undefined;
  const [fromMs, endMs] = isOwn
    ? [nowMs, untilMs]
    : found === undefined || isOld
      ? [nowMs, Infinity]
      : [startMs, found.untilMs];
  const isExact = by !== undefined && (isOwn || (found !== undefined && found.exactFromMs <= startMs));
  const before = (isExact && read?.presumed) || [];
  // Isolates of the deployment that wrote this keep units for as long as its own policy allowed.
  const longestMs =
    isExact && read?.presumed !== undefined
      ? (read.ttlMs ?? 0)
      : Math.max(ttlMs, read?.ttlMs ?? 0, found?.ttlMs ?? 0);
  const given = units - before.reduce((sum, [each]) => sum + each, 0);
  // The limit may be lower than when this was written, and no more than the whole capacity can be given out.
  let room = rule.capacity;
  return [[given, longestMs] as const, ...before]
    .toSorted(([, a], [, b]) => b - a)
    .map(([each, leftMs]) => {
      const held = Math.min(each, room);
      room -= held;
      return { units: held, expiresAtMs: Math.min(endMs, fromMs + leftMs) };
    });
}

/** The name under which the states of a rule are stored. */
export function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}

/** The state of a record as the rule reads it: a rule without penalties reads nothing of a block. */
function readable({ algorithm }: Rule, state: unknown): unknown {
  return algorithm.isPenal === true ? state : withoutBlock(state);
}

/** How the ids of those holds begin. They are in memory only, and must differ from all ids of claims and holders. */
const RESTORED = "write-ahead";
