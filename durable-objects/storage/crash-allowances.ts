/**
 * The lead: one row for all keys of an object. It says of a policy: *until then, the memory of any of its keys may be so
 * many units ahead of what is stored of the key*; nothing stored is an untouched key. So a key that comes now and then
 * writes nothing, and many keys that come once write one row for all of them (write-behind.ts has the rule).
 *
 * The row is renewed while calls come. An object that starts reads what the one before had promised: whoever was ahead
 * was so until `untilMs` at most, so a key that is whole since then shows no dent.
 */
import { randomFraction } from "../../core/clock.ts";
import type { Policy, PolicyLookup, Rule } from "../../core/policies/policy.ts";
import { aheadUnits, type CrashAllowance, storedName } from "./write-behind.ts";

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

/** Where the row is kept. */
export interface LeadStorage {
  readonly kv: {
    get<Value>(name: string): Value | undefined;
    put<Value>(name: string, value: Value): void;
  };
}

/** What the object has promised, and what the one before it had. */
export class CrashAllowances {
  /** Tells this memory of the object from those before it. A clock could not: it may have been put back. */
  readonly memory = Math.floor(randomFraction() * 2 ** 32);
  readonly #storage: LeadStorage;
  #found: ReadonlyMap<string, StoredLead>;
  #made: Map<string, StoredLead>;
  /** The first instant at which this object was asked. */
  #startMs: number | undefined;

  constructor(storage: LeadStorage) {
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
          ttlMs: longestMs(found),
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
    const ttlMs = Math.max(policy.reservation.mostMs, isValid ? longestMs(made) : 0) - 1;
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

/** The units that a lead gives a rule, as a rule of this algorithm. */
function unitsOf({ rules }: StoredLead, rule: Rule): number {
  const said = Object.hasOwn(rules, rule.name) ? rules[rule.name] : undefined;
  return said?.algorithm === storedName(rule) ? said.units : 0;
}

/** The longest that a holder may spend units, in milliseconds. */
function longestMs({ ttlMs, exactFromMs: fromMs }: StoredLead): number {
  return fromMs === undefined ? ttlMs : ttlMs + 1;
}

/** From when on nobody has units of a version that keeps nothing of what records say of times. */
function exactFromMs(lead: StoredLead): number {
  return lead.exactFromMs ?? lead.untilMs;
}

/** Whether a lead that an earlier version of the policy has written is enough for today's. */
function isEnough(policy: Policy, lead: StoredLead): boolean {
  return (
    longestMs(lead) >= policy.reservation.mostMs &&
    policy.rules.every((rule) => unitsOf(lead, rule) >= aheadUnits(rule))
  );
}

/** From when on a key of which nothing is stored is whole, however far ahead it was. */
function wholeAtMs(policy: Policy, lead: StoredLead): number {
  const { untilMs } = lead;
  const wholeMs = policy.rules.map((rule) => {
    const { algorithm, config } = rule;
    const units = presumedOf(lead, policy, rule);
    if (units === 0) return untilMs;
    return algorithm.wholeAtMs(config, algorithm.debit(config, undefined, untilMs, units));
  });
  return Math.max(untilMs, ...wholeMs);
}

/**
 * What is stored under a policy that this version does not know stays for so long after it was to be whole, in
 * milliseconds: a version that knows the policy may come back. Then it is forgotten, so storage does not grow for ever.
 */
export const UNKNOWN_KEPT_MS = 30 * 24 * 60 * 60 * 1_000;
