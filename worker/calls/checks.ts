/** The checks of a call on several keys: parsed, permitted, and named for idempotency. */
import type { LimiterClient } from "../../client/limiter-client.ts";
import { publicName } from "../../core/policies/policy-names.ts";
import { costText, costOf, type Cost } from "../../core/protocol/cost.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { CHECKS_ALLOWED, LimitAllRequest, MOST_CHECKS } from "./request-schemas.ts";
import { costProblem, findTarget, type Target } from "./target.ts";
import { given, parse, refused } from "./validate.ts";

export interface Check extends Target {
  readonly cost: Cost;
  /** The whole call as text, which idempotency compares. */
  readonly request: string;
  /** The idempotency key of this check. It is stored at the check's own key. */
  readonly idempotencyKey?: string;
}

/** The checks of a call, or the problem of the first that is not allowed. */
export async function parseChecks(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Check[] | Problem> {
  // Before anything else, since each of thousands of checks would be parsed, and answered with an error of its own.
  const asked = given(input, "checks");
  if (Array.isArray(asked) && asked.length > MOST_CHECKS) return refused(["checks"], asked, CHECKS_ALLOWED);
  const request = parse(LimitAllRequest, input);
  if (request instanceof Problem) return request;
  const { idempotencyKey } = request;
  const targets: (Target & { readonly cost: Cost })[] = [];
  for (const [index, check] of request.checks.entries()) {
    const path = ["checks", String(index)];
    const target = findTarget(client, principal, check, path);
    if (target instanceof Problem) return target;
    const raw = (given(input, "checks") as readonly unknown[])[index];
    const problem = costProblem(target.policy, [...path, "cost"], check.cost, given(raw, "cost"));
    if (problem !== undefined) return problem;
    targets.push({ ...target, cost: check.cost });
  }
  const words = await requestText(targets);
  const times = new Map<string, number>();
  return targets.map((target) => {
    // A call may check one key several times. Each of these checks has an idempotency key of its own.
    const time = times.get(nameOf(target)) ?? 0;
    times.set(nameOf(target), time + 1);
    if (idempotencyKey === undefined) return { ...target, request: words };
    const key = time === 0 ? idempotencyKey : `${idempotencyKey} (${time + 1})`;
    return { ...target, request: words, idempotencyKey: key };
  });
}

/** The call as idempotency remembers it: the same text for the same checks in another order. Stored: for ever. */
async function requestText(targets: readonly (Target & { readonly cost: Cost })[]): Promise<string> {
  const lines = targets
    .map((target) => JSON.stringify([nameOf(target), costText(target.cost)]))
    .toSorted(compare);
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(lines.join("\n")));
  const hex = Array.from(new Uint8Array(digest, 0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `call on ${targets.length} checks (${hex})`;
}

/** Whether a check can never pass, since its cost is above a capacity. A shadow policy lets everything pass. */
export function isNever({ policy, cost }: Check): boolean {
  return !policy.shadow && policy.rules.some((rule) => costOf(rule, cost) > rule.capacity);
}

/** The name by which calls order keys. Any order would do that all calls share. */
export function nameOf({ policy, key }: Target): string {
  return `${publicName(policy.name)}/${key}`;
}

/** Compares texts by their UTF-16 units, for sorting. */
export function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
