/** JSON as a tree with repeated fields, huge numbers and invalid text, and the ways to spoil a valid one. */
import { pick, whole } from "../random.ts";
import { ODD_FIELDS, ODD_NUMBERS, ODD_TEXTS } from "./odd-values.ts";

type Random = () => number;
export type Json = Verbatim | Table | readonly Json[] | string | number | boolean | null;

/** Text that is copied into the body. */
export class Verbatim {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** An object. Its fields have an order, and a name may come twice. */
export class Table {
  readonly fields: readonly (readonly [name: string, value: Json])[];

  constructor(fields: readonly (readonly [name: string, value: Json])[]) {
    this.fields = fields;
  }
}

export function textOf(json: Json): string {
  if (json instanceof Verbatim) return json.text;
  if (json instanceof Table)
    return `{${json.fields.map(([name, value]) => `${JSON.stringify(name)}:${textOf(value)}`).join(",")}}`;
  if (isList(json)) return `[${json.map(textOf).join(",")}]`;
  return JSON.stringify(json);
}

/** The JavaScript value of it, as far as there is one. */
export function valueOf(json: Json): unknown {
  if (json instanceof Verbatim)
    return NOT_IN_JSON.has(json.text) ? NOT_IN_JSON.get(json.text) : Number(json.text);
  if (isList(json)) return json.map(valueOf);
  if (!(json instanceof Table)) return json;
  // Defined and not assigned: `__proto__` is a field like any other.
  const field = (value: unknown) => ({ value, enumerable: true, configurable: true, writable: true });
  return Object.defineProperties(
    {},
    Object.fromEntries(json.fields.map(([name, value]) => [name, field(valueOf(value))])),
  );
}

const NOT_IN_JSON = new Map<string, unknown>([
  ["undefined", undefined],
  ["1n", 1n],
  ["'a'", "a"],
]);

/** The same tree with a change somewhere in it. */
export function spoiled(random: Random, json: Json): Json {
  if (json instanceof Table && json.fields.length > 0 && random() < 0.85) return spoiledTable(random, json);
  if (isList(json) && json.length > 0 && random() < 0.7) {
    const at = whole(random, json.length);
    if (random() < 0.1) return Array.from({ length: 1 + whole(random, 40) }, () => json[at] as Json);
    return json.map((item, index) => (index === at ? spoiled(random, item) : item));
  }
  return random() < 0.2 ? (Array.isArray(json) ? new Table([["0", json]]) : [json]) : oddValue(random);
}

function spoiledTable(random: Random, { fields }: Table): Table {
  const at = whole(random, fields.length);
  const [name, value] = fields[at] as readonly [string, Json];
  const kind = random();
  if (kind < 0.6)
    return new Table(fields.map((field, index) => (index === at ? [name, spoiled(random, value)] : field)));
  if (kind < 0.7) return new Table(fields.filter((_, index) => index !== at));
  if (kind < 0.78) return new Table([...fields, [name, random() < 0.5 ? value : oddValue(random)]]);
  if (kind < 0.9) return new Table([[pick(random, ODD_FIELDS), oddValue(random)], ...fields]);
  if (kind < 0.97)
    return new Table(
      fields.map((field, index) => (index === at ? [pick(random, ODD_FIELDS), value] : field)),
    );
  const many = 1 + whole(random, 900);
  return new Table([
    ...fields,
    ...Array.from({ length: many }, (_, each): [string, Json] => [`f${each}`, 1]),
  ]);
}

export function oddValue(random: Random, depth = 0): Json {
  const kind = random();
  if (kind < 0.4) return pick(random, ODD_TEXTS);
  if (kind < 0.7) return new Verbatim(pick(random, ODD_NUMBERS));
  if (kind < 0.82) return pick<Json>(random, [null, true, false, [], new Table([])]);
  if (kind < 0.85) return new Verbatim(pick(random, NOT_JSON));
  if (kind < 0.87) return nested(random);
  if (depth > 3) return 1;
  if (kind < 0.93) return [oddValue(random, depth + 1), oddValue(random, depth + 1)];
  return new Table([[pick(random, ODD_FIELDS), oddValue(random, depth + 1)]]);
}

const NOT_JSON = [
  "NaN",
  "undefined",
  "Infinity",
  "01",
  "1.",
  ".5",
  "+1",
  "'a'",
  '"\\u12"',
  '"\t"',
  "1n",
  "//",
  "tru",
];

function nested(random: Random): Json {
  const levels = whole(random, 3_000);
  const [open, close] = pick(random, [
    ["[", "]"],
    ['{"a":', "}"],
    ['{"__proto__":', "}"],
  ] as const);
  return new Verbatim(open.repeat(levels) + "1" + close.repeat(levels));
}

function isList(json: Json): json is readonly Json[] {
  return Array.isArray(json);
}
