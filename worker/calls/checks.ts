/** The checks of a call on several keys: permitted, and named for idempotency. */
import { type Cost, costText, forPriority, type Policy, publicName } from "../../core/policies/policy.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { type CallContext, costProblem, findTarget, priorityProblem } from "./limits.ts";
import type { Target } from "./validate.ts";

/** One check of a call on several keys. */
export interface IndependentCheck extends Target {
  readonly cost: Cost;
  readonly priority: string | undefined;
  /** It is stored at the check's own key. */
  readonly idempotencyKey?: string;
}

interface Request {
  readonly checks: readonly { readonly policy: string; readonly key: string; readonly cost: Cost }[];
  readonly priority?: string | undefined;
}

/**
 * The checks of a parsed call, in their order.
 *
 * @param raw the checks before they were parsed
 * @param problemOf what else a check must not have
 */
export function findChecks(
  { client, principal }: CallContext,
  { checks, priority }: Request,
  raw: readonly unknown[],
  problemOf: (policy: Policy, cost: Cost, path: readonly [string, string]) => Problem | undefined,
): readonly IndependentCheck[] | Problem {
  const found: IndependentCheck[] = [];
  for (const [index, check] of checks.entries()) {
    const path = ["checks", String(index)] as const;
    const target = findTarget(client, principal, check, path);
    if (target instanceof Problem) return target;
    const { policy, key } = target;
    const { cost } = check;
    const problem =
      problemOf(policy, cost, path) ??
      costProblem(policy, [...path, "cost"], cost, raw[index]) ??
      priorityProblem(policy, priority);
    if (problem !== undefined) return problem;
    found.push({ policy: forPriority(policy, priority), key, cost, priority });
  }
  return found;
}

/** Idempotency keys for checks: a call may check one key several times. Stored: never change the keys. */
export function withKeys<Check extends IndependentCheck>(
  checks: readonly Check[],
  idempotencyKey: string | undefined,
): readonly Check[] {
  if (idempotencyKey === undefined) return checks;
  const times = new Map<string, number>();
  return checks.map((check) => {
    const time = times.get(nameOf(check)) ?? 0;
    times.set(nameOf(check), time + 1);
    return { ...check, idempotencyKey: time === 0 ? idempotencyKey : `${idempotencyKey} (${time + 1})` };
  });
}

/** The name by which all calls order keys. */
export function nameOf({ policy, key }: Target): string {
  return `${publicName(policy.name)}/${key}`;
}

/** A check as text. Stored: never reword. */
export function textOf(check: IndependentCheck): string {
  return JSON.stringify([nameOf(check), costText(check.cost)]);
}

/** The groups of checks in their order, or in any. Earlier builds stored none (`isSameRequest`). Stored: never reword. */
export async function groupsText(checks: readonly IndependentCheck[], isOrdered: boolean): Promise<string> {
  if (checks.every(({ policy }) => policy.group === undefined)) return "";
  const lines = checks.map((check) => JSON.stringify([textOf(check), check.policy.group?.group]));
  return ` of groups (${await digestOf(isOrdered ? lines : lines.toSorted())})`;
}

/** A short digest of the checks of a call. Stored: never change it. */
export async function digestOf(lines: readonly string[]): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(lines.join("\n")));
  return Array.from(new Uint8Array(digest, 0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
