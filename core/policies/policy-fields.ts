import * as v from "valibot";
/** How callers may wait for units of a policy: its fields `maxWait` and `maxWaiters`. */
import {
  type AnyAlgorithm,
  type FieldKind,
  type Fields,
  type LeaseTerms,
  MAX_UNITS,
  type Waiting,
} from "../algorithms/algorithm.ts";
import {
  DEFAULT_MAX_WAIT_MS,
  DEFAULT_MAX_WAITERS,
  MAX_WAIT_MS,
  MAX_WAITERS,
} from "../algorithms/concurrency.ts";
import { LAG_MS, type Shedding } from "../shedding/load-shedder.ts";
import { integer, oneOf, table, violation, violationsOf } from "../validation.ts";
import {
  BEFORE_ALLOWED,
  isLayout,
  JURISDICTIONS,
  type Layout,
  LAYOUT_ALLOWED,
  LOCATION_HINTS,
  parseBefore,
} from "./placement.ts";
import {
  bothReadings,
  DURATION_ALLOWED,
  HEADERS_ALLOWED,
  type Lifetimes,
  MAX_TTL_MS,
  MIN_TTL_MS,
  parseDurationMs,
  parseHeaders,
  parsePeriod,
  parseRetryJitter,
  PERIOD_ALLOWED,
  RETRY_JITTER_ALLOWED,
} from "./policy-options.ts";

/** The fields of a policy. Rules that lease have fields of the same names, with the same defaults. */
export const WAITING_FIELDS = {
  maxWait: v.optional(
    v.pipe(
      v.custom(
        (value) => (parseDurationMs(value) ?? Infinity) <= MAX_WAIT_MS,
        ({ input }) => `${DURATION_ALLOWED}, at most ${MAX_WAIT_MS} ms${bothReadings(input)}`,
      ),
      v.transform((value) => parseDurationMs(value) ?? 0),
    ),
  ),
  maxWaiters: v.optional(integer(1, MAX_WAITERS)),
};

/** How callers may wait: where units are leased, as the rules say that lease them. */
export function waitingOf(
  given: { readonly maxWait?: number | undefined; readonly maxWaiters?: number | undefined },
  lease: LeaseTerms | undefined,
  pool: string | undefined,
): Waiting | { problem: string } {
  const isForRates = lease === undefined && pool === undefined;
  const stray = Object.entries(given).find(([, value]) => value !== undefined && !isForRates);
  if (stray !== undefined) {
    const allowed =
      lease === undefined ? "left out with a pool" : "left out: it stands in the rules that lease units";
    return { problem: violation([stray[0]], stray[1], allowed) };
  }
  if (lease !== undefined) return { maxWaitMs: lease.maxWaitMs, maxWaiters: lease.maxWaiters };
  if (!isForRates) return { maxWaitMs: 0, maxWaiters: 0 };
  const { maxWait = DEFAULT_MAX_WAIT_MS, maxWaiters = DEFAULT_MAX_WAITERS } = given;
  return { maxWaitMs: maxWait, maxWaiters };
}

/** For each term the least of all rules; `undefined`: no rule leases. */
export function strictest(terms: readonly LeaseTerms[]): LeaseTerms | undefined {
  if (terms.length === 0) return undefined;
  const least = (field: keyof LeaseTerms) => Math.min(...terms.map((each) => each[field]));
  return {
    ttlMs: least("ttlMs"),
    maxTtlMs: least("maxTtlMs"),
    maxWaitMs: least("maxWaitMs"),
    maxWaiters: least("maxWaiters"),
  };
}

/* The field `shed` of a policy: what is shed while the machines behind it are too busy. */

const share = (usual: number) =>
  v.optional(
    v.custom<number>(
      (value) => typeof value === "number" && value > 0 && value < 1,
      "a number above 0 and below 1",
    ),
    usual,
  );

const duration = (usual: string) =>
  v.pipe(
    v.optional(
      v.custom(
        (value) => parseDurationMs(value) !== undefined,
        ({ input }) => DURATION_ALLOWED + bothReadings(input),
      ),
      usual,
    ),
    v.transform((value) => parseDurationMs(value) ?? 0),
  );

/** The defaults are those of P. Tarjan's example code of 2017. */
const SHED = table({
  good: share(0.7),
  bad: share(0.8),
  after: duration("28s"),
  over: duration("120s"),
  by: v.optional(oneOf(["leases", "reports"])),
});

export const SHEDDING_FIELDS = { shed: v.optional(v.unknown()) };

/**
 * What a policy sheds; `undefined`: nothing.
 *
 * @param leases whether a rule of the policy leases units
 * @param pool the kind of the policy's pool, if it has one
 */
export function sheddingOf(
  given: unknown,
  leases: boolean,
  pool: string | undefined,
): Shedding | undefined | { readonly problems: readonly string[] } {
  if (given === undefined || given === false) return undefined;
  const isTable = typeof given === "object" && given !== null && !Array.isArray(given);
  if (!isTable && given !== true)
    return refusedBy([], given, "true, false, or a table { good, bad, after, over, by }");
  if (pool !== undefined)
    return refusedBy([], given, 'left out with pool = "redis": each region would shed for itself');
  const parsed = v.safeParse(SHED, isTable ? given : {});
  if (!parsed.success)
    return { problems: violationsOf(parsed.issues, ["shed"]).map(({ detail }) => inShed(detail)) };
  const { good, bad, after: afterMs, over: overMs, by: wanted } = parsed.output;
  const by = wanted ?? (leases ? "leases" : "reports");
  if (by === "leases" && !leases) return refusedBy(["by"], by, '"reports", since no rule leases units');
  if (bad <= good) return refusedBy(["bad"], bad, `above the good utilization, which is ${good}`);
  const leastMs = Math.ceil(LAG_MS / (bad - good) - 1e-6);
  if (overMs < leastMs) {
    const why = `at least ${leastMs} ms with bad - good = ${Number((bad - good).toFixed(6))}: else it would shed too much`;
    return refusedBy(["over"], overMs, why);
  }
  return { good, bad, afterMs, overMs, by };
}

/** The problem of a field that there is not does not say where it stands. */
function inShed(detail: string): string {
  return detail.startsWith("shed") ? detail : `shed: ${detail}`;
}

function refusedBy(path: readonly string[], value: unknown, allowed: string) {
  return { problems: [violation(["shed", ...path], value, allowed)] };
}

/* Schemas for the fields of policies and rules. Each one says in its message what it allows. */

/** For so long a denial may be repeated from memory unless the policy says otherwise, as policies write it. */
const DEFAULT_DENIAL_TTL = "10s";
/** Whoever gets a quota back must not wait for longer to hear of it. */
const MAX_DENIAL_TTL_MS = 3_600_000;

/** What errors say is allowed. */
const DENIAL_TTL_ALLOWED = `"0s", or ${DURATION_ALLOWED}, at most ${MAX_DENIAL_TTL_MS} ms`;

/** Reads a duration that may be 0; `undefined`: it is none, or too long. */
function parseDenialTtlMs(value: unknown): number | undefined {
  // A 0 is a 0 in every unit.
  if (value === 0 || (typeof value === "string" && /^0 ?(?:ms|s)$/.test(value))) return 0;
  const ttlMs = parseDurationMs(value);
  return ttlMs === undefined || ttlMs > MAX_DENIAL_TTL_MS ? undefined : ttlMs;
}

const NAMES = ["critical", "high", "normal", "low"];
/** The priority of calls that say none, where a policy has it. */
export const USUAL = "normal";
const DEFAULT_AGEING = "10s";
/** Every priority with something kept has reservations of its own in each isolate. */
const MAX_NAMES = 8;
const PRIORITY_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$/;
const NAMES_ALLOWED = `a list of 2 to ${MAX_NAMES} different names of up to 32 letters, digits, - or _, the most important first`;
const SHARES_ALLOWED = 'a table of parts by priority, such as { critical = "20%" }';

/** The fields of a policy that say how important its calls are. */
const PRIORITY_FIELDS = {
  priorities: v.optional(
    v.pipe(
      v.array(v.string(NAMES_ALLOWED), NAMES_ALLOWED),
      v.check(
        (names) =>
          names.length >= 2 &&
          names.length <= MAX_NAMES &&
          names.every((name) => PRIORITY_NAME.test(name)) &&
          new Set(names).size === names.length,
        NAMES_ALLOWED,
      ),
    ),
    NAMES,
  ),
  ageing: v.pipe(
    v.optional(
      v.custom(
        (value) => parseDurationMs(value) !== undefined,
        ({ input }) => DURATION_ALLOWED + bothReadings(input),
      ),
      DEFAULT_AGEING,
    ),
    v.transform((value) => parseDurationMs(value) ?? 0),
  ),
  defaultPriority: v.optional(v.string("the name of a priority")),
  reserve: v.optional(v.record(v.string(), v.unknown(), SHARES_ALLOWED), {}),
};

/** The fields as they are parsed. */
export interface GivenPriorities {
  readonly priorities: readonly string[];
  readonly defaultPriority?: string | undefined;
  readonly reserve: Readonly<Record<string, unknown>>;
  readonly ageing: number;
}

const MAX_DEADLINE_MS = 60_000;
/**
 * The first call of a name may take some hundred milliseconds: the runtime makes sure everywhere that no other place has
 * the object, chooses one, and starts it. A new key's first call is not to be denied for that. A longer deadline would
 * keep callers waiting for an object that hangs.
 */
const DEFAULT_DEADLINE_MS = 1_000;
const MAX_RESERVATION_TTL_MS = 60_000;

/** The names of policies, rules, units and regions. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
/** Parsers leave these names out of a cost by unit (valibot's `record`), so it would count less than it says. */
const UNREADABLE_UNITS = ["constructor", "prototype"];
/** What `NAME` allows, as errors say it. */
export const NAME_ALLOWED = "1 to 64 letters, digits, - or _, beginning with a letter or digit";
const UNIT_ALLOWED = `${NAME_ALLOWED}, but not ${UNREADABLE_UNITS.join(" or ")}`;

const OFF: Lifetimes = { leastMs: 0, mostMs: 0 };
const AUTO: Lifetimes = { leastMs: MIN_TTL_MS, mostMs: MAX_TTL_MS };

function parseReservation(value: unknown): Lifetimes | undefined {
  if (value === "off") return OFF;
  if (value === "auto") return AUTO;
  if (typeof value !== "object" || value === null || Object.keys(value).length === 0) return undefined;
  const { ttl, clients = true, ...others } = value as { ttl?: unknown; clients?: unknown };
  if (typeof clients !== "boolean" || Object.keys(others).length > 0) return undefined;
  const ttlMs = ttl === undefined ? undefined : parseDurationMs(ttl);
  if (ttl !== undefined && (ttlMs === undefined || ttlMs > MAX_RESERVATION_TTL_MS)) return undefined;
  // Isolates must give units back before an object that nobody asks leaves memory: see policy-options.ts.
  const atMostMs = Math.min(ttlMs ?? MAX_TTL_MS, MAX_TTL_MS);
  const lifetimes = ttlMs === undefined ? AUTO : { leastMs: atMostMs, mostMs: atMostMs };
  return clients ? lifetimes : { ...lifetimes, clients };
}

const DURATION = v.pipe(
  v.custom(
    (value) => parseDurationMs(value) !== undefined,
    ({ input }) => DURATION_ALLOWED + bothReadings(input),
  ),
  v.transform((value) => parseDurationMs(value)),
);
const PERIOD = v.pipe(
  v.custom(
    (value) => parsePeriod(value) !== undefined,
    ({ input }) => PERIOD_ALLOWED + bothReadings(input),
  ),
  v.transform((value) => parsePeriod(value)),
);
const UNITS = integer(1, MAX_UNITS);

const FIELD_SCHEMAS = {
  units: UNITS,
  "units?": v.optional(UNITS),
  "count?": v.optional(integer(0, MAX_UNITS)),
  duration: DURATION,
  "duration?": v.optional(DURATION),
  period: PERIOD,
  "boolean?": v.optional(v.boolean("true or false")),
  "text?": v.optional(v.pipe(v.string("text"), v.nonEmpty("text that is not empty"))),
  "ratio?": v.optional(
    v.custom<number>(
      (value) => typeof value === "number" && value > 0 && value < Infinity,
      "a number above 0",
    ),
  ),
} satisfies Record<Extract<FieldKind, string>, v.GenericSchema<unknown, Fields[string]>>;

function schemaOf(kind: FieldKind): v.GenericSchema<unknown, Fields[string]> {
  return typeof kind === "string" ? FIELD_SCHEMAS[kind] : v.optional(oneOf(kind));
}

/** The fields of a rule that belong to its algorithm. A limit of 0 closes a rule, whatever its algorithm is. */
export function fieldsOf(algorithm: AnyAlgorithm): Record<string, v.GenericSchema<unknown, Fields[string]>> {
  return Object.fromEntries(
    Object.entries(algorithm.fields).map(([field, kind]) => [
      field,
      field === "limit" && kind === "units" ? integer(0, MAX_UNITS) : schemaOf(kind),
    ]),
  );
}

/**
 * The fields of any rule, whatever its algorithm. The default of `unit` is the default quota unit of
 * draft-ietf-httpapi-ratelimit-headers-11 (worker/api/responses.ts).
 */
export const RULE_FIELDS = {
  algorithm: v.string(),
  unit: v.optional(
    v.pipe(
      v.string(UNIT_ALLOWED),
      v.regex(NAME, UNIT_ALLOWED),
      v.check((name) => !UNREADABLE_UNITS.includes(name), UNIT_ALLOWED),
    ),
  ),
};

/** The fields of any rule that is not about leases: see core/algorithms/penalty.ts. */
export const PENALTY_FIELDS = {
  blockFor: FIELD_SCHEMAS["duration?"],
  maxBlock: FIELD_SCHEMAS["duration?"],
};

/** The fields of any policy, whatever its rules. */
export const POLICY_FIELDS = {
  onFailure: v.optional(oneOf(["closed", "open", "local"]), "closed"),
  deadlineMs: v.optional(integer(1, MAX_DEADLINE_MS), DEFAULT_DEADLINE_MS),
  objects: v.optional(v.custom<Layout>(isLayout, LAYOUT_ALLOWED), "per-key"),
  reservation: v.pipe(
    v.optional(
      v.custom(
        (value) => parseReservation(value) !== undefined,
        `"auto", "off" or a table { ttl = DURATION, clients = false } of one field or both, with a ttl of at most ${MAX_RESERVATION_TTL_MS} ms`,
      ),
      "auto",
    ),
    v.transform((value) => parseReservation(value) ?? OFF),
  ),
  pool: v.optional(oneOf(["redis"])),
  localShare: v.optional(
    v.custom<number>(
      (value) => typeof value === "number" && value > 0 && value <= 1,
      "a number above 0 and at most 1",
    ),
  ),
  shadow: v.optional(v.boolean("true or false"), false),
  ...WAITING_FIELDS,
  keyKind: v.optional(oneOf(["text", "ip"]), "text"),
  ...PRIORITY_FIELDS,
  ...SHEDDING_FIELDS,
  retryJitter: v.optional(
    v.pipe(
      v.custom((value) => parseRetryJitter(value) !== undefined, RETRY_JITTER_ALLOWED),
      v.transform((value) => parseRetryJitter(value)),
    ),
  ),
  headers: v.pipe(
    v.optional(
      v.custom((value) => parseHeaders(value) !== undefined, HEADERS_ALLOWED),
      "draft-11",
    ),
    v.transform((value) => parseHeaders(value) ?? []),
  ),
  denialTtl: v.pipe(
    v.optional(
      v.custom(
        (value) => parseDenialTtlMs(value) !== undefined,
        ({ input }) => DENIAL_TTL_ALLOWED + bothReadings(input),
      ),
      DEFAULT_DENIAL_TTL,
    ),
    v.transform((value) => parseDenialTtlMs(value) ?? 0),
  ),
  objectsBefore: v.optional(
    v.pipe(
      v.custom((value) => parseBefore(value) !== undefined, BEFORE_ALLOWED),
      v.transform((value) => parseBefore(value) ?? []),
    ),
  ),
  locationHint: v.optional(oneOf(LOCATION_HINTS)),
  jurisdiction: v.optional(oneOf(JURISDICTIONS)),
};
