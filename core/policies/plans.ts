/**
 * Plans: what a policy is for the calls that name one, and for those that bring limits of their own.
 *
 * A plan has other figures of the policy's rules, never other rules. So a key keeps its state from plan to plan, as it does
 * when a policy changes at run time: its object decides by the plan of the last call that named one. In any interval no
 * more is admitted than the loosest plan named in it allows.
 *
 * A call without a plan names the plan "", the policy's own figures. What is not decided (a peek, a release) names none,
 * and the key keeps its plan, as it does when a call only looks. A call that waits is decided by the plan that it named
 * (durable-objects/keys/seen-rules.ts).
 */
import { MAX_UNITS } from "../algorithms/algorithm.ts";
import { meant, violation } from "../validation.ts";
import { isTable, type Table, withFigures } from "./changed-tables.ts";
import { withCallLimits } from "./named-plans.ts";
import { NAME, NAME_ALLOWED } from "./policy-fields.ts";
import type { LimitInCall, Policy } from "./policy.ts";

/** Each is parsed when the worker starts. */
const MAX_PLANS = 64;
const PLANS_ALLOWED = `a table of 1 to ${MAX_PLANS} plans by name, as { "pro": { "limit": 1000 } }`;
/** The most policies with limits of calls, for each plan of a policy. */
const MAX_LIMITED = 1_024;

interface Problems {
  readonly problems: readonly string[];
}
type Parse = (fields: Table) => Policy | Problems;

/** Adds the plans of a table to the policy that is parsed from it. @param parse reads a table without plans */
export function withPlans(policy: Policy, given: Table, parse: Parse): Policy | Problems {
  const { plans: tables, limitInCall, ...base } = given;
  if (tables === undefined && limitInCall === undefined) return policy;
  if (limitInCall !== undefined && policy.pool !== undefined)
    return {
      problems: [
        violation(["limitInCall"], limitInCall, "left out with a pool, whose limits are one for all"),
      ],
    };
  const max = maxInCall(limitInCall);
  if (typeof max === "object") return max;
  if (tables !== undefined && !isPlans(tables))
    return { problems: [violation(["plans"], tables, PLANS_ALLOWED)] };
  const problems: string[] = [];
  const plans = new Map<string, Policy>();
  for (const [plan, figures] of [
    ["", {}] as const,
    ...Object.entries((tables ?? {}) as Record<string, Table>),
  ]) {
    const table = plan === "" ? { fields: base } : planTable(base, plan, figures);
    const parsed = "problems" in table ? table : parse(table.fields);
    if ("problems" in parsed)
      problems.push(...parsed.problems.map((text) => (plan === "" ? text : `plans.${plan}: ${text}`)));
    else {
      // Terms are sent with calls of other plans too, and are compared with theirs.
      const { terms } = policy;
      const named = ofPlan(terms === undefined ? parsed : { ...parsed, terms }, plan);
      const fields = "fields" in table ? table.fields : base;
      plans.set(
        plan,
        max === undefined ? named : { ...named, limitInCall: limitedBy(named, max, fields, parse) },
      );
    }
  }
  return problems.length > 0 ? { problems } : { ...policy, plans };
}

function isPlans(tables: unknown): tables is Readonly<Record<string, unknown>> {
  const count = isTable(tables) ? Object.keys(tables).length : 0;
  return count >= 1 && count <= MAX_PLANS;
}

function planTable(base: Table, plan: string, figures: unknown): { readonly fields: Table } | Problems {
  if (!NAME.test(plan)) return { problems: [violation(["its name"], plan, NAME_ALLOWED)] };
  if (!isTable(figures))
    return { problems: [violation([], figures, 'a table of figures, as { "limit": 1000 }')] };
  const merged = withFigures(base, figures, { what: "a plan", ownFields: [] });
  return "problems" in merged ? { problems: merged.problems.map(({ detail }) => detail) } : merged;
}

function maxInCall(given: unknown): number | undefined | Problems {
  if (given === undefined) return undefined;
  const { max, ...strays } = isTable(given) ? given : {};
  const isMax = Number.isInteger(max) && (max as number) >= 1 && (max as number) <= MAX_UNITS;
  if (isMax && Object.keys(strays).length === 0) return max as number;
  const allowed = `a table { max } with an integer from 1 to ${MAX_UNITS}${meant(Object.keys(strays)[0] ?? "", ["max"])}`;
  return { problems: [violation(["limitInCall"], given, allowed)] };
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
      const parsed = parse(withLimits(policy, fields, limits));
      const isRead = !("problems" in parsed);
      const limited = isRead ? ofPlan(terms === undefined ? parsed : { ...parsed, terms }, text) : undefined;
      for (const oldest of known.keys()) {
        if (known.size < MAX_LIMITED) break;
        known.delete(oldest);
      }
      known.set(text, limited);
      return limited;
    },
  };
}

/** The table with other limits, by unit. A burst of its own would be of another limit. */
function withLimits({ rules }: Policy, fields: Table, limits: Readonly<Record<string, number>>): Table {
  const limited = (rule: Table, unit: string): Table => {
    if (!Object.hasOwn(limits, unit)) return rule;
    const { burst: _, ...others } = rule;
    return { ...others, limit: limits[unit] };
  };
  const tables = fields["rules"];
  if (!isTable(tables)) return limited(fields, rules[0].unit);
  const each = rules.map(({ name, unit }) => [name, limited(tables[name] as Table, unit)]);
  return { ...fields, rules: Object.fromEntries(each) as Table };
}
