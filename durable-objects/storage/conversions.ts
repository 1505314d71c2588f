/**
 * Conversions: what is stored of a key was written under other rules. Its policy has changed its algorithm, or one rule
 * has become several, or the other way round. What was consumed stays consumed:
 *
 * - A rule whose record is of another algorithm is charged with what that record counts.
 * - A rule that has no record is charged with the most that any stored rule of the same unit counts: those are the same
 *   calls.
 *
 * What a record counts is an upper bound (`used`), since nobody knows the earlier configuration; it is nothing when the
 * record was due before. It is charged as if all of it had been taken now, and at most the whole capacity is. So a change
 * creates no units, and it may make a key wait longer: until the new rule has given back what was charged. The result is
 * written before anything is decided, so that the next object does not charge it again, later.
 *
 * Leases of a rule that leases no more, or by another name, go on likewise. Units of a rate do not occupy slots, and a
 * slot that was given back has used nothing: between the two nothing is charged.
 */
import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import { blockIn, withoutBlock } from "../../core/algorithms/penalty.ts";
import { algorithms } from "../../core/policies/algorithms.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";
import { type Claim, type StoredAccount, storedName } from "./records.ts";
import type { DueKey } from "./storage.ts";

/** What a record without `unit` counts. */
const USUAL_UNIT = "requests";

interface Source {
  readonly stored: StoredAccount;
  readonly algorithm: AnyAlgorithm;
}

/**
 * The record that a rule goes on from, made of those that were written under other rules.
 *
 * @returns `undefined`: the rule's own can be read, or there is nothing to go on from
 */
export function converted(
  policy: Policy,
  rule: Rule,
  { rules, wholeAtMs }: Pick<DueKey, "rules" | "wholeAtMs">,
  nowMs: number,
): StoredAccount | undefined {
  const { algorithm, config, lease } = rule;
  const own = Object.hasOwn(rules, rule.name) ? rules[rule.name] : undefined;
  if (algorithm.isShare === true || algorithm.isStateless === true) return undefined;
  if (own?.algorithm === storedName(rule)) return undefined;
  const sources = sourcesOf(policy, rule, rules);
  if (sources.length === 0) return undefined;
  const pack = (state: unknown) =>
    state === undefined ? undefined : algorithm.pack(config, state, nowMs, undefined).record;
  if (lease !== undefined) {
    const tokens = sources.map(({ stored, algorithm: { leasing } }) =>
      stored.state === undefined ? 0 : (leasing?.fencingToken(stored.state) ?? 0),
    );
    const latest = Math.max(...tokens);
    if (latest === 0) return undefined;
    return { algorithm: storedName(rule), ahead: 0, state: pack(algorithm.leasing?.resumed(latest)) };
  }
  const used = wholeAtMs <= nowMs ? 0 : Math.max(...sources.map(usedIn));
  const ahead = Math.max(...sources.map(({ stored }) => stored.ahead));
  const block = algorithm.hasPenalty === true ? blockIn(own?.state) : undefined;
  if (used + ahead === 0 && block === undefined) return undefined;
  const units = Math.min(used, rule.capacity);
  const state = pack(units === 0 ? undefined : algorithm.debit(config, undefined, nowMs, units));
  const kept = block === undefined ? state : { ...(state !== undefined && { inner: state }), block };
  const ttlMs = Math.max(...sources.map(({ stored }) => stored.ttlMs ?? 0));
  const by = sources.find(({ stored }) => stored.ahead === ahead)?.stored.by;
  return {
    algorithm: storedName(rule),
    ahead,
    ...(kept !== undefined && { state: kept }),
    ...(ahead > 0 && { ttlMs }),
    ...(by !== undefined && { by }),
  };
}

/** A key's claims by their ids, each as a claim of the rules that its policy has now. */
export function convertedClaims(policy: Policy, claims: readonly Claim[]): Map<string, Claim> {
  return new Map(claims.map((claim) => [claim.id, convertedClaim(policy, claim)]));
}

/**
 * The claim with units of the rules that have come in place of those that it names: of each as many as it had of any
 * that is gone. A lease has units of rules that lease, and a hold of the others.
 */
function convertedClaim(policy: Policy, claim: Claim): Claim {
  const isGone = (name: string) => policy.rules.every((rule) => rule.name !== name);
  const gone = Object.entries(claim.units).filter(([name]) => isGone(name));
  const most = Math.max(0, ...gone.map(([, units]) => units));
  if (most === 0) return claim;
  const isLease = claim.kind === "lease";
  const added = policy.rules
    .filter(({ name, lease }) => (lease !== undefined) === isLease && !Object.hasOwn(claim.units, name))
    .map(({ name }) => [name, most]);
  return { ...claim, units: { ...claim.units, ...Object.fromEntries(added) } };
}

/** A rule goes on from its own record; without one from all that count the same unit, or that lease as it does. */
function sourcesOf(policy: Policy, rule: Rule, rules: DueKey["rules"]): readonly Source[] {
  const counted = Object.entries(rules).flatMap(([name, stored]) => {
    const algorithm = algorithms.get(stored.algorithm);
    if (algorithm === undefined || (algorithm.leasing !== undefined) !== (rule.lease !== undefined))
      return [];
    const kept = policy.rules.find((each) => each.name === name);
    return [{ name, stored, algorithm, kept, unit: kept?.unit ?? stored.unit }];
  });
  const own = counted.filter(({ name }) => name === rule.name);
  if (Object.hasOwn(rules, rule.name)) return own;
  if (rule.lease !== undefined) return counted.filter(({ kept }) => kept === undefined);
  const isOf = (unit: string) => policy.rules.some((each) => each.lease === undefined && each.unit === unit);
  return counted.filter(({ kept, unit = USUAL_UNIT, stored }) => {
    if (unit === rule.unit) return true;
    // Earlier versions wrote no unit: if nothing counts the usual one any more, it may have been any.
    return kept === undefined && stored.unit === undefined && !isOf(USUAL_UNIT);
  });
}

function usedIn({ stored, algorithm }: Source): number {
  return algorithm.used(withoutBlock(stored.state) ?? null);
}
