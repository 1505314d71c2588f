/** What a call over the service binding says: who calls, and the argument with what the binding's `props` add. */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { bindingCaller } from "../auth/binding-callers.ts";
import { regionNamed } from "../auth/caller-region.ts";
import { type Principal, type Scope, scopeProblem } from "../auth/tokens.ts";
import { clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { parse, plain, refused } from "../calls/validate.ts";

/** The client of the caller, who calls (with its region), and the argument. */
export type BoundCall = [client: LimiterClient, principal: Principal, input: unknown];

/**
 * Reads a call on a key: the binding's `props` may add its policy and its region.
 *
 * @param scopes the binding must have one of these
 * @throws LimiterError when the argument, the props, the scope or the region are not allowed
 */
export function readCall(env: Env, props: unknown, asked: unknown, scopes?: readonly Scope[]): BoundCall {
  return completed(env, props, readAlone(env, props, asked, scopes)[2]);
}

/** The same for a call to which nothing is added. */
export function readAlone(
  env: Env,
  props: unknown,
  asked: unknown,
  scopes: readonly Scope[] = ["limit"],
): BoundCall {
  const { principal } = orThrow(bindingCaller(props, parse));
  orThrow(scopeProblem(principal, scopes));
  return [clientOf(env, principal), principal, plain(asked)];
}

/** The same for an argument, or a part of one, that has been read. */
export function completed(env: Env, given: unknown, asked: unknown): BoundCall {
  const { principal, ...props } = orThrow(bindingCaller(given, parse));
  const client = clientOf(env, principal);
  if (typeof asked !== "object" || asked === null) return [client, principal, asked];
  const { policy = props.policy, region: name = props.region, ...rest } = asked as Record<string, unknown>;
  const region = regionNamed(name);
  if (region === undefined) {
    const names = client.policies.regions.map((each) => JSON.stringify(each.name)).join(", ");
    throw refused(["region"], name, `left out, or one of ${names}`).toError();
  }
  return [client, { ...principal, region }, { policy, ...rest }];
}

/** The answer. @throws LimiterError when it is a problem */
export function orThrow<Answer>(answer: Answer | Problem): Answer {
  if (answer instanceof Problem) throw answer.toError();
  return answer;
}
