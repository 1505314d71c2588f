/**
 * Priorities: how important a call is, and what a policy keeps for more important ones.
 *
 * With `reserve = { critical = "20%" }` calls of all other priorities see 80 % of each limit: for them a fifth of the
 * capacity is always taken, so any number of them leaves it to critical calls. It is the fleet usage load shedder of
 * P. Tarjan, "Scaling your API with rate limiters" (Stripe, 2017), for rates too, and exact.
 *
 * The bound: in any interval, the units admitted of a priority and those below it are at most what the limit without
 * the kept part admits. An isolate's units belong to one priority, to which they were granted.
 */
import * as v from "valibot";
import { LAG_MS, type Shedding } from "../shedding/load-shedder.ts";
import { oneOf, table, violationsOf } from "../validation.ts";
import { type Violation, violation, wrong } from "../violations.ts";
import { isTable, type Problems, type Table } from "./changed-tables.ts";
import { durationText } from "./other-words.ts";
import { aboveZero, DURATION, USUAL } from "./policy-fields.ts";
import type { Policy, Priorities, Rule } from "./policy.ts";

export function prioritiesOf(
  policy: Omit<Policy, "priorities">,
  names: readonly string[],
  defaultPriority: string | undefined,
  given: Table,
  ageingMs: number,
): Priorities | Problems {
  const allowed = `one of ${names.map((name) => JSON.stringify(name)).join(", ")}`;
  const usual = defaultPriority ?? (names.includes(USUAL) ? USUAL : names.at(-1)) ?? USUAL;
  const problems: Violation[] = [];
  if (!names.includes(usual)) problems.push(wrong(["defaultPriority"], usual, allowed));
  const reserve: Record<string, number> = {};
  for (const [name, value] of Object.entries(given)) {
    const share = shareIn(value);
    if (!names.includes(name))
      problems.push({ path: ["reserve", name], detail: violation(["a name in reserve"], name, allowed) });
    else if (name === names.at(-1))
      problems.push(wrong(["reserve", name], value, "left out: nothing is less important"));
    else if (share === undefined)
      problems.push(wrong(["reserve", name], value, 'a part such as "20%", above 0 and below 100%'));
    else reserve[name] = share;
  }
  const isKept = Object.keys(reserve).length > 0;
  const unfit = policy.rules.find(
    ({ algorithm }) =>
      algorithm.limitNow !== undefined ||
      algorithm.neverRefills === true ||
      algorithm.fields["limit"] === undefined,
  );
  if (isKept && policy.pool !== undefined)
    problems.push(wrong(["reserve"], given, 'left out with pool = "redis": the pool knows no priorities'));
  if (isKept && unfit !== undefined)
    problems.push(wrong(["reserve"], given, `left out with algorithm "${unfit.algorithm.name}"`));
  if (problems.length > 0) return { problems };
  const seen = new Map<string, Policy>();
  const priorities = { names, usual, reserve, ageingMs, seen };
  let part = 0;
  for (const name of isKept ? names : []) {
    const [first, ...others] = policy.rules;
    const rules = [withApart(first, part), ...others.map((rule) => withApart(rule, part))] as const;
    const empty = rules.find(({ capacity }) => capacity < 1);
    if (empty !== undefined)
      problems.push(
        wrong(["reserve"], given, `such that ${name} calls see at least one unit of ${empty.name}`),
      );
    seen.set(name, { ...policy, rules, priority: name, priorities });
    part += Object.hasOwn(reserve, name) ? (reserve[name] ?? 0) : 0;
  }
  return problems.length > 0 ? { problems } : priorities;
}

/** The rule with a part of its capacity, rounded up, kept for more important calls. */
function withApart(rule: Rule, part: number): Rule {
  if (part === 0) return rule;
  // Floating-point error in a sum of parts must not keep one more unit.
  const apart = Math.ceil(rule.capacity * part - 1e-9);
  return { ...rule, apart, capacity: rule.capacity - apart };
}

function shareIn(value: unknown): number | undefined {
  const match = typeof value === "string" ? /^(\d{1,2}(?:\.\d{1,3})?)\s?%$/.exec(value) : null;
  const share = match === null ? 0 : Number(match[1]) / 100;
  return share > 0 && share < 1 ? share : undefined;
}

/* Which calls are shed while machines are too busy: the least important first. */

const share = (usual: number) =>
  v.optional(
    aboveZero((value) => value < 1, "a number above 0 and below 1"),
    usual,
  );

/** The defaults are those of P. Tarjan's example code of 2017. */
export const SHED = table({
  good: share(0.7),
  bad: share(0.8),
  after: v.optional(DURATION, "28s"),
  over: v.optional(DURATION, "120s"),
  by: v.optional(oneOf(["leases", "reports"])),
});

/** @param leases whether a rule of the policy leases units */
export function sheddingOf(
  given: unknown,
  leases: boolean,
  pool: string | undefined,
): Shedding | undefined | Problems {
  if (given === undefined || given === false) return undefined;
  const refusal = (path: readonly string[], value: unknown, allowed: string) => ({
    problems: [wrong(["shed", ...path], value, allowed)],
  });
  if (!isTable(given) && given !== true)
    return refusal([], given, "true, false, or a table { good, bad, after, over, by }");
  if (pool !== undefined)
    return refusal([], given, 'left out with pool = "redis": each region would shed for itself');
  const parsed = v.safeParse(SHED, isTable(given) ? given : {});
  if (!parsed.success) {
    const problems = violationsOf(parsed.issues, ["shed"]).map(({ path, detail }) => ({
      path,
      detail: detail.startsWith("shed") ? detail : `shed: ${detail}`,
    }));
    return { problems };
  }
  const { good, bad, after: afterMs, over: overMs, by = leases ? "leases" : "reports" } = parsed.output;
  if (by === "leases" && !leases) return refusal(["by"], by, '"reports", since no rule leases units');
  if (bad <= good) return refusal(["bad"], bad, `above the good utilization, which is ${good}`);
  const minMs = Math.ceil(LAG_MS / (bad - good) - 1e-6);
  if (overMs < minMs) {
    const why = `at least ${durationText(minMs)} with bad - good = ${Number((bad - good).toFixed(6))}: else it would shed too much`;
    return refusal(["over"], durationText(overMs), why);
  }
  return { good, bad, afterMs, overMs, by };
}
