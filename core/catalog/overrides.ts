/** Overrides: other figures for some keys of a policy. Here they are read, and put into the policy's table. */
import * as v from "valibot";
import { MAX_UNITS } from "../algorithms/algorithm.ts";
import { algorithmOf, parsePolicy } from "../policies/parse-policy.ts";
import { parseInstantMs } from "../policies/policy-fields.ts";
import type { Policy } from "../policies/policy.ts";
import { clip, meant, number, violation, violationsOf, type Violation } from "../validation.ts";
import type { Table } from "./calls.ts";

export type { OverrideFields, Table } from "./calls.ts";

const NOTE_ALLOWED = "text of at most 500 characters";
const EXPIRY_ALLOWED = 'an instant in the future, such as "2027-01-31T12:00:00Z" (RFC 3339)';

/** The fields that are no figures. */
const OWN_FIELDS = {
  multiply: v.optional(number(0.000_001, 1_000_000)),
  blocked: v.optional(v.literal(true, "true, or left out")),
  unlimited: v.optional(v.literal(true, "true, or left out")),
  expiresAt: v.optional(
    v.pipe(
      v.string(EXPIRY_ALLOWED),
      v.check((text) => parseInstantMs(text) !== undefined, EXPIRY_ALLOWED),
    ),
  ),
  note: v.optional(v.pipe(v.string(NOTE_ALLOWED), v.maxLength(500, NOTE_ALLOWED))),
};
const OWN_NAMES = Object.keys(OWN_FIELDS);
const EFFECTS = ["multiply", "blocked", "unlimited"] as const;
/** What a policy is for all of its keys alike: an override cannot change it. */
const SHARED_FIELDS = ["algorithm", "unit"];

/** What an override does to a key. */
export interface ReadOverride {
  readonly effect?: "blocked" | "unlimited";
  readonly endsAtMs?: number;
  /**
   * The policy's table with the figures in it, and the largest there are for `unlimited`. Who is blocked asks no object, so
   * there it is as it was: a limit of 0 would forget what was consumed.
   */
  readonly fields: Table;
  /** The table as it was read. Absent: it has not been. */
  readonly policy?: Policy;
}

/**
 * Reads an override of a policy.
 *
 * @param base the policy's table
 * @returns what is wrong with it, if anything is
 */
export function readOverride(
  name: string,
  base: Table,
  given: unknown,
): ReadOverride | { readonly problems: readonly Violation[] } {
  if (typeof given !== "object" || given === null || Array.isArray(given))
    return { problems: [{ path: [], detail: violation([], given, OVERRIDE_ALLOWED) }] };
  const own = Object.fromEntries(Object.entries(given).filter(([field]) => Object.hasOwn(OWN_FIELDS, field)));
  const figures = Object.fromEntries(
    Object.entries(given).filter(([field]) => !Object.hasOwn(OWN_FIELDS, field)),
  );
  const parsed = v.safeParse(v.object(OWN_FIELDS), own);
  if (!parsed.success) return { problems: violationsOf(parsed.issues) };
  const { multiply, blocked, unlimited, expiresAt } = parsed.output;
  const effects = EFFECTS.filter((field) => own[field] !== undefined);
  const kinds = [
    ...effects,
    ...(Object.keys(figures).length > 0 ? [clip(Object.keys(figures).join(", "))] : []),
  ];
  if (kinds.length !== 1) {
    // What is next to a word such as `blocked` may be no figure at all, but `expiresAt` with a wrong letter.
    const near = Object.keys(figures).map((field) => meant(field, OWN_NAMES));
    const found = kinds.length === 0 ? "nothing" : kinds.join(" and ") + (near.find(Boolean) ?? "");
    return { problems: [{ path: [], detail: `the override says ${found}: must be ${OVERRIDE_ALLOWED}` }] };
  }
  const endsAtMs = expiresAt === undefined ? undefined : parseInstantMs(expiresAt);
  const ends = endsAtMs === undefined ? {} : { endsAtMs };
  if (blocked === true) return { effect: "blocked", ...ends, fields: base };
  if (unlimited === true) return { effect: "unlimited", ...ends, fields: largest(name, base) };
  const fields = multiply === undefined ? merged(base, figures) : multiplied(base, multiply);
  if (isProblems(fields)) return { problems: fields };
  const policy = parsePolicy(name, fields);
  return "problems" in policy ? { problems: violationsIn(policy) } : { ...ends, fields, policy };
}

const OVERRIDE_ALLOWED =
  'figures of the policy, as { "limit": 1000 }, or one of { "multiply": 10 }, { "blocked": true } and { "unlimited": true }, each with expiresAt and note if wanted';

/** The problems of a policy's table; none: it is allowed. */
export function problemsOf(name: string, fields: Table): Violation[] {
  const policy = parsePolicy(name, fields);
  return "problems" in policy ? violationsIn(policy) : [];
}

function violationsIn({ problems }: { readonly problems: readonly string[] }): Violation[] {
  return problems.map((detail) => ({ path: pathIn(detail), detail }));
}

/** The field that a sentence about a table begins with. */
function pathIn(detail: string): string[] {
  const field = /^(?<field>[\w.-]+) (?:is|are) /.exec(detail)?.groups?.["field"];
  return field === undefined ? [] : field.split(".");
}

function isProblems(read: Table | readonly Violation[]): read is readonly Violation[] {
  return Array.isArray(read);
}

/** The table with other figures. With several rules they are given by rule, as `{ rules: { tokens: { limit } } }`. */
function merged(base: Table, figures: Table): Table | readonly Violation[] {
  const rules = base["rules"] as Readonly<Record<string, Table>> | undefined;
  if (rules === undefined) {
    const problems = figureProblems(base, figures, []);
    return problems.length > 0 ? problems : { ...base, ...figures };
  }
  const { rules: given, ...strays } = figures;
  const names = Object.keys(rules);
  const wanted = `by rule, as { "rules": { ${JSON.stringify(names[0])}: { "limit": 1000 } } } (there are ${names.join(", ")})`;
  const isTable = typeof given === "object" && given !== null && !Array.isArray(given);
  if (Object.keys(strays).length > 0 || !isTable) {
    const stray = Object.keys(strays)[0] ?? "rules";
    const near = stray === "rules" ? "" : meant(stray, ["rules", ...OWN_NAMES]);
    return [{ path: [stray], detail: violation([stray], figures[stray], `given ${wanted}`) + near }];
  }
  const problems = Object.entries(given).flatMap(([rule, table]): Violation[] => {
    const path = ["rules", rule];
    const own = Object.hasOwn(rules, rule) ? rules[rule] : undefined;
    if (own === undefined)
      return [
        {
          path,
          detail: `${clip(rule)} is not a rule of this policy: there are ${names.join(", ")}${meant(rule, names)}`,
        },
      ];
    if (typeof table !== "object" || table === null || Array.isArray(table))
      return [{ path, detail: violation(path, table, 'a table of figures, as { "limit": 1000 }') }];
    return figureProblems(own, table as Table, path);
  });
  if (problems.length > 0) return problems;
  const changed = Object.entries(given).map(([rule, table]) => [
    rule,
    { ...rules[rule], ...(table as Table) },
  ]);
  return { ...base, rules: { ...rules, ...Object.fromEntries(changed) } };
}

/** Figures that the rule's algorithm does not have, or that all keys of a policy share. Beside a lone rule's are the others. */
function figureProblems(rule: Table, figures: Table, path: readonly string[]): Violation[] {
  const known = [...Object.keys(algorithmOf(rule)?.fields ?? {}), ...(path.length === 0 ? OWN_NAMES : [])];
  return Object.keys(figures).flatMap((field): Violation[] => {
    if (known.includes(field)) return [];
    const near = meant(field, known);
    const why =
      SHARED_FIELDS.includes(field) || Object.hasOwn(rule, field)
        ? "is the same for all keys of a policy"
        : "is no figure of this rule";
    return [
      {
        path: [...path, field],
        detail: `${clip([...path, field].join("."))} ${why}: an override may have ${known.join(", ")}${near}`,
      },
    ];
  });
}

/** The table with every number of units so many times as large, rounded down. */
function multiplied(base: Table, by: number): Table {
  return eachRule(base, (rule) => multipliedRule(rule, by));
}

/** The table with the largest numbers of units that its algorithms can count. */
function largest(name: string, base: Table): Table {
  for (let by = MAX_UNITS; by > 1; by /= 10) {
    const fields = multiplied(base, by);
    if (problemsOf(name, fields).length === 0) return fields;
  }
  return base;
}

/** The table with each of its rules changed. */
function eachRule(base: Table, change: (rule: Table) => Table): Table {
  const rules = base["rules"] as Readonly<Record<string, Table>> | undefined;
  if (rules === undefined) return change(base);
  const changed = Object.entries(rules).map(([rule, table]) => [rule, change(table)]);
  return { ...base, rules: Object.fromEntries(changed) };
}

function multipliedRule(rule: Table, by: number): Table {
  const kinds = algorithmOf(rule)?.fields ?? {};
  const scaled = Object.entries(rule).map(([field, value]) => {
    const kind = kinds[field];
    const isUnits = kind === "units" || kind === "units?" || kind === "count?";
    // A limit stays one: to close a rule is said by name.
    const units = (given: number) =>
      Math.min(MAX_UNITS, Math.max(Math.min(1, given), Math.floor(given * by)));
    return [field, isUnits && typeof value === "number" ? units(value) : value];
  });
  return Object.fromEntries(scaled) as Table;
}
