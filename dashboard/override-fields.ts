/** What the form of an override has, and the body that it makes. */
import type { Override, RuleDescription } from "./answers.ts";
import { overrideFields, wireDuration } from "./words.ts";

export const EFFECTS = {
  limits: "own limits",
  multiply: "all limits multiplied",
  blocked: "blocked: all calls denied",
  unlimited: "unlimited: no call denied",
} as const;
export type Effect = keyof typeof EFFECTS;
/** Entered values by the address of their field, as in a problem: `/limit`, `/rules/tokens/limit`. */
export type Entered = Readonly<Record<string, string>>;

interface Field {
  readonly pointer: string;
  readonly name: string;
  /** The policy's own value. */
  readonly now: string;
}

export function effectOf(override: Override): Effect {
  if (override.blocked === true) return "blocked";
  if (override.unlimited === true) return "unlimited";
  return override.multiply === undefined ? "limits" : "multiply";
}

const BESIDE: ReadonlySet<string> = new Set([
  "startsAt",
  "expiresAt",
  "note",
  "blocked",
  "unlimited",
  "multiply",
]);

/** The values of an override. */
export function enteredIn(override: Override): Entered {
  const entered: Record<string, string> = {};
  const enter = (table: object, at: string) => {
    for (const [name, value] of Object.entries(table) as [string, unknown][])
      if (typeof value === "object" && value !== null) enter(value, `${at}/${name}`);
      else entered[`${at}/${name}`] = String(value);
  };
  enter(
    Object.fromEntries(Object.entries(overrideFields(override)).filter(([name]) => !BESIDE.has(name))),
    "",
  );
  return entered;
}

/** The body with what was entered: numbers, `true` and `false` are what they seem. */
export function limitsOf(entered: Entered): Readonly<Record<string, unknown>> {
  const body: Record<string, unknown> = {};
  for (const [pointer, text] of Object.entries(entered)) {
    if (text.trim() === "") continue;
    const names = pointer.split("/").slice(1);
    const last = names.pop() ?? "";
    let table = body;
    for (const name of names) table = (table[name] ??= {}) as Record<string, unknown>;
    table[last] = valueOf(text.trim());
  }
  return body;
}

/** What a rule has beside its algorithm's fields, or cannot have for one key. */
const NOT_OWN: ReadonlySet<string> = new Set(["name", "algorithm", "unit", "capacity"]);

function valueOf(text: string): string | number | boolean {
  if (text === "true" || text === "false") return text === "true";
  return Number.isNaN(Number(text)) ? text : Number(text);
}

/** By rule ("": the policy has no named rules): the fields of its algorithm, and others that the override has. */
export function fieldsOf(
  policy: string,
  rules: readonly RuleDescription[],
  entered: Entered,
): readonly (readonly [string, readonly Field[]])[] {
  return rules.map((described) => {
    const rule = described.name;
    const isAlone = rules.length === 1 && rule === policy;
    const at = isAlone ? "" : `/rules/${rule}`;
    const values = Object.entries(described).filter(([field]) => !NOT_OWN.has(field));
    const own = values.map(([field, value]) => {
      const isDuration = field.endsWith("Ms") && typeof value === "number";
      const name = isDuration ? field.slice(0, -"Ms".length) : field;
      return { name, pointer: `${at}/${name}`, now: isDuration ? wireDuration(value) : String(value) };
    });
    const known = new Set(own.map(({ pointer }) => pointer));
    const others = Object.keys(entered)
      .filter((pointer) => pointer.startsWith(`${at}/`) && !known.has(pointer))
      .map((pointer) => ({ name: pointer.slice(at.length + 1), pointer, now: "" }));
    return [isAlone ? "" : rule, [...own, ...others]] as const;
  });
}
