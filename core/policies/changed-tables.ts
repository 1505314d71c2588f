/** A policy's table with other figures: those of an override, or of a plan. */
import { type AnyAlgorithm, MAX_UNITS } from "../algorithms/algorithm.ts";
import { periodOf } from "../algorithms/windows/calendar.ts";
import { clip, meant, type Violation, violation } from "../violations.ts";
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

/** Where a window begins: periods of the calendar and durations have other values. */
const PLACEMENT = ["timeZone", "align"];

function changedRule(rule: Table, changes: Table): Table {
  const isPeriod = (table: Table) => periodOf(table["window"]) !== undefined;
  const dropped = [
    ...(changes["limit"] === 0 ? NOT_OF_ZERO : []),
    ...(changes["window"] !== undefined && isPeriod(changes) !== isPeriod(rule) ? PLACEMENT : []),
  ];
  const kept = Object.entries(rule).filter(([field]) => !dropped.includes(field));
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
  return withEachRule(base, (rule, figures) => {
    const scaled = unitFieldsOf(rule).flatMap((field): [string, number][] => {
      const value = figures[field];
      if (typeof value !== "number") return [];
      // A limit stays at least 1: only a limit of 0 closes a rule.
      return [[field, Math.min(MAX_UNITS, Math.max(Math.min(1, value), Math.floor(value * by)))]];
    });
    return { ...figures, ...Object.fromEntries(scaled) };
  });
}

/** The table with so many units of a rule, in its plans too. Nothing of it delays a call, or spaces calls. */
export function raised(base: Table, rule: string | undefined, units: number): Table {
  return withEachRule(base, (own, figures, name) => {
    if (name !== rule) return figures;
    // With as much `delay` as `burst` no call is delayed, and `nodelay` would refuse it.
    const { minInterval: _, nodelay: __, ...kept } = figures;
    // What is carried is added to the limit.
    const fields = unitFieldsOf(own).filter((field) => field !== "carry");
    return { ...kept, ...Object.fromEntries(fields.map((field) => [field, units])) };
  });
}

/** @param rule the table that names the algorithm */
function unitFieldsOf(rule: Table): readonly string[] {
  const kinds = Object.entries(algorithmOf(rule)?.fields ?? {});
  return kinds.flatMap(([field, kind]) =>
    ["units", "units?", "count?"].includes(String(kind)) ? [field] : [],
  );
}

/**
 * The table with other figures of its rules and its plans.
 * @param change gets the table that names the algorithm, the figures to change, and the rule's name if there are several
 */
function withEachRule(
  base: Table,
  change: (rule: Table, figures: Table, name: string | undefined) => Table,
): Table {
  const { rules, plans } = base as { readonly rules?: Tables; readonly plans?: unknown };
  const changedIn = (tables: Tables) =>
    Object.fromEntries(
      Object.entries(tables).map(([name, figures]) => [name, change(rules?.[name] ?? {}, figures, name)]),
    );
  const own = rules === undefined ? change(base, base, undefined) : { ...base, rules: changedIn(rules) };
  if (!isTable(plans)) return own;
  const each = Object.entries(plans as Tables).map(([name, plan]) => [
    name,
    rules === undefined
      ? change(base, plan, undefined)
      : { rules: changedIn((plan["rules"] ?? {}) as Tables) },
  ]);
  return { ...own, plans: Object.fromEntries(each) as Table };
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
  return isTable(given) ? given["algorithm"] : undefined;
}
