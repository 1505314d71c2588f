/**
 * Write-behind: the object's memory reserves units of its own storage, so not every decision writes.
 *
 * Memory may be *ahead* of a key's stored state by a number of units, until an instant. Both are stored. The
 * key's record has its number of units. Where there is no record, or its units have refilled, one row has the
 * number for all keys of a policy: the crash allowance. That row also has the instant, for all keys.
 *
 * Before an answer leaves, two things are true, or the missing one is written first: the stored state, with
 * the units ahead of it held, offers no more than memory does beside the units that isolates hold (`covers`);
 * and the crash allowance lasts until the last of those units must have been spent.
 *
 * An object that starts takes the stored state. It does not know how many units ahead of it were admitted,
 * and isolates may still spend them. So they become a hold until the crash allowance ends, at most for the
 * longest life of units reserved before; then they count as used, at once if the allowance ended before the
 * start. A crash therefore never admits a unit twice, and loses at most the units ahead, once. Nothing is
 * rewritten for that. Holds and leases of callers are rows of their own and return unchanged.
 *
 * Presumed units are lost only once: a record written while such a hold lasts stores it apart (`presumed`)
 * with its remaining time, so the next object does not restart that time. After the hold, the key's first
 * change writes a record without it; otherwise the next object would presume it again. All of these are
 * durations from the start of an object, so another machine's clock cannot shorten them.
 *
 * These functions are pure: time is an argument.
 */
import { place, presumableOf, UNTOUCHED } from "../../core/accounts/account.ts";
import { type Account, spendableUntilMs } from "../../core/accounts/hold.ts";
import type { Segment } from "../../core/algorithms/algorithm.ts";
import { randomFraction } from "../../core/clock.ts";
import type { Rule, Policy, PolicyLookup } from "../../core/policies/policy.ts";
import { longestMs, maxLost } from "../../core/reservations/sizing.ts";
import { type StoredAccount, isReadable, readable, storedName } from "./records.ts";
import { type RowStorage, UNKNOWN_KEPT_MS } from "./sweeps.ts";

/** Of the capacity: 100,000 a second write a row per 2,000 decisions; a small, slow limit writes each. */
const MAX_SHARE = 0.02;

/** A record is ahead by at most this part of the known use, so objects that are often evicted lose little. */
const USED_SHARE = 1 / 8;

/** The units that memory may be ahead. 0 for leases and units that never refill, and for shares of a pool. */
export function aheadUnits(rule: Rule): number {
  const { algorithm, capacity, lease } = rule;
  if (lease !== undefined || algorithm.neverRefills === true || algorithm.isShare === true) return 0;
  return Math.floor(Math.min(capacity * MAX_SHARE, maxLost(rule)));
}

/** By how many units memory may be ahead of a rule's stored state. */
export function aheadOf(
  { rule, stored, storedWholeMs }: { rule: Rule; stored: StoredAccount | undefined; storedWholeMs: number },
  nowMs: number,
): number {
  if (stored === undefined) return aheadUnits(rule);
  return storedWholeMs <= nowMs ? Math.max(stored.ahead, aheadUnits(rule)) : stored.ahead;
}

/** By how many units memory may go ahead of a record written now, beside the units of holders. */
export function aheadOfRecord(rule: Rule, used: number): number {
  return Math.min(aheadUnits(rule), Math.floor(used * USED_SHARE));
}

/** Whether no holder can spend units for longer than an object that starts with this record presumes. */
export function lastsLongEnough(stored: StoredAccount | undefined, account: Account, nowMs: number): boolean {
  // Without units ahead, or from an earlier version: presumed for the longest life of a reservation.
  if (stored?.presumed === undefined) return true;
  return spendableUntilMs(account) - nowMs <= (stored.ttlMs ?? 0);
}

/** Whether an object that starts with this record, less `ahead` units, offers no more than the account. */
export function covers(
  rule: Rule,
  stored: StoredAccount | undefined,
  account: Account,
  nowMs: number,
  ahead = stored?.ahead ?? 0,
): boolean {
  const known = readable(rule, stored?.state);
  return rule.algorithm.covers(rule.config, known, ahead, account.state, presumableOf(account, nowMs), nowMs);
}

interface CrashAllowance {
  readonly memory: number;
  readonly startMs: number;
  readonly untilMs: number;
  readonly found?: {
    readonly units: number;
    readonly untilMs: number;
    readonly ttlMs: number;
    /** Before that, a version that stores no `presumed` may have reserved units for holders. */
    readonly exactFromMs: number;
  };
}

const NO_ALLOWANCE: CrashAllowance = { memory: Number.NaN, startMs: 0, untilMs: -Infinity };

/** When the units of a record have refilled. Infinity: never, or not needed. */
export function recordWholeAtMs(rule: Rule, state: unknown): number {
  return aheadUnits(rule) === 0 ? Infinity : rule.algorithm.untouchedAtMs(rule.config, state);
}

/** The account with which an object starts. `ttlMs`: the policy's longest life of reserved units. */
export function restore(
  rule: Rule,
  stored: StoredAccount | undefined,
  segments: readonly Segment[],
  nowMs: number,
  ttlMs: number,
  allowance = NO_ALLOWANCE,
): Account {
  const { algorithm, config } = rule;
  const read = isReadable(rule, stored) ? stored : undefined;
  const known = readable(rule, read?.state);
  const state = known === undefined ? undefined : algorithm.unpack(config, known, segments);
  let account: Account = state === undefined ? UNTOUCHED : { state, holds: [] };
  for (const [index, hold] of presumed(rule, read, state, nowMs, ttlMs, allowance).entries())
    if (hold.units !== 0) account = place(account, { ...hold, id: `${RESTORED}:${index}`, isRestored: true });
  return account;
}

/** The units that may have been admitted beyond a record, and until when holders may spend them. */
function presumed(
  rule: Rule,
  read: StoredAccount | undefined,
  state: unknown,
  nowMs: number,
  ttlMs: number,
  { memory, startMs, untilMs, found }: CrashAllowance,
): readonly { readonly units: number; readonly expiresAtMs: number }[] {
  const { ahead = 0, by } = read ?? {};
  // This object wrote it and has dropped the key since: the units are those that isolates held then.
  const isOwn = by === memory;
  // An earlier policy may have allowed units that the current one does not.
  const { algorithm, config } = rule;
  const isAhead =
    !isOwn &&
    found !== undefined &&
    found.units > 0 &&
    algorithm.untouchedAtMs(config, state) <= found.untilMs;
  const units = isAhead ? Math.max(ahead, found.units) : ahead;
  const isOld = ahead > 0 && by === undefined;
  const [fromMs, endMs] = isOwn
    ? [nowMs, untilMs]
    : found === undefined || isOld
      ? [nowMs, Infinity]
      : [startMs, found.untilMs];
  const isExact = by !== undefined && (isOwn || (found !== undefined && found.exactFromMs <= startMs));
  const before = (isExact && read?.presumed) || [];
  // Isolates of the deployment that wrote this keep units for as long as its policy allowed.
  const lifeMs =
    isExact && read?.presumed !== undefined
      ? (read.ttlMs ?? 0)
      : Math.max(ttlMs, read?.ttlMs ?? 0, found?.ttlMs ?? 0);
  const given = units - before.reduce((sum, [each]) => sum + each, 0);
  // The limit may be lower than at the write, and no more than the capacity can be reserved.
  let room = rule.capacity;
  return [[given, lifeMs] as const, ...before]
    .toSorted(([, a], [, b]) => b - a)
    .map(([each, leftMs]) => {
      const held = Math.min(each, room);
      room -= held;
      return { units: held, expiresAtMs: Math.min(endMs, fromMs + leftMs) };
    });
}

/** The prefix of restored holds' ids, in memory only. It must differ from ids of claims and holders. */
const RESTORED = "write-ahead";

/*
 * The crash allowances: one row for all keys of an object. It has, by policy, an instant and the units by
 * which each key's memory may be ahead until then. So any number of keys with one call each write one row.
 * Calls renew it. An object that starts reads the row of the previous one. Memory was ahead until `untilMs`
 * at most, so a key that has refilled by then needs no deduction.
 */

/** The row's part for one policy. Stored: never rename a field. */
interface StoredAllowance {
  readonly untilMs: number;
  /** Beside `exactFromMs` one less than the longest life, so earlier versions find it too short and write. */
  readonly ttlMs: number;
  /** When no holder has units of a version without `presumed`. Absent: such a version wrote this row. */
  readonly exactFromMs?: number;
  readonly rules: Readonly<Record<string, { readonly algorithm: string; readonly units: number }>>;
}

type Stored = readonly (readonly [policy: string, allowance: StoredAllowance])[];

/** Stored: never rename it. */
const ROW = "lead";
/** How long the row is valid when written, in milliseconds: it is renewed about every 30 s. */
const LEAD_MS = 45_000;
/** Renewed this much before its end, in milliseconds: two machines' clocks may differ as much. */
const MARGIN_MS = 14_000;

export class CrashAllowances {
  /** Identifies this memory of the object. A clock could not: it may have been set back. */
  readonly memory = Math.floor(randomFraction() * 2 ** 32);
  readonly #storage: RowStorage;
  #found: ReadonlyMap<string, StoredAllowance>;
  #made: Map<string, StoredAllowance>;
  #startMs: number | undefined;

  constructor(storage: RowStorage) {
    this.#storage = storage;
    this.#found = new Map(storage.kv.get<Stored>(ROW));
    this.#made = new Map(this.#found);
  }

  get isEmpty(): boolean {
    return this.#made.size === 0;
  }

  /** What a key of this policy presumes when loaded. `isLost`: this memory has lost what it knew. */
  of(policy: Policy, rule: Rule, nowMs: number, isLost: boolean): CrashAllowance {
    this.#startMs ??= nowMs;
    const made = this.#made.get(policy.name);
    const found = isLost ? made : this.#found.get(policy.name);
    return {
      memory: isLost ? Number.NaN : this.memory,
      startMs: isLost ? nowMs : this.#startMs,
      untilMs: made?.untilMs ?? -Infinity,
      ...(found && {
        found: {
          units: presumedOf(found, policy, rule),
          untilMs: found.untilMs,
          ttlMs: maxTtlOf(found),
          exactFromMs: exactFromMs(found),
        },
      }),
    };
  }

  /** Whether a key without a record may have been ahead at this start, and not have refilled since. */
  isPresumed(policy: Policy, nowMs: number): boolean {
    const found = this.#found.get(policy.name);
    return found !== undefined && nowMs < wholeAtMs(policy, found);
  }

  /** By rule: by how many units a key without a record may have been ahead before this object started. */
  presumed(policy: Policy, nowMs: number): Readonly<Record<string, number>> | undefined {
    const found = this.#found.get(policy.name);
    if (found === undefined || !this.isPresumed(policy, nowMs)) return undefined;
    return Object.fromEntries(policy.rules.map((rule) => [rule.name, presumedOf(found, policy, rule)]));
  }

  /** Lets memory be ahead until `neededMs`. If it wrote, returns when the row has no effect any more. */
  renew(policy: Policy, neededMs: number, nowMs: number): number | undefined {
    const made = this.#made.get(policy.name);
    const isValid = made !== undefined && made.untilMs >= neededMs + MARGIN_MS;
    if (isValid && isEnough(policy, made)) return undefined;
    const untilMs = Math.max(made?.untilMs ?? 0, neededMs + MARGIN_MS, nowMs + LEAD_MS);
    const ttlMs = Math.max(longestMs(policy.reservation), isValid ? maxTtlOf(made) : 0) - 1;
    const found = this.#found.get(policy.name);
    const fromMs = found === undefined ? 0 : exactFromMs(found);
    const allowance = { untilMs, ttlMs, exactFromMs: fromMs, rules: this.#units(policy, nowMs) };
    const all = new Map([...this.#made, [policy.name, allowance]]);
    this.#storage.kv.put<Stored>(ROW, [...all]);
    this.#made = all;
    return wholeAtMs(policy, allowance);
  }

  /** When keys have refilled without further calls. -Infinity: there is no allowance. */
  endsAtMs(policies: PolicyLookup): number {
    return Math.max(...[...this.#made].map(([name, allowance]) => endOf(policies, name, allowance)));
  }

  /** All keys are stored exactly: memory is not ahead. Earlier allowances may still have an effect. */
  end(policies: PolicyLookup, nowMs: number): void {
    const kept = [...this.#found].filter(([name, allowance]) => nowMs < endOf(policies, name, allowance));
    if (this.#made.size > 0) this.#storage.kv.put<Stored>(ROW, kept);
    this.#made = new Map(kept);
  }

  /** If `work` throws, this state is as before. */
  atomically<Result>(work: () => Result): Result {
    const made = this.#made;
    try {
      return work();
    } catch (error) {
      this.#made = made;
      throw error;
    }
  }

  forget(): void {
    this.#found = new Map();
    this.#made.clear();
  }

  /** The units to store: the current ones, and earlier ones while they have an effect. */
  #units(policy: Policy, nowMs: number): StoredAllowance["rules"] {
    const found = this.isPresumed(policy, nowMs) ? this.#found.get(policy.name) : undefined;
    const made = this.#made.get(policy.name);
    const rules = policy.rules.map((rule): [string, StoredAllowance["rules"][string]] => {
      const before = found === undefined ? 0 : presumedOf(found, policy, rule);
      // Keys with overrides may be further ahead than others, and all share this row.
      const isOwn = made !== undefined && made !== this.#found.get(policy.name);
      const others = isOwn ? presumedOf(made, policy, rule) : 0;
      return [rule.name, { algorithm: storedName(rule), units: Math.max(aheadUnits(rule), before, others) }];
    });
    return { ...(made !== this.#found.get(policy.name) && made?.rules), ...Object.fromEntries(rules) };
  }
}

/** When an allowance has no effect any more. An unknown policy may return, unless it was removed. */
function endOf(policies: PolicyLookup, name: string, allowance: StoredAllowance): number {
  const policy = policies.get(name);
  if (policy !== undefined) return wholeAtMs(policy, allowance);
  return policies.isRemoved?.(name) === true ? -Infinity : allowance.untilMs + UNKNOWN_KEPT_MS;
}

/** The units by which a key may have been ahead. A new rule continues from removed ones (conversions.ts). */
function presumedOf({ rules }: StoredAllowance, policy: Policy, rule: Rule): number {
  if (rule.lease !== undefined || rule.algorithm.isShare === true) return 0;
  if (Object.hasOwn(rules, rule.name)) return rules[rule.name]?.units ?? 0;
  const isGone = (name: string) => policy.rules.every((each) => each.name !== name);
  return Math.max(0, ...Object.entries(rules).map(([name, { units }]) => (isGone(name) ? units : 0)));
}

function maxTtlOf({ ttlMs, exactFromMs: fromMs }: StoredAllowance): number {
  return fromMs === undefined ? ttlMs : ttlMs + 1;
}

/** When no holder has units of a version without `presumed` any more. */
function exactFromMs(allowance: StoredAllowance): number {
  return allowance.exactFromMs ?? allowance.untilMs;
}

function isEnough(policy: Policy, allowance: StoredAllowance): boolean {
  if (maxTtlOf(allowance) < longestMs(policy.reservation)) return false;
  return policy.rules.every((rule) => {
    const own = Object.hasOwn(allowance.rules, rule.name) ? allowance.rules[rule.name] : undefined;
    return (own?.algorithm === storedName(rule) ? own.units : 0) >= aheadUnits(rule);
  });
}

function wholeAtMs(policy: Policy, allowance: StoredAllowance): number {
  const { untilMs } = allowance;
  const wholeMs = policy.rules.map((rule) => {
    const { algorithm, config } = rule;
    const units = presumedOf(allowance, policy, rule);
    if (units === 0) return untilMs;
    return algorithm.untouchedAtMs(config, algorithm.debit(config, undefined, untilMs, units));
  });
  return Math.max(untilMs, ...wholeMs);
}
