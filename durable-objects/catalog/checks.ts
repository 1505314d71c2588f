/** Checks of writes to the catalog. */
import {
  MAX_CATALOG_BYTES,
  MAX_OVERRIDES,
  MAX_TABLE_LENGTH,
  type Refusal,
  type Table,
  type Written,
} from "../../core/catalog/calls.ts";
import {
  MAX_BEGINNING_LENGTHS,
  MAX_END_LENGTHS,
  MAX_MULTI_WILDCARD,
  parsePattern,
  PATTERN_ALLOWED,
  RANGE_ALLOWED,
} from "../../core/catalog/patterns.ts";
import { problemsOf, readOverride } from "../../core/catalog/policies-in-force.ts";
import { unsaidNotices } from "../../core/policies/parse-notices.ts";
import { aloneProblem } from "../../core/policies/parse-policies.ts";
import { offsetsIn, parsePolicy } from "../../core/policies/parse-policy.ts";
import { NAME, NAME_ALLOWED } from "../../core/policies/policy-fields.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { describe, meant, type Violation, violation } from "../../core/violations.ts";
import { deployed, noticesTo } from "../deployment.ts";
import type { CatalogStore, OverrideCounts } from "./catalog-store.ts";

export type WriteResult = Written | Refusal;

/** Changed only by a deployment: that moves keys, and objects and isolates have to know both layouts. */
const PLACES = ["objects", "objectsBefore", "keyKind", "pool", "locationHint", "jurisdiction"] as const;

export function isRefusal(answer: object): answer is Refusal {
  return "refused" in answer;
}

export const missing = (detail: string): Refusal => ({ refused: "missing", detail });
export function policyNames(store: Pick<CatalogStore, "policies">): readonly string[] {
  const written = store.policies().filter(({ fields }) => fields !== undefined);
  return [...deployed.tables.keys(), ...written.map(({ name }) => name)];
}

/** @param names of policies, of which the most similar one is named */
export const noPolicy = (name: string, names: readonly string[] = []) =>
  missing(`there is no policy ${describe(name)}${meant(name, names)}`);
export const noCandidate = (policy: string) => missing(`the policy ${describe(policy)} has no candidate`);
export const noOverride = (policy: string, pattern: string) =>
  missing(`the policy ${describe(policy)} has no override ${describe(pattern)}`);
export const changed = (detail: string): Refusal => ({ refused: "changed", detail });
const full = (detail: string): Refusal => ({ refused: "full", detail });
export const allUsed = (present: string, owner = "it") =>
  full(`${present}, which are all that ${owner} may have`);

function notAllowed(violations: readonly Violation[]): Refusal {
  return { refused: "not-allowed", detail: violations.map(({ detail }) => detail).join("; "), violations };
}

/** @param field absent: it is not due to a single field */
function notAllowedBy(detail: string, ...field: readonly string[]): Refusal {
  return notAllowed([{ path: field, detail }]);
}

function wrongValue(field: string, value: unknown, allowed: string): Refusal {
  return notAllowedBy(violation([field], value, allowed), field);
}

/** Why a policy may not be written, if so. `last`: its table in the catalog, now or before it was deleted. */
export function policyRefusal(name: string, fields: Table, file?: Table, last?: Table): Refusal | undefined {
  if (!NAME.test(name)) return wrongValue("policy", name, NAME_ALLOWED);
  const long = lengthRefusal(fields);
  if (long !== undefined) return long;
  const problems = problemsOf(name, fields);
  if (problems.length > 0) return notAllowed(problems);
  const { notify } = fields;
  if (notify !== undefined && noticesTo === undefined) return notAllowedBy(unsaidNotices(notify), "notify");
  const [before, after] = [parsed(name, file ?? last), parsed(name, fields)];
  if (before === undefined && after?.pool !== undefined)
    return notAllowedBy('pool is "redis": must be left out of a policy that is made at run time', "pool");
  if (before === undefined || after === undefined) return undefined;
  const moved = PLACES.filter(
    (field) => JSON.stringify(placeIn(before, field)) !== JSON.stringify(placeIn(after, field)),
  );
  if (moved.length === 0) return poolRefusal(before, after);
  const where = file === undefined ? "as it was when the policy was made" : "as in wrangler.toml";
  const shown = (value: unknown) => (value === undefined ? "left out" : JSON.stringify(value));
  const violations = moved.map((field) => ({
    path: [field],
    detail: `${field} is ${shown(placeIn(after, field))}: must be ${shown(placeIn(before, field))}, ${where}, since only a deployment moves keys`,
  }));
  return notAllowed(violations);
}

/** The plans that a write removes from a policy. */
export function plansRemoved(before?: Table, after?: Table): Pick<Written, "removedPlans"> {
  const kept = after?.["plans"] ?? {};
  const removedPlans = Object.keys(before?.["plans"] ?? {}).filter((plan) => !Object.hasOwn(kept, plan));
  return removedPlans.length === 0 ? {} : { removedPlans };
}

function placeIn(policy: Policy, field: (typeof PLACES)[number]): unknown {
  return field === "pool" ? policy.pool?.kind : policy[field];
}

/** Why a policy with a pool may not be written: its consumption is stored by the names of its rules. */
function poolRefusal(before: Policy, after: Policy): Refusal | undefined {
  if (after.pool === undefined) return undefined;
  const [named, given] = [rulesIn(before), rulesIn(after)];
  if (named !== given)
    return notAllowedBy(
      `rules are ${given}: must be ${named}, as in wrangler.toml, since the policy's pool counts by them`,
      "rules",
    );
  return aloneRefusal(after);
}

function rulesIn({ rules }: Policy): string {
  const texts = rules.map(({ name, lease }) => `${JSON.stringify(name)}${lease ? " (concurrency)" : ""}`);
  return texts.toSorted().join(", ");
}

function aloneRefusal(policy: Policy): Refusal | undefined {
  const problem = aloneProblem(policy, deployed.regions);
  return problem === undefined ? undefined : notAllowedBy(problem, "onFailure");
}

/** The pattern of an override as it is stored, and when it ends; or its refusal. @param nowMs absent: it is stored */
export function checkOverride(name: string, base: Table, pattern: string, fields: Table, nowMs?: number) {
  const policy = parsed(name, base);
  const keyKind = policy?.keyKind ?? "text";
  const read = parsePattern({ keyKind }, pattern);
  if (read === undefined)
    return wrongValue("pattern", pattern, keyKind === "ip" ? RANGE_ALLOWED : PATTERN_ALLOWED);
  const long = lengthRefusal(fields);
  if (long !== undefined) return long;
  const override = readOverride(name, base, fields);
  if ("problems" in override) return notAllowed(override.problems);
  const offsets = nowMs === undefined ? [] : offsetsIn(fields);
  if (offsets.length > 0) return notAllowed(offsets);
  const { endsAtMs } = override;
  const alone = override.policy && aloneRefusal(override.policy);
  if (alone !== undefined) return alone;
  if (endsAtMs !== undefined && !(endsAtMs > (nowMs ?? -Infinity)))
    return wrongValue("expiresAt", fields["expiresAt"], "an instant in the future (RFC 3339)");
  const isMultiWildcard = read.kind === "glob" && read.parts.length > 2;
  return { pattern: read.text, isMultiWildcard, ...(endsAtMs !== undefined && { endsAtMs }) };
}

/** Refuses a token with unknown policies. `names` has all policies, for an error. */
export function tokenRefusal(
  { policies = [] }: Table,
  isThere: (policy: string) => boolean,
  names: () => readonly string[],
): Refusal | undefined {
  const given = policies as readonly string[];
  if (given.every(isThere)) return undefined;
  const known = names();
  const violations = given.flatMap((name, index) => {
    if (isThere(name)) return [];
    const path = ["policies", String(index)];
    return { path, detail: violation(path, name, `the name of a policy that there is${meant(name, known)}`) };
  });
  return notAllowed(violations);
}

/** Why a policy and its candidate, which decide the same calls, do not fit. */
export function candidateMisfit(name: string, fields?: Table, candidate?: Table): Refusal | undefined {
  if (fields === undefined || candidate === undefined) return undefined;
  const leases = (table: Table) => parsed(name, table)?.lease !== undefined;
  if (leases(fields) === leases(candidate)) return undefined;
  return notAllowedBy(
    "a policy and its candidate must both have a concurrency rule, or none: they decide the same calls",
  );
}

/** Why an override may not be written: under it, the candidate could not be promoted. */
export function overrideMisfit(policy: string, pattern: string, fields: Table, candidate?: Table) {
  const checked = candidate && checkOverride(policy, candidate, pattern, fields);
  if (checked === undefined || !isRefusal(checked)) return undefined;
  const violations = (checked.violations ?? []).map(({ path, detail }) => ({
    path,
    detail: `the override would not fit the candidate of the policy: ${detail}`,
  }));
  return notAllowed(violations);
}

/** Refuses patterns of further lengths: each length costs every call of the policy a lookup. */
export function lengthsRefusal({ beginnings, ends }: OverrideCounts): Refusal | undefined {
  const texts = "the policy's patterns have texts of";
  if (beginnings > MAX_BEGINNING_LENGTHS)
    return allUsed(`${texts} ${MAX_BEGINNING_LENGTHS} lengths before their first *`, "they");
  if (ends > MAX_END_LENGTHS)
    return allUsed(`${texts} ${MAX_END_LENGTHS} lengths after their last *`, "they");
  return undefined;
}

const SHARED_BOUNDS = [
  ["overrides", MAX_OVERRIDES, "overrides"],
  ["multiWildcards", MAX_MULTI_WILDCARD, "patterns with more than one *"],
  ["beginnings", MAX_BEGINNING_LENGTHS, "lengths before the first *"],
  ["ends", MAX_END_LENGTHS, "lengths after the last *"],
] as const;

/** Why a caller with a key prefix may not add an override: it would exceed its share of a bound. */
export function shareRefusal(
  keyPrefix: string,
  before: OverrideCounts,
  own: OverrideCounts,
  all: OverrideCounts,
): Refusal | undefined {
  for (const [what, max, words] of SHARED_BOUNDS)
    if (own[what] > before[what] && own[what] + all[what] > max + 1)
      return full(
        `keys that begin with ${describe(keyPrefix)} have as much as is left for others of the ${max} ${words} that there may be: a token with this prefix adds no more`,
      );
  return undefined;
}

/** Why a catalog may not become so large: each new isolate reads all of it. */
export function sizeRefusal(bytes: number): Refusal | undefined {
  if (bytes <= MAX_CATALOG_BYTES) return undefined;
  return notAllowedBy(
    `the catalog has ${bytes} bytes as JSON with it: must have at most ${MAX_CATALOG_BYTES}`,
  );
}

/** Adds the place in a document to a refusal. */
export function placed(place: readonly string[], answer: WriteResult): WriteResult {
  if (!isRefusal(answer)) return answer;
  const where = place.join(".");
  const { violations = [{ path: [], detail: answer.detail }] } = answer;
  return {
    ...answer,
    detail: `${where}: ${answer.detail}`,
    violations: violations.map(({ path, detail }) => ({
      path: [...place, ...path],
      detail: `${where}: ${detail}`,
    })),
  };
}

function lengthRefusal(table: Table): Refusal | undefined {
  const { length } = JSON.stringify(table);
  if (length <= MAX_TABLE_LENGTH) return undefined;
  return notAllowedBy(`it has ${length} characters as JSON: must have at most ${MAX_TABLE_LENGTH}`);
}

function parsed(name: string, fields: Table | undefined): Policy | undefined {
  const policy = fields && parsePolicy(name, fields);
  return policy === undefined || "problems" in policy ? undefined : policy;
}
