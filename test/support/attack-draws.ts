/**
 * The calls of an attacker who draws from all operations of the OpenAPI document. A round repeats one
 * operation. One part of its call, the round's subject, is ever new, as large as possible, or odd, to find
 * whatever grows with a part or trusts it.
 */
import { claimId } from "../../core/protocol/names.ts";
import { Operations, type OpenApi, type Operation, type Schema } from "./fuzz/openapi-operations.ts";
import { pick } from "./random.ts";

type Random = () => number;

/** The keys that the weak tokens may use begin with this. */
export const PREFIX = "10.1.";
/** The neighbour's key. No answer to an attacker may name it. */
export const NEIGHBOUR_KEY = "10.2.0.1";
export const NEIGHBOUR_SECRET = "of-the-neighbour";
/** A key that both use. */
export const HOT_KEY = `${PREFIX}hot`;
export const ATTACKED_POLICIES = ["api", "address", "hot", "apart", "slots", "mutex", "busy"] as const;
/** The attackers: tokens with few rights, no token, and `author`, who writes any document in dry runs. */
export type Weak = "limiter" | "reserver" | "teller" | "manager" | "nobody" | "author";

/** Operations on all keys and callers: no token with a prefix may call them. */
export const OF_ALL = new Set([
  "metrics",
  "history",
  "topGroups",
  "audit",
  "getCatalog",
  "putCatalog",
  "listTokens",
  "issueToken",
  "revokeToken",
  "putPolicy",
  "deletePolicy",
  "putCandidate",
  "deleteCandidate",
  "promoteCandidate",
]);
/** Those with a possibly long body, which is not read before the right to send it is checked. */
export const RIGHTS_FIRST = new Set(["putCatalog", "issueToken"]);

const KINDS = ["new", "most", "odd"] as const;
type Kind = "same" | (typeof KINDS)[number];

export interface Round {
  readonly operation: Operation;
  readonly part: string;
  readonly kind: Kind;
  readonly token: Weak;
  readonly policy: string;
}

export interface Only {
  readonly operations: readonly string[];
  readonly parts: readonly string[];
}

/** All rounds, in the order of the seed. */
export async function roundsOf(
  url: string,
  random: Random,
  only?: Only,
): Promise<{ readonly operations: Operations; readonly rounds: readonly Round[] }> {
  const document = (await (await fetch(`${url}/openapi.json`)).json()) as OpenApi;
  const operations = new Operations(document, { isWhole: true });
  const rounds = operations.all
    // A socket call does not end with its answer.
    .filter(({ id }) => id !== "acquireSocket" && (only?.operations.includes(id) ?? true))
    .flatMap((operation) =>
      ["none", ...partsOf(operations, operation)]
        .filter((part) => only?.parts.includes(part) ?? true)
        .flatMap((part) =>
          (part === "none" ? (["same"] as const) : KINDS).flatMap((kind) =>
            policiesOf(random, operation, part, kind).flatMap((policy) =>
              tokensOf(random, operation).map((token) => ({ operation, part, kind, policy, token })),
            ),
          ),
        ),
    );
  return { operations, rounds: shuffled(random, rounds) };
}

/** One that has the right, if any weak token has; sometimes one that has not, too. */
function tokensOf(random: Random, { id, path }: Operation): Weak[] {
  const other = random() < 0.15 ? [pick(random, ["nobody", "limiter", "teller"] as const)] : [];
  if (id === "putCatalog") return ["author", "manager", ...other];
  if (id === "reserve") return ["reserver", ...other];
  if (OF_ALL.has(id) || id === "topKeys") return [pick(random, ["manager", "teller"] as const), ...other];
  return [path.startsWith("/v1/policies") ? "manager" : "limiter", ...other];
}

/** The policies of a round's calls: a new part meets each of them in a round of its own. */
function policiesOf(
  random: Random,
  { id, path, body }: Operation,
  part: string,
  kind: Kind,
): readonly string[] {
  if (part === "utilization" || part === "priority") return ["busy"];
  if (part === "pattern") return ["address", "api"];
  if (path.startsWith("/v1/leases") && body !== undefined) return ["slots"];
  if (id === "reserve") return ["hot"];
  // Holds may have all units of a key for as long as they say, and then isolates decide nothing there.
  if (id === "hold")
    return [
      pick(
        random,
        ATTACKED_POLICIES.filter((policy) => policy !== "hot"),
      ),
    ];
  const isLimit = id === "limit" && kind === "new" && (part === "key" || part === "idempotencyKey");
  return isLimit ? ATTACKED_POLICIES : [pick(random, ATTACKED_POLICIES)];
}

/** The query, and each field of the path, the query and the body by its name. */
function partsOf(operations: Operations, { path, query, body }: Operation): string[] {
  const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name = ""]) => name);
  const names = new Set([...inPath, "query", ...query.map(({ name }) => name)]);
  if (body !== undefined) for (const name of fieldsOf(operations, body)) names.add(name);
  return [...names];
}

function fieldsOf(operations: Operations, given: Schema): string[] {
  const { properties = {} } = operations.resolved(given);
  const inner = Object.keys(properties);
  return inner.includes("calls") ? [...inner, "holder", "turn", "kept", "wanted", "key"] : inner;
}

function shuffled<Item>(random: Random, items: readonly Item[]): Item[] {
  return items
    .map((item) => ({ item, place: random() }))
    .toSorted((a, b) => a.place - b.place)
    .map(({ item }) => item);
}

interface Call {
  readonly method: string;
  readonly path: string;
  readonly body?: string;
}

export class Learned {
  /** Ids of holds and leases, the latest ones. */
  readonly ids: string[] = [];
  /** The versions of policies that a client of theirs would know. */
  readonly versions: Record<string, string> = {};

  #turn = 0;

  /** Rises from one round to the next, too: holders may have the same names there. */
  nextTurn(): number {
    this.#turn += 1;
    return this.#turn;
  }

  read(text: string): void {
    for (const [, id = ""] of text.matchAll(/"id":"([^"]+)"/g)) this.ids.push(id);
    if (this.ids.length > MAX_IDS) this.ids.splice(0, this.ids.length - MAX_IDS);
    for (const [, policy = "", version = ""] of text.matchAll(/"(\w+)":\{"version":"(\w+)"/g))
      this.versions[policy] = version;
  }
}

const MAX_IDS = 256;

/** Characters of a long body. */
const LONG = 10_000;

export class Drawer {
  readonly #operations: Operations;
  readonly #round: Round;
  readonly #random: Random;
  readonly #policy: string;
  /** Optional fields that this round has. */
  readonly #companions: readonly string[];
  readonly #learned: Learned;
  #long: string | undefined;

  constructor(operations: Operations, round: Round, random: Random, learned: Learned) {
    this.#learned = learned;
    this.#operations = operations;
    this.#round = round;
    this.#random = random;
    this.#policy = round.policy;
    const ofReserve = round.operation.id === "reserve" ? ["known"] : [];
    this.#companions = this.#policy === "busy" ? ["utilization", "priority"] : ofReserve;
  }

  call(number: number): Call {
    const { operation, part, kind } = this.#round;
    const path = operation.path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
      encodeURIComponent(String(this.#part(name, { type: "string" }, number))),
    );
    const fields = operation.query
      .filter(({ name, required = false }) => required || name === part || isAsked(operation, name))
      .map(({ name, schema }) => `${name}=${encodeURIComponent(String(this.#part(name, schema, number)))}`);
    if (part === "query" && kind !== "same")
      fields.push(...Array.from({ length: kind === "most" ? 9_000 : 30 }, (_, each) => each.toString(36)));
    const { body } = operation;
    return {
      method: operation.method,
      path: fields.length === 0 ? path : `${path}?${fields.join("&")}`,
      ...(body !== undefined && { body: this.#bodyOf(body, number) }),
    };
  }

  /** Makes a long body once: that takes the attacker's processor, which the neighbour uses too. */
  #bodyOf(schema: Schema, number: number): string {
    const text = this.#long ?? JSON.stringify(this.#value(schema, "", number));
    if (text.length > LONG) this.#long = text;
    return text;
  }

  #part(name: string, schema: Schema, number: number): unknown {
    const kind = name === this.#round.part ? this.#round.kind : "same";
    return this.#known(name, kind, number) ?? this.#value(schema, name, number);
  }

  /** A field's value by its name; `undefined`: by its schema. */
  #known(name: string, kind: Kind, number: number): unknown {
    const of = (same: unknown, fresh: unknown, most: unknown, odd: unknown = same) =>
      ({ same, new: fresh, most, odd })[kind];
    switch (name) {
      case "policy":
        return of(this.#policy, `none-${number}`, "p".repeat(4_000), "__proto__");
      case "key":
        return of(this.#key(), this.#freshKey(number), `${PREFIX}${"9".repeat(500)}`, NEIGHBOUR_KEY);
      case "prefix":
        return of(PREFIX, this.#freshKey(number), PREFIX + "9".repeat(400), "10.");
      case "pattern":
        return of(
          `${PREFIX}0.0/16`,
          this.#pattern(number),
          `${PREFIX}${"*9".repeat(200)}`,
          this.#strayPattern(number),
        );
      case "id":
        return of(
          this.#given() ?? this.#forged(1),
          this.#forged(number),
          "lease_" + "A".repeat(4_000),
          "hold_.",
        );
      case "idempotencyKey":
      case "charge":
        return of("i", `i${number}`, `${number}`.padStart(256, "i"), NEIGHBOUR_SECRET);
      case "name":
        return of("issued", `issued-${number}`, "n".repeat(15_000), "neighbour");
      case "priority":
        return of("low", `priority-${number}`, "p".repeat(4_000), "__proto__");
      case "utilization":
        return 1;
      case "dryRun":
        return of("true", "true", "t".repeat(4_000), "__proto__");
      case "holder":
        return of(`${this.#round.part}${number % 40}`, `h${number}`, "h".repeat(64), "h");
      case "turn":
        return of(this.#learned.nextTurn(), number, Number.MAX_SAFE_INTEGER, 1);
      case "kept":
        return of(0, number, 1e9, 5);
      case "wanted":
        // Units last a second: on a slow machine, too, many messages of one second hold a part of the key.
        return of(1_000, 1_000 + number, 1e9, 0);
      default:
        return WHOLE[name]?.(this, kind, number);
    }
  }

  #key(): string {
    return this.#policy === "address" ? `${PREFIX}0.1` : this.#policy === "hot" ? HOT_KEY : `${PREFIX}one`;
  }

  #freshKey(number: number): string {
    // Each key of a policy that sheds comes several times: a first call sheds nothing.
    const each = this.#policy === "busy" ? number % 1_100 : number;
    return `${PREFIX}${each >> 8}.${each & 255}`;
  }

  get #claim(): "hold" | "lease" {
    return this.#round.operation.path.includes("hold") ? "hold" : "lease";
  }

  #given(): string | undefined {
    const { ids } = this.#learned;
    const place = ids.findLastIndex((id) => id.startsWith(this.#claim));
    return place < 0 ? undefined : ids.splice(place, 1)[0];
  }

  #forged(number: number): string {
    const kind = this.#claim;
    const place = { policy: kind === "hold" ? "apart" : "mutex", key: this.#freshKey(number) };
    return claimId(kind, place, String(number).padStart(22, "A"));
  }

  #pattern(number: number): string {
    if (this.#policy === "address") return `${PREFIX}${number & 255}.0/${16 + (number % 17)}`;
    return `${PREFIX}${"x".repeat(1 + (number % 400))}*`;
  }

  /** Within the prefix as typed, but not as meant; or not at all. */
  #strayPattern(number: number): string {
    return pick(this.#random, [
      `${PREFIX}0.0/${number % 16}`,
      "10.*",
      "0.0.0.0/0",
      "*",
      NEIGHBOUR_KEY,
      "10.1*",
    ]);
  }

  get versions(): object {
    return this.#learned.versions;
  }

  /** The calls of a message that holds units. */
  holding(number: number): unknown {
    const part = (name: string) => this.#part(name, {}, number);
    const rules = { [this.#policy]: { used: 0, kept: part("kept"), wanted: part("wanted") } };
    const place = { policy: this.#policy, key: part("key"), cost: 0 };
    const reserve = {
      ...place,
      holder: part("holder"),
      turn: part("turn"),
      ttlMs: 1_000,
      isShort: false,
      rules,
    };
    return [{ reserve }];
  }

  /** A document with this number of entries. */
  document(kind: Kind, number: number): unknown {
    const count = kind === "most" ? 10_001 : 3;
    const entries = Array.from({ length: count }, (_, each) => [
      `${PREFIX}${each}.${number}*`,
      { limit: 1 + each },
    ]);
    const entry = { sha256: "0".repeat(64), scopes: ["limit"] };
    const tokens =
      kind === "odd"
        ? { harmless: { name: "neighbour", ...entry } }
        : kind === "new"
          ? { ["n".repeat(129 + (number % 1_000))]: entry }
          : { harmless: entry };
    return { policies: {}, overrides: { api: Object.fromEntries(entries) }, tokens };
  }

  #value(given: Schema, name: string, number: number): unknown {
    const schema = this.#operations.resolved(given);
    if (this.#round.operation.id === "putCatalog" && name === "")
      return this.document(this.#round.part === "query" ? "same" : this.#round.kind, number);
    if (this.#round.operation.id === "putOverride" && name === "") return { limit: 1 + (number % 9) };
    const choice = (schema.anyOf ?? schema.oneOf)?.[0];
    if (choice !== undefined) return this.#value(choice, name, number);
    if (schema.const !== undefined) return schema.const;
    if (schema.enum !== undefined) return pick(this.#random, schema.enum);
    const isSubject = name === this.#round.part && name !== "";
    const kind = isSubject ? this.#round.kind : "same";
    const many = kind === "most" ? 4_000 : 1;
    switch (schema.type) {
      case "object":
        return Object.fromEntries(
          Object.entries(schema.properties ?? {})
            .filter(
              ([field]) =>
                (schema.required ?? []).includes(field) ||
                field === this.#round.part ||
                this.#companions.includes(field),
            )
            .map(([field, inner]) => [field, this.#part(field, inner, number)]),
        );
      case "array":
        return Array.from({ length: many }, () => this.#value(schema.items ?? {}, "", number));
      case "integer":
      case "number":
        return { same: Math.max(1, schema.minimum ?? 1), new: number, most: 1e9, odd: -1 }[kind];
      case "boolean":
        return kind === "odd";
      case undefined:
      default:
        return { same: "1s", new: `text-${number}`, most: "t".repeat(10_000), odd: "__proto__" }[kind];
    }
  }
}

/** The author of any document only makes dry runs. */
const isAsked = ({ id }: Operation, name: string) => id === "putCatalog" && name === "dryRun";

/** Fields that are not drawn by their schema, which has only tables there. */
const WHOLE: Readonly<Record<string, (drawer: Drawer, kind: Kind, number: number) => unknown>> = {
  calls: (drawer, _, number) => drawer.holding(number),
  protocol: () => 1,
  known: (drawer) => drawer.versions,
};
