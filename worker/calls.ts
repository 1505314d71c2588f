/** The calls themselves, the same over HTTP and over RPC: parse, find the policy, normalise the key, ask the object. */
import type * as v from "valibot";
import { policies } from "../durable-objects/deployment.ts";
import type { Policy } from "../durable-objects/policies.ts";
import { violation } from "../durable-objects/violations.ts";
import { ADDRESS_ALLOWED, normaliseKey } from "./keys.ts";
import type { LimiterClient } from "./limiter-client.ts";
import { notAllowed, parse } from "./parse.ts";
import { Problem, PROBLEMS } from "./problems.ts";
import {
  KeyRequest,
  LimitRequest,
  RefundRequest,
  type Decision,
  type KeyReport,
  type PolicyList,
} from "./schemas.ts";
import { keyProblem, mayUse, type Principal } from "./tokens.ts";

/** An answer with the policy that gave it, which the headers need. */
export interface Answered<Answer> {
  readonly policy: Policy;
  readonly answer: Answer;
}

export function callLimit(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(principal, LimitRequest, input, (policy, key, { cost, idempotencyKey }) =>
    client.limit(policy, key, cost, idempotencyKey),
  );
}

export function callRefund(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(principal, RefundRequest, input, (policy, key, { units, idempotencyKey }) =>
    client.refund(policy, key, units, idempotencyKey),
  );
}

export function callPeek(client: LimiterClient, principal: Principal, input: unknown): Promised<KeyReport> {
  return call(principal, KeyRequest, input, (policy, key) => client.peek(policy, key));
}

export function callReset(client: LimiterClient, principal: Principal, input: unknown): Promised<undefined> {
  return call(principal, KeyRequest, input, (policy, key) => client.reset(policy, key));
}

/** The policies that the principal may use. */
export function listPolicies(principal: Principal): PolicyList {
  const usable = [...policies.values()].filter(({ name }) => mayUse(principal, name));
  return {
    policies: usable.map(({ rules, ...policy }) => ({
      ...policy,
      rules: rules.map(({ name, algorithm, config }) => ({ name, algorithm: algorithm.name, ...config })),
    })),
  };
}

type Promised<Answer> = Promise<Answered<Answer> | Problem>;

async function call<Schema extends v.GenericSchema<unknown, { policy: string; key: string }>, Answer>(
  principal: Principal,
  schema: Schema,
  input: unknown,
  ask: (policy: Policy, key: string, request: v.InferOutput<Schema>) => Promise<Answer | Problem>,
): Promised<Answer> {
  const request = parse(schema, input);
  if (request instanceof Problem) return request;
  const policy = findPolicy(principal, request.policy);
  if (policy instanceof Problem) return policy;
  const key = normaliseKey(policy, request.key);
  if (key === undefined)
    return notAllowed([{ path: ["key"], detail: violation(["key"], request.key, ADDRESS_ALLOWED) }]);
  const problem = keyProblem(principal, key);
  if (problem !== undefined) return problem;
  const answer = await ask(policy, key, request);
  return answer instanceof Problem ? answer : { policy, answer };
}

function findPolicy(principal: Principal, name: string): Policy | Problem {
  if (!mayUse(principal, name)) {
    return new Problem(
      PROBLEMS.forbidden,
      `the token ${JSON.stringify(principal.name)} may not use this policy`,
    );
  }
  const policy = policies.get(name);
  if (policy !== undefined) return policy;
  const names = [...policies.keys()].filter((each) => mayUse(principal, each));
  const detail = violation(
    ["policy"],
    name,
    `one of ${names.map((each) => JSON.stringify(each)).join(", ")}`,
  );
  return new Problem(PROBLEMS.policyNotFound, detail, { errors: [{ pointer: "/policy", detail }] });
}
