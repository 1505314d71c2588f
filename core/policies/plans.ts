/**
 * Plans: what a policy is for the calls that name one, and for those that bring limits of their own.
 *
 * A plan has other figures of the policy's rules, never other rules. So a key keeps its state from plan to plan, as it does
 * when a policy changes at run time: its object decides by the plan of the last call that named one. In any interval no
 * more is admitted than the loosest plan named in it allows; with several windows plan-windows.ts has the bound.
 *
 * A call without a plan names the plan "", the policy's own figures. What is not decided (a peek, a release) names none,
 * and the key keeps its plan, as it does when a call only looks. A call that waits is decided by the plan that it named
 * (durable-objects/keys/versions.ts).
 */
import { MAX_UNITS } from "../algorithms/algorithm.ts";
import { meant, type Violation, violation, wrong } from "../violations.ts";
import { isTable, problem, type Problems, type Table, withFigures } from "./changed-tables.ts";
import { inAllWindows, inPlan, largestThat, planWindowProblems } from "./plan-windows.ts";
import { NAME, NAME_ALLOWED } from "./policy-fields.ts";
import type { LimitInCall, Policy, Rule } from "./policy.ts";
import { withCallLimits } from "./seen-policy.ts";

/** Each is parsed when the worker starts. */
const MAX_PLANS = 64;
const PLANS_ALLOWED = `a table of 1 to ${MAX_PLANS} plans by name, as { "pro": { "limit": 1000 } }`;
/** The most policies with limits of calls, for each plan of a policy. */
const MAX_LIMITED = 1_024;

type Parse = (fields: Table) => Policy | Problems;

/** Adds the plans of a table to the policy that is parsed from it. @param parse reads a table without plans */
export function withPlans(policy: Policy, table: Table, parse: Parse): Policy | Problems {
  const { plans: tables, limitInCall, ...base } = table;
  if (tables === undefined && limitInCall === undefined) return policy;
  if (limitInCall !== undefined && policy.pool !== undefined)
    return {
      problems: [wrong(["limitInCall"], limitInCall, "left out with a pool, whose limits are one for all")],
    };
  const max = maxInCall(limitInCall);
  if (typeof max === "object") return max;
  if (tables !== undefined && !isTable(tables))
    return { problems: [wrong(["plans"], tables, PLANS_ALLOWED)] };
  const given = Object.entries(tables ?? {});
  if (tables !== undefined && (given.length === 0 || given.length > MAX_PLANS))
    return problem(["plans"], `plans has ${given.length}: must be ${PLANS_ALLOWED}`);
  const problems: Violation[] = [];
  const plans = new Map<string, Policy>();
  // The policy's own figures have no name in its table.
  for (const [name, figures] of [[undefined, {}] as const, ...given]) {
    const plan = name ?? "";
    const read = name === undefined ? { fields: base } : planTable(base, name, figures);
    const parsed = "problems" in read ? read : parse(read.fields);
    if ("problems" in parsed)
      problems.push(...parsed.problems.map((each) => (name === undefined ? each : inPlan(name, each))));
    else {
      // Terms are sent with calls of other plans too, and are compared with theirs.
      const { terms } = policy;
      const named = ofPlan(terms === undefined ? parsed : { ...parsed, terms }, plan);
      const fields = "fields" in read ? read.fields : base;
      plans.set(
        plan,
        max === undefined ? named : { ...named, limitInCall: limitedBy(named, max, fields, parse) },
      );
    }
  }
  if (problems.length > 0) return { problems };
  const counting = inAllWindows([...plans.values()], max);
  for (const [plan, named] of plans) plans.set(plan, withCounted(counting(named), counting));
  const own = plans.get("") ?? policy;
  return { ...policy, rules: own.rules, plans };
}

/** Its limits in calls too count in the windows of all plans. */
function withCounted(policy: Policy, counting: ReturnType<typeof inAllWindows>): Policy {
  const { limitInCall } = policy;
  if (limitInCall === undefined) return policy;
  const known = new WeakMap<Policy, Policy>();
  const counted: LimitInCall["withLimits"] = (limits) => {
    const limited = limitInCall.withLimits(limits);
    if (limited === undefined) return undefined;
    const made = known.get(limited) ?? counting(limited);
    known.set(limited, made);
    return made;
  };
  return { ...policy, limitInCall: { ...limitInCall, withLimits: counted } };
}

function planTable(base: Table, plan: string, figures: unknown): { readonly fields: Table } | Problems {
  if (!NAME.test(plan))
    return { problems: [{ path: [], detail: violation(["its name"], plan, NAME_ALLOWED) }] };
  if (!isTable(figures))
    return { problems: [wrong([], figures, 'a table of figures, as { "limit": 1000 }')] };
  return withFigures(base, figures, { what: "a plan", ownFields: [] });
}

function maxInCall(given: unknown): number | undefined | Problems {
  if (given === undefined) return undefined;
  if (!isTable(given))
    return { problems: [wrong(["limitInCall"], given, `a table { max } with ${MAX_ALLOWED}`)] };
  const { max, ...strays } = given;
  const [stray] = Object.keys(strays);
  if (stray !== undefined) {
    const path = ["limitInCall", stray];
    return { problems: [wrong(path, given[stray], `left out: there is only max${meant(stray, ["max"])}`)] };
  }
  const isMax = Number.isInteger(max) && (max as number) >= 1 && (max as number) <= MAX_UNITS;
  return isMax ? (max as number) : { problems: [wrong(["limitInCall", "max"], max, MAX_ALLOWED)] };
}

const MAX_ALLOWED = `an integer from 1 to ${MAX_UNITS}`;

/**
 * What is wrong with the windows of plans, or the largest limit that calls may bring: no rule has a limit, or one cannot
 * count so many.
 */
export function planProblems(policy: Policy, table: Table): readonly Violation[] {
  const problems = limitInCallProblems(policy);
  return problems.length > 0 ? problems : planWindowProblems(policy, table);
}

function limitInCallProblems({ plans }: Policy): readonly Violation[] {
  const path = ["limitInCall", "max"];
  for (const [plan, { limitInCall, rules }] of plans ?? []) {
    if (limitInCall === undefined) continue;
    const { max, withLimits, whyNot } = limitInCall;
    const limited = limitedRules(rules);
    if (limited.length === 0)
      return [wrong(path, max, `left out: algorithm "${rules[0].algorithm.name}" has no limit`)];
    for (const { unit, algorithm, config } of limited) {
      if (withLimits({ [unit]: max }) !== undefined) continue;
      const most = largestCounted(limitInCall, unit, Number((config as Partial<Table>)["limit"]));
      const [by, where] = [`algorithm "${algorithm.name}"`, plan === "" ? "" : ` in the plan ${plan}`];
      const allowed =
        most < 1
          ? `a limit that ${by} can have${where} (${whyNot({ [unit]: max })})`
          : `an integer from 1 to ${most}, the largest limit that ${by} can count${where}`;
      return [wrong(path, max, allowed)];
    }
  }
  return [];
}

/** The rules with a limit that a call may replace. */
export function limitedRules(rules: readonly Rule[]): readonly Rule[] {
  return rules.filter(({ algorithm }) => algorithm.fields["limit"] !== undefined);
}

/** The largest limit below `max` that a rule can count; 0: none is known. @param own the rule's limit, which it counts */
function largestCounted({ max, withLimits }: LimitInCall, unit: string, own: number): number {
  const isCounted = (limit: number) => withLimits({ [unit]: limit }) !== undefined;
  return largestThat(isCounted, own < max ? own : 0, max);
}

function ofPlan(policy: Policy, plan: string): Policy {
  const seen = new Map([...policy.priorities.seen].map(([name, each]) => [name, { ...each, plan }]));
  return { ...policy, plan, priorities: { ...policy.priorities, seen } };
}

/** Policies with limits of calls, by those. A policy that is kept is the same one for all of their calls. */
function limitedBy(policy: Policy, max: number, fields: Table, parse: Parse): LimitInCall {
  const known = new Map<string, Policy | undefined>();
  const { plan = "", terms } = policy;
  return {
    max,
    withLimits(limits) {
      const text = withCallLimits(plan, limits);
      if (known.has(text)) return known.get(text);
      const parsed = parse(tableWith(policy, fields, limits));
      const isRead = !("problems" in parsed);
      const limited = isRead ? ofPlan(terms === undefined ? parsed : { ...parsed, terms }, text) : undefined;
      for (const oldest of known.keys()) {
        if (known.size < MAX_LIMITED) break;
        known.delete(oldest);
      }
      known.set(text, limited);
      return limited;
    },
    whyNot(limits) {
      const parsed = parse(tableWith(policy, fields, limits));
      return "problems" in parsed ? parsed.problems.map(({ detail }) => detail).join("; ") : "";
    },
  };
}

/** The table with other limits, by unit. A burst of its own would be of another limit. */
function tableWith({ rules }: Policy, fields: Table, limits: Readonly<Record<string, number>>): Table {
  const limited = (rule: Table, unit: string): Table => {
    if (!Object.hasOwn(limits, unit) || !Object.hasOwn(rule, "limit")) return rule;
    const { burst: _, ...others } = rule;
    return { ...others, limit: limits[unit] };
  };
  const tables = fields["rules"];
  if (!isTable(tables)) return limited(fields, rules[0].unit);
  const each = rules.map(({ name, unit }) => [name, limited(tables[name] as Table, unit)]);
  return { ...fields, rules: Object.fromEntries(each) as Table };
}
