import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import { dualConfig, type DualConfig } from "../../core/algorithms/dual-config.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { parsePolicy } from "../../core/policies/parse-policy.ts";
import { later, type Policy, type PolicyRevision, type Rule } from "../../core/policies/policy.ts";
import type { StoredAccount } from "../storage/records.ts";

/**
 * Which version of a policy an object decides by. The file that was deployed says what a policy is, until a call says that
 * a later version is in force for its key (core/policies/policy.ts). The latest one counts that was heard of a key, or
 * that is stored with it, so nobody who lags behind takes the key back.
 */

/** Where a record says which version it was written under. No rule has this name. Stored: never rename it. */
const PLACE = "@";
/** What stands there for the name of an algorithm, which no algorithm has. Stored: never rename it. */
const KIND = "in-force";

/** So many texts are kept as they were read, and so many keys wait to be opened. */
const MAX_READ = 256;
const MAX_TOLD = 1_000;

/** By policy and text: the policies that were read. All objects of an isolate share them. */
const read = new Map<string, Policy>();

/** A policy, and the version that says so; absent: the file does. */
export interface ChosenVersion {
  readonly policy: Policy;
  readonly inForce: PolicyRevision | undefined;
}

/** Chooses the policy of a key, from the version that its record was written under. */
export type Choose = (kept: PolicyRevision | undefined) => ChosenVersion;

/** The versions that calls have told for keys that are not in memory, or not yet by that version. */
export class Versions {
  readonly #told = new Map<string, PolicyRevision>();

  /** A call has come that says what is in force for its key. */
  tell(key: string, inForce: PolicyRevision): void {
    const told = later(this.#told.get(key), inForce);
    if (told === undefined) return;
    for (const oldest of this.#told.keys()) {
      if (this.#told.size < MAX_TOLD) break;
      this.#told.delete(oldest);
    }
    this.#told.set(key, told);
  }

  /** What was told of a key last; from now on the key itself knows. */
  take(key: string): PolicyRevision | undefined {
    if (this.#told.size === 0) return undefined;
    const told = this.#told.get(key);
    this.#told.delete(key);
    return told;
  }
}

/**
 * The policy that a version says.
 *
 * @param file what the deployment's file says; `undefined`: it has no such policy
 * @throws Error when there is no policy
 */
export function chosen(
  name: string,
  file: Policy | undefined,
  inForce: PolicyRevision | undefined,
): ChosenVersion {
  const policy = (inForce?.fields === undefined ? undefined : readPolicy(name, inForce.fields)) ?? file;
  if (policy === undefined)
    throw new Error(`this version of the object has no policy ${JSON.stringify(name)}`);
  return { policy, inForce };
}

function readPolicy(name: string, fields: string): Policy | undefined {
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

/** Terms are forgotten when nobody has sent them for so long, in milliseconds: their version is not in use any more. */
const HEARD_MS = 60_000;

/** What a policy decides by while two versions of it are in use: a rule for each of its own that can be compared. */
export type Comparison = ReadonlyMap<Rule, Rule>;

interface HeardFingerprint {
  readonly terms: string;
  readonly comparison: Comparison;
  untilMs: number;
}

/**
 * The terms of other versions of its policies that callers have sent to this object lately: one for each policy, since
 * a deployment has two versions at a time. Of a third one none are taken over until these are forgotten. In memory only.
 */
export class RuleFingerprints {
  readonly #heard = new Map<string, HeardFingerprint>();

  /** A call has come with these terms. */
  hear(policy: Pick<Policy, "name" | "terms" | "rules"> | undefined, terms: string, nowMs: number): void {
    if (policy === undefined || terms === policy.terms) return;
    const known = this.#heard.get(policy.name);
    if (known !== undefined && known.untilMs > nowMs) {
      if (known.terms === terms) known.untilMs = nowMs + HEARD_MS;
      return;
    }
    const others = rulesIn(policy.name, terms);
    const compared = policy.rules.map((rule): [Rule, Rule | undefined] => [rule, stricterOf(rule, others)]);
    const comparison = new Map(compared.filter((each): each is [Rule, Rule] => each[1] !== undefined));
    this.#heard.set(policy.name, { terms, comparison, untilMs: nowMs + HEARD_MS });
  }

  /** What the policy decides by beside its own terms; `undefined`: nobody has sent other terms lately. */
  comparison(policy: string, nowMs: number): Comparison | undefined {
    const heard = this.#heard.get(policy);
    if (heard === undefined || heard.untilMs > nowMs) return heard?.comparison;
    this.#heard.delete(policy);
    return undefined;
  }
}

/*
 * Terms: what the rules of a policy say, as text. While a deployment is rolled out, versions of a policy mix: callers
 * have one and the object has another. So callers send their terms, and an object that hears others than its own decides
 * by the stricter of both: what passes has to pass under both. Which of the two is the newer nobody has to know, and it
 * holds for going back to an earlier version as well.
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
  if ((other.algorithm.isPenal === true) !== (rule.algorithm.isPenal === true)) return undefined;
  const config: DualConfig = { own: rule.config, other: other.config };
  const algorithm = dualConfig(rule.algorithm, other.algorithm) as unknown as AnyAlgorithm;
  return { ...rule, algorithm, config, capacity: algorithm.capacity(config) };
}

function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}
