import { broughtTo, underRule } from "../../core/accounts/account.ts";
import { type RuleAccount, seenByGroup } from "../../core/accounts/hold.ts";
import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import { dualConfig, type DualConfig } from "../../core/algorithms/dual-config.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { parsePolicy } from "../../core/policies/parse-policy.ts";
import {
  type Cost,
  forPriority,
  later,
  type Policy,
  type PolicyLookup,
  type PolicyRevision,
  publicName,
  type Rule,
} from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { type StoredKey, storedName } from "../storage/records.ts";
import type { Holders } from "./holders.ts";

/** The version's place in a record. No rule has this name. Stored: never rename it. */
const PLACE = "@";
/** Its algorithm name, which no algorithm has. Stored: never rename it. */
const KIND = "in-force";
const MAX_READ = 256;
const MAX_PENDING = 1_000;

/** Parsed policies, by name and text. All objects of an isolate share them. */
const read = new Map<string, Policy>();

export interface ChosenVersion {
  /** By the plan in force. */
  readonly policy: Policy;
  /** With all plans: `policy` is as the key's plan sees it. */
  readonly whole: Policy;
  readonly inForce: PolicyRevision | undefined;
}

/** @param isRecorded the key has a record, of the version that it keeps */
export type Choose = (kept: PolicyRevision | undefined, isRecorded: boolean) => ChosenVersion;

/** What a call asks for. */
export interface Deciding {
  readonly op: KeyCall["op"];
  readonly cost: Cost;
  /** Of a holder's message, with its number. */
  readonly holder?: string;
  readonly turn?: number;
}

/** Whether its key keeps the plan that it has: the call only looks, or a later message of its holder came first. */
export function keepsPlan(call: Partial<Deciding>, holders: Holders | undefined): boolean {
  const { op, holder = "", turn = Infinity } = call;
  return looks(call) || (op === "reserve" && turn <= (holders?.get(holder)?.turn ?? -Infinity));
}

/** Whether a call takes nothing: it is answered by the plan that it names, and its key keeps its own. */
function looks({ op, cost }: Partial<Deciding>): boolean {
  if (op !== "limit" || cost === undefined) return op === "peek";
  return Object.values(typeof cost === "number" ? [cost] : cost).every((units) => units === 0);
}

/** Versions in force from calls. The latest of these and the key's decides: who lags sets no key back. */
export class Versions extends Map<string, PolicyRevision> {
  note(key: string, inForce: PolicyRevision): void {
    const latest = later(this.get(key), inForce);
    if (latest === undefined) return;
    for (const oldest of this.keys()) {
      if (this.size < MAX_PENDING) break;
      this.delete(oldest);
    }
    this.set(key, latest);
  }

  /** Removes and returns the latest version of a key, which the key has from now on. */
  take(key: string): PolicyRevision | undefined {
    const latest = this.get(key);
    this.delete(key);
    return latest;
  }
}

export type VersionedPolicies = Pick<PolicyLookup, "copyOf">;

/** @param fields as JSON; the result is `undefined` if this version cannot read them, or knows no such region */
export function readPolicy(name: string, fields: string, { copyOf }: VersionedPolicies): Policy | undefined {
  const policy = parsedPolicy(publicName(name), fields);
  return policy === undefined || copyOf === undefined ? policy : copyOf(policy, name);
}

function parsedPolicy(name: string, fields: string): Policy | undefined {
  const id = `${name}/${fields}`;
  const known = read.get(id);
  if (known !== undefined) return known;
  const policy = parsePolicy(name, JSON.parse(fields));
  if ("problems" in policy) {
    const problems = policy.problems.map(({ detail }) => detail).join("; ");
    console.warn(`policy ${name}: another version has what this one cannot read: ${problems}`);
    return undefined;
  }
  for (const oldest of read.keys()) {
    if (read.size < MAX_READ) break;
    read.delete(oldest);
  }
  read.set(id, policy);
  return policy;
}

/** The version as a part of a record, beside its rules; empty: the file's. */
export function storedVersion(inForce: PolicyRevision | undefined): StoredKey["rules"] {
  return inForce === undefined ? {} : { [PLACE]: { algorithm: KIND, ahead: 0, state: inForce } };
}

export function versionIn(rules: StoredKey["rules"] = {}): PolicyRevision | undefined {
  return Object.hasOwn(rules, PLACE) ? (rules[PLACE]?.state as PolicyRevision) : undefined;
}

/** How long another version's rules count after the last call with them, in milliseconds. */
const REMEMBERED_MS = 60_000;

/** While two versions of a policy are in use: each comparable rule with the one that decides for it. */
export type Comparison = ReadonlyMap<Rule, Rule>;

interface OtherRules {
  readonly terms: string;
  readonly comparison: Comparison;
  untilMs: number;
}

/** By policy: the one other version that callers sent lately. A third counts after it is forgotten. */
export class RuleFingerprints extends Map<string, OtherRules> {
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

  /** The rules to compare with; `undefined`: no call has sent other rules lately. */
  comparison(policy: string, nowMs: number): Comparison | undefined {
    const other = this.get(policy);
    if (other === undefined || other.untilMs > nowMs) return other?.comparison;
    this.delete(policy);
    return undefined;
  }
}

/*
 * Terms: a policy's rules as text. During a rollout callers and objects have different versions of a policy.
 * So callers send their terms, and an object with other terms decides by the stricter of both. It need not
 * know which is newer, so this also holds for a rollback. Rules are compared by name. One that the other
 * version lacks, or has with another algorithm, is decided as the object knows it.
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

/** The rule by the stricter of its own and the others' terms; `undefined`: they cannot be compared. */
export function stricterOf(rule: Rule, others: readonly Rule[]): Rule | undefined {
  const other = others.find(({ name }) => name === rule.name);
  if (other === undefined || storedName(other) !== storedName(rule)) return undefined;
  // It counts in the windows of several plans, and the other one's terms name one.
  if ("own" in rule.config) return undefined;
  if ((other.algorithm.hasPenalty === true) !== (rule.algorithm.hasPenalty === true)) return undefined;
  const config: DualConfig = { own: rule.config, other: other.config };
  const algorithm = dualConfig(rule.algorithm, other.algorithm) as unknown as AnyAlgorithm;
  return { ...rule, algorithm, config, capacity: algorithm.capacity(config) };
}

/* The rules of a key as a call sees them: by its plan, priority and group. */

/** The policy by the plan that a call names. While it waits, others may have named other plans for the key. */
export function policyFor({ policy, whole, inForce }: ChosenVersion, { inForce: named }: SeenBy): Policy {
  const plan = named?.plan;
  return plan === undefined || plan === inForce?.plan ? policy : planOf(whole, plan);
}

/**
 * The rules with their accounts. A plan's rules are the policy's with other figures, so the accounts can be read under them,
 * and also be written under the plan in force after a call has taken units.
 */
export function seenRules<State extends RuleAccount>(
  ruleStates: readonly State[],
  chosen: ChosenVersion,
  call: SeenBy,
  nowMs: number,
): readonly State[] {
  const { priority, group, namedBy } = call;
  // Where rules are compared with another version's (versions.ts), or are a region's parts, these decide for all plans.
  const isPlain = () => ruleStates.every(({ rule }, index) => rule === chosen.policy.rules[index]);
  const named = policyFor(chosen, call);
  const isOther = named !== chosen.policy && isPlain();
  const policy = isOther ? named : chosen.policy;
  const isWaiting = (call.waitMs ?? 0) > 0;
  const states = isOther ? underPlan(ruleStates, policy, nowMs, isWaiting) : ruleStates;
  const { rules } = forPriority(policy, priority);
  if (rules === policy.rules && (group === undefined || !policy.isFair)) return states;
  return states.map((state, index) => {
    const rule = seenByGroup(state.rule, group, namedBy);
    // The rule may be compared with another version's (versions.ts).
    const { apart = 0 } = rules[index] ?? {};
    const capacity = Math.max(0, rule.capacity - apart);
    return { ...state, rule: apart === 0 ? rule : { ...rule, apart, capacity } };
  });
}

/**
 * For a commit of accounts that a call of another plan has changed: they are stored exactly, as at each change of the plan,
 * because how far memory may be ahead of storage depends on the plan.
 */
export function exactly({ chosen }: { readonly chosen: ChosenVersion }, call: SeenBy): { isExact?: true } {
  return policyFor(chosen, call) === chosen.policy ? {} : { isExact: true };
}

function underPlan<State extends RuleAccount>(
  ruleStates: readonly State[],
  { rules }: Policy,
  nowMs: number,
  isWaiting: boolean,
): readonly State[] {
  return ruleStates.map((state, index) => {
    const rule = rules[index] ?? state.rule;
    // What time has returned until now came at the rate of the plan that the key has.
    const account = isWaiting ? state.account : broughtTo(state.rule, state.account, nowMs);
    return { ...state, rule, account: underRule(rule, account, nowMs) };
  });
}
