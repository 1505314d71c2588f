/** What a call is about: a policy and a key that the caller may use, and costs that the policy can count. */
import type * as v from "valibot";
import { ADDRESS_ALLOWED, normaliseKey } from "../../client/keys.ts";
import type { LimiterClient } from "../../client/limiter-client.ts";
import { holdMissing, leaseMissing } from "../../client/read-answer.ts";
import { publicName } from "../../core/policies/policy-names.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { RegionalPolicies } from "../../core/policies/regional-policies.ts";
import { readClaimId, type ClaimKind } from "../../core/protocol/claim-ids.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violation } from "../../core/validation.ts";
import { keyProblem, mayUse, type Principal } from "../auth/tokens.ts";
import { COST_ALLOWED, UNITS_ALLOWED } from "./request-schemas.ts";
import { notAllowed, parse } from "./validate.ts";
import { refused } from "./validate.ts";

/** A key of a policy: there, normalised, and the caller's to use. */
export interface Target {
  readonly policy: Policy;
  readonly key: string;
}

/** An answer with the policy that gave it, which the headers need. */
export interface Answered<Answer> {
  readonly policy: Policy;
  readonly answer: Answer;
}

/** Parses a call and finds what it is about. */
export async function call<Schema extends v.GenericSchema<unknown, { policy: string; key: string }>, Answer>(
  client: LimiterClient,
  principal: Principal,
  schema: Schema,
  input: unknown,
  ask: (target: Target, request: v.InferOutput<Schema>) => Promise<Answer | Problem> | Answer | Problem,
): Promise<Answered<Answer> | Problem> {
  const request = parse(schema, input);
  if (request instanceof Problem) return request;
  const target = findTarget(client, principal, request);
  if (target instanceof Problem) return target;
  const answer = await ask(target, request);
  return answer instanceof Problem ? answer : { policy: target.policy, answer };
}

/** The policy and the key of a request, below a path of the input. */
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
  return keyProblem(principal, key) ?? { policy: policies.within(policy, principal.region), key };
}

/** Parses a call on a hold or lease and finds it. */
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
  if (claim === undefined) return kind === "lease" ? leaseMissing() : holdMissing();
  return await ask(claim, request);
}

/** A hold or lease: its key, and what makes its id valid. */
export interface ClaimTarget extends Target {
  readonly secret: string;
}

/** The hold or lease of an id; `undefined`: there is none that this caller could know of. */
export function findClaim(
  { policies }: LimiterClient,
  principal: Principal,
  kind: ClaimKind,
  id: string,
): ClaimTarget | undefined {
  const claim = readClaimId(kind, id);
  const policy = claim && policies.get(claim.policy);
  if (claim === undefined || policy === undefined) return undefined;
  if (!mayUse(principal, publicName(policy.name))) return undefined;
  if (keyProblem(principal, claim.key) !== undefined) return undefined;
  return { policy, key: claim.key, secret: claim.secret };
}

/** What stands against a cost: units that no rule of the policy counts. `given` is the cost before it was parsed. */
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

/** The same where there have to be some: a 0 for every unit asks for nothing. */
export function unitsProblem(policy: Policy, units: Cost, given: unknown): Problem | undefined {
  const problem = costProblem(policy, ["units"], units, given);
  if (problem !== undefined || policy.rules.some((rule) => costOf(rule, units) > 0)) return problem;
  return refused(["units"], given, `${UNITS_ALLOWED}, at least one of them not 0`);
}

/** What stands against taking units of a rate: a policy that leases is acquired from. Looking (0) is free. */
export function rateProblem({ name, lease }: Policy, cost: Cost): Problem | undefined {
  if (lease === undefined || cost === 0) return undefined;
  const allowed =
    "a policy without a concurrency rule (of this one units are leased: acquire, POST /v1/leases)";
  return refused(["policy"], publicName(name), allowed);
}

function findPolicy(
  { named }: RegionalPolicies,
  principal: Principal,
  name: string,
  below: readonly string[],
): Policy | Problem {
  if (!mayUse(principal, name)) {
    return new Problem(
      PROBLEMS.forbidden,
      `the token ${JSON.stringify(principal.name)} may not use this policy`,
    );
  }
  const policy = named.get(name);
  if (policy !== undefined) return policy;
  const names = [...named.keys()].filter((each) => mayUse(principal, each));
  const allowed = `one of ${names.map((each) => JSON.stringify(each)).join(", ")}`;
  const path = [...below, "policy"];
  const detail = violation(path, name, allowed);
  return new Problem(PROBLEMS.policyNotFound, detail, {
    errors: [{ pointer: `/${path.join("/")}`, detail }],
  });
}
