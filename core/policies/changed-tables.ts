import { MAX_UNITS } from "../algorithms/algorithm.ts";
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
/** A policy's table with other figures: those of an override, or of a plan. */
import { clip, meant, violation, type Violation } from "../validation.ts";
import { algorithms } from "./algorithms.ts";

export type Table = Readonly<Record<string, unknown>>;
export type Problems = Readonly<Record<"problems", readonly Violation[]>>;
type Tables = Readonly<Record<string, Table>>;

/** Who changes the figures, for error messages. */
interface Changing {
  /** "an override" or "a plan". */
  readonly what: string;
  /** Its fields that are no figures of the policy. */
  readonly ownFields: readonly string[];
}

/** Fields that all keys of a policy share. */
const SHARED_FIELDS = ["algorithm", "unit"];

export function isTable(value: unknown): value is Table {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function problem(path: readonly string[], detail: string): Problems {
  return { problems: [{ path, detail }] };
}

/** The table with changed figures of its rules. Several rules are changed by `{ rules: { tokens: { limit } } }`. */
export function withFigures(
  base: Table,
  changes: Table,
  { what, ownFields }: Changing,
): { readonly fields: Table } | Problems {
  const rules = base["rules"] as Tables | undefined;
  if (rules === undefined) {
    const problems = figureProblems(base, changes, [], { what, ownFields });
    return problems.length > 0 ? { problems } : { fields: changedRule(base, changes) };
  }
  const { rules: given, ...strays } = changes;
  const names = Object.keys(rules);
  if (Object.keys(strays).length > 0 || !isTable(given)) {
    const stray = Object.keys(strays)[0] ?? "rules";
    const near = stray === "rules" ? "" : meant(stray, ["rules", ...ownFields]);
    const wanted = `given by rule, as { "rules": { ${JSON.stringify(names[0])}: { "limit": 1000 } } } (there are ${names.join(", ")})`;
    return problem([stray], violation([stray], changes[stray], wanted) + near);
  }
  const problems = Object.entries(given).flatMap(([rule, table]): readonly Violation[] => {
    const path = ["rules", rule];
    const own = Object.hasOwn(rules, rule) ? rules[rule] : undefined;
    if (own === undefined) {
      const known = `there are ${names.join(", ")}${meant(rule, names)}`;
      return problem(path, `${clip(path.join("."))} is not a rule of this policy: ${known}`).problems;
    }
    if (isTable(table)) return figureProblems(own, table, path, { what, ownFields });
    return problem(path, violation(path, table, 'a table of figures, as { "limit": 1000 }')).problems;
  });
  if (problems.length > 0) return { problems };
  const changed = Object.entries(given as Tables);
  const merged = Object.fromEntries(
    changed.map(([rule, table]) => [rule, changedRule(rules[rule] ?? {}, table)]),
  );
  return { fields: { ...base, rules: { ...rules, ...merged } } };
}

/** Figures that a limit of 0 has not: nothing passes at all. */
export const NOT_OF_ZERO: readonly string[] = ["burst", "carry", "initial"];

function changedRule(rule: Table, changes: Table): Table {
  if (changes["limit"] !== 0) return { ...rule, ...changes };
  const kept = Object.entries(rule).filter(([field]) => !NOT_OF_ZERO.includes(field));
  return { ...Object.fromEntries(kept), ...changes };
}

/** Fields that the rule's algorithm lacks, or that all keys of a policy share. */
function figureProblems(
  rule: Table,
  changes: Table,
  path: readonly string[],
  { what, ownFields }: Changing,
): Violation[] {
  const known = [...Object.keys(algorithmOf(rule)?.fields ?? {}), ...(path.length === 0 ? ownFields : [])];
  const strays = Object.keys(changes).filter((field) => !known.includes(field));
  return strays.map((field) => {
    const why =
      SHARED_FIELDS.includes(field) || Object.hasOwn(rule, field)
        ? "is the same for all keys of a policy"
        : "is no figure of this rule";
    const may = known.length === 0 ? "cannot change it" : `may have ${known.join(", ")}`;
    const detail = `${clip([...path, field].join("."))} ${why}: ${what} ${may}${meant(field, known)}`;
    return { path: [...path, field], detail };
  });
}

/** The table with all of its numbers of units multiplied, those of its plans too. */
export function multiplied(base: Table, by: number): Table {
  const rules = base["rules"] as Tables | undefined;
  const own =
    rules === undefined
      ? multipliedRule(base, base, by)
      : { ...base, rules: multipliedRules(rules, rules, by) };
  const plans = base["plans"];
  if (!isTable(plans)) return own;
  const each = Object.entries(plans as Tables).map(([name, plan]) => {
    const named = plan["rules"] as Tables | undefined;
    const figures =
      rules === undefined
        ? multipliedRule(base, plan, by)
        : { rules: multipliedRules(rules, named ?? {}, by) };
    return [name, figures];
  });
  return { ...own, plans: Object.fromEntries(each) as Table };
}

function multipliedRules(rules: Tables, tables: Tables, by: number): Table {
  const changed = Object.entries(tables).map(([rule, table]) => [
    rule,
    multipliedRule(rules[rule] ?? {}, table, by),
  ]);
  return Object.fromEntries(changed) as Table;
}

/** @param rule the table that names the algorithm */
function multipliedRule(rule: Table, figures: Table, by: number): Table {
  const kinds = algorithmOf(rule)?.fields ?? {};
  const scaled = Object.entries(figures).map(([field, value]) => {
    const kind = kinds[field];
    const isUnits = ["units", "units?", "count?"].some((each) => each === kind);
    if (!isUnits || typeof value !== "number") return [field, value];
    // A limit stays at least 1: only a limit of 0 closes a rule.
    return [field, Math.min(MAX_UNITS, Math.max(Math.min(1, value), Math.floor(value * by)))];
  });
  return Object.fromEntries(scaled) as Table;
}

/** The plans of a table without the figures of an override, which come before theirs. */
export function plansWithout({ plans }: Table, changes: Table): { readonly plans?: Table } {
  if (!isTable(plans)) return {};
  const each = Object.entries(plans as Tables).map(([name, plan]) => [name, omit(plan, changes)]);
  return { plans: Object.fromEntries(each) as Table };
}

function omit(plan: Table, changes: Table): Table {
  const { rules, ...figures } = plan;
  if (!isTable(rules)) return without(figures, changes);
  const changed = (changes["rules"] ?? {}) as Tables;
  const kept = Object.entries(rules as Tables).map(([rule, its]) => [rule, without(its, changed[rule])]);
  return { rules: Object.fromEntries(kept) as Table };
}

/** A plan's burst and what it carries belong to its limit. */
function without(figures: Table, changes: Table = {}): Table {
  const gone = [...Object.keys(changes), ...(Object.hasOwn(changes, "limit") ? ["burst", "carry"] : [])];
  return Object.fromEntries(Object.entries(figures).filter(([field]) => !gone.includes(field)));
}

/** The algorithm that a rule's table names. */
export function algorithmOf(given: unknown): AnyAlgorithm | undefined {
  const name = algorithmNameOf(given);
  return typeof name === "string" ? algorithms.get(name) : undefined;
}

export function algorithmNameOf(given: unknown): unknown {
  return typeof given === "object" && given !== null && "algorithm" in given ? given.algorithm : undefined;
}
