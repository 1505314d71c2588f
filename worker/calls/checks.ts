/** The checks of a call on several keys: parsed, permitted, and named for idempotency. */
import { type Cost, costOf, costText, forPriority, publicName } from "../../core/policies/policy.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import { type CallContext, costProblem, findTarget, priorityProblem, rateProblem } from "./limits.ts";
import {
  CHECKS_ALLOWED,
  LimitAllRequest,
  MAX_CHECKS,
  MAX_INDEPENDENT_CHECKS,
} from "./schemas/request-schemas.ts";
import { given, parse, refused, type Target } from "./validate.ts";

export interface IndependentCheck extends Target {
  readonly cost: Cost;
  readonly priority: string | undefined;
  /** It is stored at the check's own key. */
  readonly idempotencyKey?: string;
}

/** A check that passes with all others of its call, or takes nothing. */
export interface Check extends IndependentCheck {
  /** The cost of all checks of the key in the call. */
  readonly total: Cost;
  /** The call as text, which idempotency compares. */
  readonly request: string;
}

export type Checks =
  | { readonly together: readonly Check[] }
  | { readonly alone: readonly IndependentCheck[] };

export async function parseChecks({ client, principal }: CallContext, input: unknown): Answered<Checks> {
  // First of all: thousands of checks would each be parsed, and answered with an error.
  const raw = given(input, "checks") as readonly unknown[];
  const maxChecks = given(input, "atomic") === false ? MAX_INDEPENDENT_CHECKS : MAX_CHECKS;
  if (Array.isArray(raw) && raw.length > maxChecks) return refused(["checks"], raw, CHECKS_ALLOWED);
  const request = parse(LimitAllRequest, input);
  if (request instanceof Problem) return request;
  const { atomic, idempotencyKey, priority } = request;
  const targets: IndependentCheck[] = [];
  for (const [index, check] of request.checks.entries()) {
    const path = ["checks", String(index)];
    const target = findTarget(client, principal, check, path);
    if (target instanceof Problem) return target;
    const { policy } = target;
    const problem =
      (atomic ? undefined : rateProblem(policy, check.cost, path)) ??
      costProblem(policy, [...path, "cost"], check.cost, raw[index]) ??
      priorityProblem(policy, priority);
    if (problem !== undefined) return problem;
    targets.push({ ...target, policy: forPriority(target.policy, priority), cost: check.cost, priority });
  }
  const checks = withKeys(targets, idempotencyKey);
  if (!atomic) return { alone: checks };
  const words = await requestText(targets);
  return { together: checks.map((each) => ({ ...each, total: totalOf(targets, each), request: words })) };
}

/** Idempotency keys for checks: a call may check one key several times. Stored: never change the keys. */
function withKeys(
  checks: readonly IndependentCheck[],
  idempotencyKey: string | undefined,
): readonly IndependentCheck[] {
  if (idempotencyKey === undefined) return checks;
  const times = new Map<string, number>();
  return checks.map((check) => {
    const time = times.get(nameOf(check)) ?? 0;
    times.set(nameOf(check), time + 1);
    return { ...check, idempotencyKey: time === 0 ? idempotencyKey : `${idempotencyKey} (${time + 1})` };
  });
}

/** The call as idempotency stores it, independent of the order of checks: never change it. */
async function requestText(targets: readonly IndependentCheck[]): Promise<string> {
  const texts = targets.map((target) => JSON.stringify([nameOf(target), costText(target.cost)]));
  const lines = texts.toSorted(compare);
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(lines.join("\n")));
  const hex = Array.from(new Uint8Array(digest, 0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `call on ${targets.length} checks (${hex})`;
}

/** Whether a check can never pass: its total is above a capacity. A shadow policy lets everything pass. */
export function isNever({ policy, total }: Check): boolean {
  return !policy.shadow && policy.rules.some((rule) => costOf(rule, total) > rule.capacity);
}

function totalOf(targets: readonly IndependentCheck[], target: Target): Cost {
  const units: Record<string, number> = {};
  for (const { policy, cost } of targets.filter((each) => nameOf(each) === nameOf(target)))
    for (const unit of new Set(policy.rules.map((rule) => rule.unit)))
      units[unit] = (units[unit] ?? 0) + costOf({ unit }, cost);
  return units;
}

/** The name by which all calls order keys. */
export function nameOf({ policy, key }: Target): string {
  return `${publicName(policy.name)}/${key}`;
}

export function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
