/**
 * Conversions: a key's record was written under other rules, because its policy changed an algorithm, split
 * one rule into several, or merged several. Consumed units stay consumed:
 *
 * - A rule whose record is of another algorithm is charged with the units which that record counts.
 * - A rule without a record is charged with the most that any stored rule of the same unit counts: they count
 *   the same calls.
 *
 * The count is an upper bound (`used`), since the earlier configuration is unknown; it is 0 if the record was
 * due before. It is charged as taken now, up to the capacity. So a change creates no units, but a key may
 * wait until the new rule has refilled. The result is written before the first decision, so the next object
 * does not charge it again.
 *
 * Leases continue under another rule or name in the same way. Units of a rate occupy no slots, and a released
 * slot has used nothing: no conversion happens between rates and slots.
 */
import { blockIn, withoutBlock } from "../../core/algorithms/penalty.ts";
import { algorithms } from "../../core/policies/algorithms.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";
import { type Claim, type DueKey, type StoredAccount, storedName, USUAL_UNIT } from "./records.ts";

/** The record from which a rule continues if it cannot read its own; `undefined`: none. */
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
  const usedBy = sources.map((each) => each.algorithm.used(withoutBlock(each.stored.state) ?? null));
  const used = wholeAtMs <= nowMs ? 0 : Math.max(...usedBy);
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

/** Adds units of new rules: the most that the claim had of a removed rule of the same kind. */
export function convertedClaim(policy: Policy, claim: Claim): Claim {
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

/** A rule continues from its own record, or from all of its unit or its kind of lease. */
function sourcesOf(policy: Policy, rule: Rule, rules: DueKey["rules"]) {
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
    // Earlier versions wrote no unit: if no rule counts requests any more, it may be any unit.
    return kept === undefined && stored.unit === undefined && !isOf(USUAL_UNIT);
  });
}
