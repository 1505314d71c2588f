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
import { place, spendableUntilMs, unstoredOf, UNTOUCHED } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import type { Segment } from "../../core/algorithms/algorithm.ts";
import { randomFraction } from "../../core/clock.ts";
import type { Rule, Policy, PolicyLookup } from "../../core/policies/policy.ts";
import { mostLost } from "../../core/reservations/sizing.ts";
import { type StoredAccount, isReadable, readable, storedName } from "./records.ts";
import { type RowStorage, UNKNOWN_KEPT_MS } from "./sweeps.ts";

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
 * By how many units the memory of a key may be ahead of its storage. 0 for leases and for units that no time gives back:
 * each of these is written; and for shares of a pool, whose units are not stored here.
 */
export function aheadUnits(rule: Rule): number {
  const { algorithm, capacity, lease } = rule;
  if (lease !== undefined || algorithm.neverRefills === true || algorithm.isShare === true) return 0;
  return Math.floor(Math.min(capacity * MAX_SHARE, mostLost(rule)));
}

/** By how many units memory may go ahead of a record that is written now, beside what holders have. */
export function aheadOfRecord(rule: Rule, used: number): number {
  return Math.min(aheadUnits(rule), Math.floor(used * USED_SHARE));
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

/** From when on what a record counts has come back. Infinity: it never does, or it need not be known. */
export function recordWholeAtMs(rule: Rule, state: unknown): number {
  return aheadUnits(rule) === 0 ? Infinity : rule.algorithm.untouchedAtMs(rule.config, state);
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
    !isOwn &&
    found !== undefined &&
    found.units > 0 &&
    algorithm.untouchedAtMs(config, state) <= found.untilMs;
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

/** How the ids of those holds begin. They are in memory only, and must differ from all ids of claims and holders. */
const RESTORED = "write-ahead";

/*
 * The lead: one row for all keys of an object. It says of a policy that until an instant the memory of any of its keys may
 * be that many units ahead of what is stored of the key. So many keys that are called once write one row for all of them.
 *
 * The row is renewed while calls come. An object that starts reads what the one before had promised. Memory was ahead
 * until `untilMs` at most, so a key that has refilled since then needs no deduction.
 */

/** What the row says of one policy. Stored: never rename a field. */
interface StoredLead {
  readonly untilMs: number;
  /**
   * The longest that a holder may spend units that it has reserved, in milliseconds. Where `exactFromMs` is there, it is
   * one less, so that to a version before it is too short: that writes a row of its own before it gives out any unit.
   */
  readonly ttlMs: number;
  /**
   * From then on nobody has units that a version before has given out, which keeps nothing of what records say of times
   * (`StoredAccount.presumed`). Absent: such a version wrote this row.
   */
  readonly exactFromMs?: number;
  /** By the rule's name. */
  readonly rules: Readonly<Record<string, { readonly algorithm: string; readonly units: number }>>;
}

type Stored = readonly (readonly [policy: string, lead: StoredLead])[];

/** Where the row is. Stored: never rename it. */
const ROW = "lead";
/** For so long the row is valid when it is written, in milliseconds: it is renewed about every 30 s. */
const LEAD_MS = 45_000;
/** It is renewed when it is needed for longer than it has left, less this: by so much two machines' clocks may differ. */
const MARGIN_MS = 10_000;

/** What the object has promised, and what the one before it had. */
export class CrashAllowances {
  /** Tells this memory of the object from those before it. A clock could not: it may have been put back. */
  readonly memory = Math.floor(randomFraction() * 2 ** 32);
  readonly #storage: RowStorage;
  #found: ReadonlyMap<string, StoredLead>;
  #made: Map<string, StoredLead>;
  /** The first instant at which this object was asked. */
  #startMs: number | undefined;

  constructor(storage: RowStorage) {
    this.#storage = storage;
    this.#found = new Map(storage.kv.get<Stored>(ROW));
    this.#made = new Map(this.#found);
  }

  get isEmpty(): boolean {
    return this.#made.size === 0;
  }

  /**
   * What a key of this policy has to presume when it is loaded.
   *
   * @param isLost whether this memory knew more of the key and has lost it: then this object is to it the one before
   */
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

  /** Whether a key of which nothing is stored may have been ahead before this object started, and not be whole yet. */
  isPresumed(policy: Policy, nowMs: number): boolean {
    const found = this.#found.get(policy.name);
    return found !== undefined && nowMs < wholeAtMs(policy, found);
  }

  /** By rule: by how many units a key of which nothing is stored may have been ahead before this object started. */
  presumed(policy: Policy, nowMs: number): Readonly<Record<string, number>> | undefined {
    const found = this.#found.get(policy.name);
    if (found === undefined || !this.isPresumed(policy, nowMs)) return undefined;
    return Object.fromEntries(policy.rules.map((rule) => [rule.name, presumedOf(found, policy, rule)]));
  }

  /**
   * Makes sure that memory may be ahead until `neededMs`.
   *
   * @returns when the lead does not matter any more, if it had to be written
   */
  renew(policy: Policy, neededMs: number, nowMs: number): number | undefined {
    const made = this.#made.get(policy.name);
    const isValid = made !== undefined && made.untilMs >= neededMs + MARGIN_MS;
    if (isValid && isEnough(policy, made)) return undefined;
    const untilMs = Math.max(made?.untilMs ?? 0, neededMs + MARGIN_MS, nowMs + LEAD_MS);
    const ttlMs = Math.max(policy.reservation.mostMs, isValid ? maxTtlOf(made) : 0) - 1;
    const found = this.#found.get(policy.name);
    const fromMs = found === undefined ? 0 : exactFromMs(found);
    const lead = { untilMs, ttlMs, exactFromMs: fromMs, rules: this.#units(policy, nowMs) };
    const all = new Map([...this.#made, [policy.name, lead]]);
    this.#storage.kv.put<Stored>(ROW, [...all]);
    this.#made = all;
    return wholeAtMs(policy, lead);
  }

  /**
   * When no lead matters any more, if nobody comes: a key that was ahead is whole then. A policy that is not known may
   * come back. -Infinity: there is none.
   */
  endsAtMs(policies: PolicyLookup): number {
    let endsMs = -Infinity;
    for (const [name, lead] of this.#made) {
      const policy = policies.get(name);
      if (policy !== undefined) endsMs = Math.max(endsMs, wholeAtMs(policy, lead));
      else if (policies.isRemoved?.(name) !== true) endsMs = Math.max(endsMs, lead.untilMs + UNKNOWN_KEPT_MS);
    }
    return endsMs;
  }

  /** What is stored of every key is exact: memory is not ahead any more. What was found may still matter. */
  end(policies: PolicyLookup, nowMs: number): void {
    const kept = [...this.#found].filter(([name, { untilMs }]) => {
      const policy = policies.get(name);
      if (policy !== undefined) return this.isPresumed(policy, nowMs);
      return policies.isRemoved?.(name) !== true && nowMs < untilMs + UNKNOWN_KEPT_MS;
    });
    if (this.#made.size > 0) this.#storage.kv.put<Stored>(ROW, kept);
    this.#made = new Map(kept);
  }

  /** Returns what undoes all that happens to the row from now on: a transaction may be rolled back. */
  mark(): () => void {
    const made = this.#made;
    return () => {
      this.#made = made;
    };
  }

  /** The row was deleted. */
  forget(): void {
    this.#found = new Map();
    this.#made.clear();
  }

  /** What the row has to say: today's units, and those that were promised before as long as they may matter. */
  #units(policy: Policy, nowMs: number): StoredLead["rules"] {
    const found = this.isPresumed(policy, nowMs) ? this.#found.get(policy.name) : undefined;
    const made = this.#made.get(policy.name);
    const rules = policy.rules.map((rule): [string, StoredLead["rules"][string]] => {
      const before = found === undefined ? 0 : presumedOf(found, policy, rule);
      // Keys with overrides are further ahead than others, and all have this one row.
      const isOwn = made !== undefined && made !== this.#found.get(policy.name);
      const others = isOwn ? presumedOf(made, policy, rule) : 0;
      return [rule.name, { algorithm: storedName(rule), units: Math.max(aheadUnits(rule), before, others) }];
    });
    return { ...(made !== this.#found.get(policy.name) && made?.rules), ...Object.fromEntries(rules) };
  }
}

/**
 * The units by which a key may have been ahead, as one of a rule's: under whichever algorithm they were given. A rule
 * that the lead does not know goes on from those that it knows and that are gone, as its records do (conversions.ts).
 */
function presumedOf({ rules }: StoredLead, policy: Policy, rule: Rule): number {
  if (rule.lease !== undefined || rule.algorithm.isShare === true) return 0;
  if (Object.hasOwn(rules, rule.name)) return rules[rule.name]?.units ?? 0;
  const isGone = (name: string) => policy.rules.every((each) => each.name !== name);
  return Math.max(0, ...Object.entries(rules).map(([name, { units }]) => (isGone(name) ? units : 0)));
}

/** The longest that a holder may spend units, in milliseconds. */
function maxTtlOf({ ttlMs, exactFromMs: fromMs }: StoredLead): number {
  return fromMs === undefined ? ttlMs : ttlMs + 1;
}

/** From when on nobody has units of a version that keeps nothing of what records say of times. */
function exactFromMs(lead: StoredLead): number {
  return lead.exactFromMs ?? lead.untilMs;
}

function isEnough(policy: Policy, lead: StoredLead): boolean {
  if (maxTtlOf(lead) < policy.reservation.mostMs) return false;
  return policy.rules.every((rule) => {
    const own = Object.hasOwn(lead.rules, rule.name) ? lead.rules[rule.name] : undefined;
    return (own?.algorithm === storedName(rule) ? own.units : 0) >= aheadUnits(rule);
  });
}

function wholeAtMs(policy: Policy, lead: StoredLead): number {
  const { untilMs } = lead;
  const wholeMs = policy.rules.map((rule) => {
    const { algorithm, config } = rule;
    const units = presumedOf(lead, policy, rule);
    if (units === 0) return untilMs;
    return algorithm.untouchedAtMs(config, algorithm.debit(config, undefined, untilMs, units));
  });
  return Math.max(untilMs, ...wholeMs);
}
