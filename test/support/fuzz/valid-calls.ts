/** Values that a call accepts, drawn from its schema, or by the field's name where the schema is too wide. */
import { keyCursor } from "../../../core/protocol/names.ts";
import { pick, whole } from "../random.ts";
import { Table, type Json } from "./json-text.ts";
import { FORGED_IDS, ODD_TEXTS } from "./odd-values.ts";
import type { Operations, Schema } from "./openapi-operations.ts";

type Random = () => number;

/**
 * Long deadlines, so that no answer is degraded on a busy machine. Most keys share few objects: starting an
 * object for each would take longer than all calls on it.
 */
const PATIENT = { deadlineMs: 30_000 };
const SHARED = { objects: 2, ...PATIENT };
/** Slots are free again soon. */
const BRIEF = { ttl: "2s", maxTtl: "5s", maxWait: "100ms", maxWaiters: 3 };

/** The called policies: every algorithm, and every field with an effect. */
export const FUZZED_POLICIES = {
  slow: { algorithm: "token-bucket", limit: 5, window: "30d", ...PATIENT },
  fast: { algorithm: "token-bucket", limit: 1_000_000, window: "1s", ...SHARED },
  hot: { algorithm: "token-bucket", limit: 100_000, window: "1h", reservation: { ttl: "1s" }, ...SHARED },
  address: { algorithm: "token-bucket", limit: 50, window: "1m", keyKind: "ip", ...SHARED },
  shadow: { algorithm: "token-bucket", limit: 2, window: "30d", shadow: true, ...SHARED },
  constructor: { algorithm: "token-bucket", limit: 1, window: "30d", ...SHARED },
  log: { algorithm: "sliding-log", limit: 50, window: "1m", ...SHARED },
  spaced: { algorithm: "sliding-log", limit: 50, window: "1m", minInterval: "1s", ...SHARED },
  hammered: {
    algorithm: "sliding-log",
    limit: 2,
    window: "1h",
    countDenied: true,
    retryJitter: 0.5,
    headers: "x-ratelimit",
    ...SHARED,
  },
  busy: {
    algorithm: "token-bucket",
    limit: 1_000,
    window: "1m",
    shed: { good: 0.1, bad: 0.3, after: "1ms", over: "40s" },
    ...SHARED,
  },
  prepaid: { algorithm: "credits", limit: 1_000, initial: 900, ...SHARED },
  free: { algorithm: "unlimited", ...SHARED },
  shut: { algorithm: "sliding-log", limit: 0, window: "1m", ...SHARED },
  export: { algorithm: "concurrency", limit: 3, ...BRIEF, ...PATIENT },
  adaptive: { algorithm: "adaptive-concurrency", limit: 4, initial: 2, ...BRIEF, ...SHARED },
  "shadow-export": { algorithm: "concurrency", limit: 1, shadow: true, ...BRIEF, ...SHARED },
  several: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 50, window: "1m" },
      tokens: { algorithm: "sliding-log", limit: 1_000, window: "1m", unit: "tokens" },
    },
    ...SHARED,
  },
  mixed: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 1_000, window: "1m" },
      slots: { algorithm: "concurrency", limit: 2, ...BRIEF },
    },
    ...SHARED,
  },
};
/** Policies under which little can happen. */
const DULL_NAMES = ["free", "shut", "prepaid"];
const POLICY_NAMES = Object.keys(FUZZED_POLICIES).filter((name) => !DULL_NAMES.includes(name));

/** Recent ids. Some of them have ended meanwhile. */
export class LiveIds {
  readonly #ids: string[] = [];
  #next = 0;

  add(id: unknown): void {
    if (typeof id !== "string") return;
    this.#ids[this.#next] = id;
    this.#next = (this.#next + 1) % MAX_LIVE;
  }

  any(random: Random): string | undefined {
    // The latest one is most likely still alive.
    const back = random() < 0.5 ? 1 + whole(random, 4) : whole(random, MAX_LIVE);
    return this.#ids[(this.#next - back + MAX_LIVE) % MAX_LIVE] ?? this.#ids[0];
  }
}

const MAX_LIVE = 64;
/** Few, so that calls meet on the same keys. */
export const KEYS = 10;
const IDEMPOTENCY_KEYS = 12;

/** Fields of these names have these values in any call. */
export function drawField(random: Random, ids: LiveIds, name: string): Json | undefined {
  switch (name) {
    case "policy":
      return drawPolicy(random);
    case "key":
      return drawKey(random);
    case "id":
      return drawId(random, ids);
    case "idempotencyKey":
    case "charge":
      return random() < 0.9 ? `i${whole(random, IDEMPOTENCY_KEYS)}` : pick(random, ODD_TEXTS);
    case "cost":
    case "units":
    case "used":
      return drawUnits(random);
    case "prefix":
      return pick(random, ["k", "k1", "fresh-", ...ODD_TEXTS]);
    case "cursor":
      return keyCursor({ object: whole(random, 3), ...(random() < 0.7 && { after: drawKey(random) }) });
    case "force":
      // A debt denies all later calls, and denials are all alike.
      return random() < 0.05;
    case "ttlMs":
      return 1 + whole(random, 3_000);
    case "utilization":
      return random();
    case "waitMs":
      return random() < 0.8 ? whole(random, 3) : whole(random, 100);
    default:
      return undefined;
  }
}

export function drawPolicy(random: Random): string {
  return pick(random, random() < 0.02 ? DULL_NAMES : POLICY_NAMES);
}

export function drawKey(random: Random): string {
  const kind = random();
  if (kind < 0.85) return `k${whole(random, KEYS)}`;
  if (kind < 0.93) return pick(random, [`192.0.2.${whole(random, 9)}`, `2001:db8:${whole(random, 9)}::1`]);
  if (kind < 0.997) return pick(random, ODD_TEXTS);
  return `fresh-${whole(random, 2 ** 31)}`;
}

/** Mostly one that was issued, though not always for this kind of call. */
export function drawId(random: Random, ids: LiveIds): string {
  const live = ids.any(random);
  if (live === undefined || random() < 0.3) return pick(random, FORGED_IDS);
  if (random() < 0.85) return live;
  return pick(random, [
    live.startsWith("hold") ? live.replace("hold", "lease") : live.replace("lease", "hold"),
    `${live}A`,
    live.slice(0, -1),
    live.replace(/\.(.*)/, (_, secret: string) => `.${secret.toUpperCase()}`),
    live.toUpperCase(),
  ]);
}

function drawUnits(random: Random): Json {
  const kind = random();
  if (kind < 0.75) return 1 + whole(random, 2);
  if (kind < 0.85) return whole(random, 60);
  return new Table([[pick(random, ["tokens", "requests", "leases"]), whole(random, 5)]]);
}

export function drawValid(
  random: Random,
  ids: LiveIds,
  operations: Operations,
  given: Schema,
  name = "",
): Json {
  const known = drawField(random, ids, name);
  if (known !== undefined) return known;
  const schema = operations.resolved(given);
  const draw = (inner: Schema, field = "") => drawValid(random, ids, operations, inner, field);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices !== undefined) return draw(pick(random, choices), name);
  if (schema.const !== undefined) return schema.const;
  if (schema.enum !== undefined) return pick(random, schema.enum);
  return (DRAWN[schema.type ?? "string"] ?? DRAWN.string)(random, schema, draw);
}

type Draw = (random: Random, schema: Schema, draw: (inner: Schema, field?: string) => Json) => Json;

const string: Draw = (random) => `text${whole(random, 10)}`;
const integer: Draw = (random, { minimum = 0, maximum = 100 }) =>
  minimum + whole(random, Math.min(100, maximum - minimum));

/** By the type that a schema names. */
const DRAWN: Readonly<Record<string, Draw>> & { readonly string: Draw } = {
  string,
  integer,
  number: integer,
  boolean: (random) => random() < 0.5,
  array: (random, { minItems = 0, maxItems = 4, items = {} }, draw) => {
    const most = Math.min(maxItems, random() < 0.1 ? 16 : 4);
    return Array.from({ length: Math.max(minItems, 1 + whole(random, most)) }, () => draw(items));
  },
  object: (random, { properties = {}, required = [] }, draw) => {
    const fields = Object.entries(properties).filter(
      ([field]) => required.includes(field) || random() < (SELDOM_GIVEN[field] ?? OPTIONAL_GIVEN),
    );
    return new Table(fields.map(([field, inner]) => [field, draw(inner, field)]));
  },
};

const OPTIONAL_GIVEN = 0.4;
/** Few policies take it, and all others refuse it. */
const SELDOM_GIVEN: Readonly<Record<string, number>> = { utilization: 0.03 };
