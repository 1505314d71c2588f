/** What a call is about: a policy and a key that the caller may use, and a cost that the policy can count. */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { holdMissing, leaseMissing } from "../../client/read-answer.ts";
import { ADDRESS_ALLOWED, normaliseKey } from "../../core/catalog/keys.ts";
import { readClockMs } from "../../core/clock.ts";
import { type Cost, costOf, type Policy, publicName, takesNothing } from "../../core/policies/policy.ts";
import type { RegionalPolicies } from "../../core/policies/regional-policies.ts";
import { type Decision, effectDecision } from "../../core/protocol/decision.ts";
import { type ClaimKind, readClaimId } from "../../core/protocol/names.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, oneOfNames, violation } from "../../core/validation.ts";
import { keyProblem, mayUse, type Principal } from "../auth/tokens.ts";
import { COST_ALLOWED, isKey, UNITS_ALLOWED } from "./schemas/request-schemas.ts";
import { notAllowed, parse } from "./validate.ts";
import { refused } from "./validate.ts";

/** A policy and a normalised key, both of which the caller may use. */
export interface Target {
  readonly policy: Policy;
  readonly key: string;
}

/** An answer, with the policy that the headers of a response need. */
export interface TargetAnswer<Answer> {
  readonly policy: Policy;
  readonly answer: Answer;
}

/** Parses a call, finds its policy and key, and asks. */
export async function call<Schema extends v.GenericSchema<unknown, { policy: string; key: string }>, Answer>(
  client: LimiterClient,
  principal: Principal,
  schema: Schema,
  input: unknown,
  ask: (target: Target, request: v.InferOutput<Schema>) => Promise<Answer | Problem> | Answer | Problem,
): Promise<TargetAnswer<Answer> | Problem> {
  const request = parse(schema, input);
  if (request instanceof Problem) return request;
  const target = findTarget(client, principal, request);
  if (target instanceof Problem) return target;
  const answer = await ask(target, request);
  return answer instanceof Problem ? answer : { policy: target.policy, answer };
}

/**
 * The policy and the key that a request names.
 *
 * @param below where the request is in the input: the first part of every pointer in a problem
 */
export function findTarget(
  { policies }: LimiterClient,
  principal: Principal,
  { policy: name, key: given }: { readonly policy: string; readonly key: string },
  below: readonly string[] = [],
): Target | Problem {
  const policy = findPolicy(policies, principal, name, below);
  if (policy instanceof Problem) return policy;
  const key = normaliseKey(policy, given);
  if (key === undefined) return refused([...below, "key"], given, ADDRESS_ALLOWED);
  const own = policy.overrides?.find(key, readClockMs()) ?? policies.within(policy, principal.region);
  return keyProblem(principal, key) ?? { policy: own, key };
}

/** The decision on whoever is blocked by an override; `undefined`: the target is not, or the policy denies nobody. */
export function blockedDecision({ policy, key }: Target): Decision | undefined {
  const { override, shadow } = policy;
  if (override?.effect !== "blocked" || shadow) return undefined;
  return effectDecision(policy, key, override, readClockMs());
}

/** Parses a call on a hold or lease, finds the claim, and asks. */
export async function callClaim<Schema extends v.GenericSchema<unknown, { id: string }>, Answer>(
  client: LimiterClient,
  principal: Principal,
  kind: ClaimKind,
  schema: Schema,
  input: unknown,
  ask: (claim: ClaimTarget, request: v.InferOutput<Schema>) => Promise<Answer | Problem> | Problem,
): Promise<Answer | Problem> {
  const request = parse(schema, input);
  if (request instanceof Problem) return request;
  const claim = findClaim(client, principal, kind, request.id);
  if (claim === undefined) return claimMissing(client, principal, kind, request.id);
  return await ask(claim, request);
}

/** The problem of an id that leads to nothing. If its policy was taken away, it says so to whoever might use it. */
function claimMissing(
  { policies }: LimiterClient,
  principal: Principal,
  kind: ClaimKind,
  id: string,
): Problem {
  const name = readClaimId(kind, id)?.policy;
  const isGone = name !== undefined && policies.get(name) === undefined;
  if (!isGone || !mayUse(principal, publicName(name)))
    return kind === "lease" ? leaseMissing() : holdMissing();
  const shown = JSON.stringify(clip(publicName(name)));
  return new Problem(
    kind === "lease" ? PROBLEMS.leaseNotFound : PROBLEMS.holdNotFound,
    `it is of the policy ${shown}, which this deployment does not have (any more)`,
  );
}

/** A hold or lease of a key. Its secret is the part of its id that nobody can guess. */
export interface ClaimTarget extends Target {
  readonly secret: string;
  /** Ends or renews it: see `LimiterClient.endingBy`. */
  readonly client: LimiterClient;
}

/** The hold or lease of an id; `undefined`: the id is malformed, or of a policy or key that this caller may not use. */
export function findClaim(
  client: LimiterClient,
  principal: Principal,
  kind: ClaimKind,
  id: string,
): ClaimTarget | undefined {
  const { policies } = client;
  const claim = readClaimId(kind, id);
  const policy = claim && policies.get(claim.policy);
  if (claim === undefined || policy === undefined) return undefined;
  if (!mayUse(principal, publicName(policy.name))) return undefined;
  // An id can be forged, so its key is held against all that a key of a call is.
  if (!isKey(claim.key) || normaliseKey(policy, claim.key) !== claim.key) return undefined;
  if (keyProblem(principal, claim.key) !== undefined) return undefined;
  const { key, secret } = claim;
  const own = policy.overrides?.find(key, readClockMs()) ?? policy;
  return { policy: own, key, secret, client: client.endingBy(kind, claim, secret) };
}

/**
 * The problem of a cost that names units which no rule of the policy counts.
 *
 * @param given the cost before it was parsed
 */
export function costProblem(
  { rules }: Policy,
  path: readonly string[],
  cost: Cost,
  given: unknown,
): Problem | undefined {
  if (typeof cost === "number" || typeof given !== "object" || given === null) return undefined;
  if (Array.isArray(given)) return refused(path, given, COST_ALLOWED);
  const units = [...new Set(rules.map(({ unit }) => unit))];
  const unknown = Object.keys(given).filter((unit) => !units.includes(unit));
  if (unknown.length === 0) return undefined;
  const allowed = `is not a unit of this policy: there are ${units.join(", ")}`;
  return notAllowed(unknown.map((unit) => ({ path: [...path, unit], detail: `${unit} ${allowed}` })));
}

/** The same for units that must not all be 0. */
export function unitsProblem(policy: Policy, units: Cost, given: unknown): Problem | undefined {
  const problem = costProblem(policy, ["units"], units, given);
  if (problem !== undefined || policy.rules.some((rule) => costOf(rule, units) > 0)) return problem;
  return refused(["units"], given, `${UNITS_ALLOWED}, at least one of them not 0`);
}

/** The problem of a priority that the policy does not have. */
export function priorityProblem({ priorities: { names } }: Policy, priority?: string): Problem | undefined {
  if (priority === undefined || names.includes(priority)) return undefined;
  const allowed = `one of ${names.map((name) => JSON.stringify(name)).join(", ")}, the policy's priorities`;
  return refused(["priority"], priority, allowed);
}

/** The problem of a utilization that is reported to a policy which takes none. */
export function utilizationProblem({ shedding }: Policy, utilization?: number): Problem | undefined {
  if (utilization === undefined || shedding?.by === "reports") return undefined;
  return refused(["utilization"], utilization, 'left out: this policy has no shed = { by = "reports" }');
}

/**
 * The problem of taking units from a policy that leases them: they have to be acquired. A cost of 0 only looks.
 *
 * @param below where the request is in the input: the first part of the pointer in the problem
 */
export function rateProblem(policy: Policy, cost: Cost, below: readonly string[] = []): Problem | undefined {
  const { name, lease } = policy;
  if (lease === undefined || takesNothing(policy, cost)) return undefined;
  const allowed =
    "a policy without a concurrency rule (units of this one are leased: acquire, POST /v1/leases)";
  return refused([...below, "policy"], publicName(name), allowed);
}

/** The policy that a caller names, if the caller may use it. */
export function findPolicy(
  { named }: RegionalPolicies,
  principal: Principal,
  name: string,
  below: readonly string[],
): Policy | Problem {
  if (!mayUse(principal, name)) {
    return new Problem(PROBLEMS.forbidden, `${principal.title} may not use this policy`);
  }
  const policy = named.get(name);
  if (policy !== undefined) return policy;
  const names = [...named.keys()].filter((each) => mayUse(principal, each));
  const path = [...below, "policy"];
  const detail = violation(path, name, oneOfNames(name, names));
  return new Problem(PROBLEMS.policyNotFound, detail, {
    errors: [{ pointer: `/${path.join("/")}`, detail }],
  });
}
