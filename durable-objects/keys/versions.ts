import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import { dualConfig, type DualConfig } from "../../core/algorithms/dual-config.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { parsePolicy } from "../../core/policies/parse-policy.ts";
import { later, type Policy, type PolicyRevision, type Rule } from "../../core/policies/policy.ts";
import { type StoredAccount, storedName } from "../storage/records.ts";

/**
 * Which version of a policy an object decides by. The file that was deployed has the policy, until a call names a later
 * version that is in force for its key (core/policies/policy.ts). The latest one counts that a call has named or that is
 * stored with the key, so a caller that lags behind does not take the key back.
 */

/** Where a record says which version it was written under. No rule has this name. Stored: never rename it. */
const PLACE = "@";
/** What stands there for the name of an algorithm, which no algorithm has. Stored: never rename it. */
const KIND = "in-force";

const MAX_READ = 256;
const MAX_PENDING = 1_000;

/** By policy and text: the policies that were read. All objects of an isolate share them. */
const read = new Map<string, Policy>();

/** A policy, and the version that says so; absent: the file does. */
export interface ChosenVersion {
  readonly policy: Policy;
  readonly inForce: PolicyRevision | undefined;
}

/** Chooses the policy of a key, by the version under which its record was written. */
export type Choose = (kept: PolicyRevision | undefined) => ChosenVersion;

/** The versions in force that calls have named for keys that are not in memory, or not yet by that version. */
export class Versions extends Map<string, PolicyRevision> {
  /** A call has come that names the version in force for its key. */
  note(key: string, inForce: PolicyRevision): void {
    const latest = later(this.get(key), inForce);
    if (latest === undefined) return;
    for (const oldest of this.keys()) {
      if (this.size < MAX_PENDING) break;
      this.delete(oldest);
    }
    this.set(key, latest);
  }

  /** The latest version of a key; from now on the key itself has it. */
  take(key: string): PolicyRevision | undefined {
    const latest = this.get(key);
    this.delete(key);
    return latest;
  }
}

/** The policy with these fields, which are JSON; `undefined`: this version cannot read them. */
export function readPolicy(name: string, fields: string): Policy | undefined {
  const id = `${name}/${fields}`;
  const known = read.get(id);
  if (known !== undefined) return known;
  const policy = parsePolicy(name, JSON.parse(fields));
  if ("problems" in policy) {
    console.warn(
      `policy ${name}: another version has what this one cannot read: ${policy.problems.join("; ")}`,
    );
    return undefined;
  }
  for (const oldest of read.keys()) {
    if (read.size < MAX_READ) break;
    read.delete(oldest);
  }
  read.set(id, policy);
  return policy;
}

/** The version as a part of a record, beside its rules; empty: the file is in force. */
export function storedVersion(inForce: PolicyRevision | undefined): Readonly<Record<string, StoredAccount>> {
  return inForce === undefined ? {} : { [PLACE]: { algorithm: KIND, ahead: 0, state: inForce } };
}

/** The version under which a record was written. */
export function versionIn(
  rules: Readonly<Record<string, StoredAccount>> | undefined,
): PolicyRevision | undefined {
  return rules !== undefined && Object.hasOwn(rules, PLACE)
    ? (rules[PLACE]?.state as PolicyRevision)
    : undefined;
}

/** Other rules are forgotten when no call has sent them for this long, in milliseconds: their version is not in use. */
const REMEMBERED_MS = 60_000;

/** What a policy decides by while two versions of it are in use: a rule for each of its own that can be compared. */
export type Comparison = ReadonlyMap<Rule, Rule>;

interface OtherRules {
  readonly terms: string;
  readonly comparison: Comparison;
  untilMs: number;
}

/**
 * By policy: the rules of another version that callers have sent to this object lately. There is one for each policy, since
 * a deployment has two versions at a time. A third one counts once these are forgotten. In memory only.
 */
export class RuleFingerprints extends Map<string, OtherRules> {
  /** A call has come with these terms, which are not those of the policy here. */
  note({ name, rules }: Pick<Policy, "name" | "rules">, terms: string, nowMs: number): void {
    const known = this.get(name);
    if (known !== undefined && known.untilMs > nowMs) {
      if (known.terms === terms) known.untilMs = nowMs + REMEMBERED_MS;
      return;
    }
    const others = rulesIn(name, terms);
    const comparison = new Map<Rule, Rule>();
    for (const rule of rules) {
      const stricter = stricterOf(rule, others);
      if (stricter !== undefined) comparison.set(rule, stricter);
    }
    this.set(name, { terms, comparison, untilMs: nowMs + REMEMBERED_MS });
  }

  /** What the policy decides by beside its own rules; `undefined`: no call has sent other rules lately. */
  comparison(policy: string, nowMs: number): Comparison | undefined {
    const other = this.get(policy);
    if (other === undefined || other.untilMs > nowMs) return other?.comparison;
    this.delete(policy);
    return undefined;
  }
}

/*
 * Terms: the rules of a policy, as text. While a deployment is rolled out, versions of a policy mix: callers have one and
 * the object has another. So callers send their terms, and an object that gets others than its own decides by the stricter
 * of both. It need not know which of the two is the newer, so that also holds for a rollback.
 *
 * Rules are compared by their names. One that the other version does not have, or that has another algorithm there, is
 * decided as the object knows it.
 */

/** The rules of another version of a policy; none: this version cannot read them. */
export function rulesIn(policy: string, terms: string): readonly Rule[] {
  try {
    const rules = Object.fromEntries(JSON.parse(terms) as readonly [string, unknown][]);
    return parsePolicies({ [policy]: { rules } }).get(policy)?.rules ?? [];
  } catch (error) {
    console.warn(`policy ${policy}: another version has terms that this one cannot read: ${String(error)}`);
    return [];
  }
}

/**
 * The rule, deciding by the stricter of its own terms and those of the rule with its name.
 *
 * @returns `undefined`: they cannot be compared
 */
export function stricterOf(rule: Rule, others: readonly Rule[]): Rule | undefined {
  const other = others.find(({ name }) => name === rule.name);
  if (other === undefined || storedName(other) !== storedName(rule)) return undefined;
  if ((other.algorithm.hasPenalty === true) !== (rule.algorithm.hasPenalty === true)) return undefined;
  const config: DualConfig = { own: rule.config, other: other.config };
  const algorithm = dualConfig(rule.algorithm, other.algorithm) as unknown as AnyAlgorithm;
  return { ...rule, algorithm, config, capacity: algorithm.capacity(config) };
}
