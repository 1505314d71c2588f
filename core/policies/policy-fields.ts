/** Schemas for the fields of policies and rules. Each one says in its message what it allows. */
import * as v from "valibot";
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import type { FieldKind, Fields } from "../algorithms/fields.ts";
import { integer, oneOf } from "../validation.ts";
import { DEFAULT_DENIAL_TTL, DENIAL_TTL_ALLOWED, parseDenialTtlMs } from "./denial-ttl.ts";
import { bothReadings, DURATION_ALLOWED, parseDurationMs, parsePeriod, PERIOD_ALLOWED } from "./durations.ts";
import { HEADERS_ALLOWED, parseHeaders } from "./header-styles.ts";
import { BEFORE_ALLOWED, isLayout, LAYOUT_ALLOWED, parseBefore, type Layout } from "./layouts.ts";
import { LEAST_TTL_MS, MOST_TTL_MS, type Lifetimes } from "./lifetimes.ts";
import { MOST_UNITS } from "./most-units.ts";
import { JURISDICTIONS, LOCATION_HINTS } from "./placement.ts";
import { PRIORITY_FIELDS } from "./priority-fields.ts";
import { parseRetryJitter, RETRY_JITTER_ALLOWED } from "./retry-jitter.ts";
import { SHEDDING_FIELDS } from "./shedding-fields.ts";
import { WAITING_FIELDS } from "./waiting.ts";

const MOST_DEADLINE_MS = 60_000;
/**
 * The first call of a name may take some hundred milliseconds: the runtime makes sure everywhere that no other place has
 * the object, chooses one, and starts it. A new key's first call is not to be denied for that. A longer deadline would
 * keep callers waiting for an object that hangs.
 */
const DEFAULT_DEADLINE_MS = 1_000;
const MOST_RESERVATION_TTL_MS = 60_000;

/** The names of policies, rules, units and regions. */
export const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
/** Parsers leave these names out of a cost by unit (valibot's `record`), so it would count less than it says. */
const UNREADABLE_UNITS = ["constructor", "prototype"];
/** What `NAME` allows, as errors say it. */
export const NAME_ALLOWED = "1 to 64 letters, digits, - or _, beginning with a letter or digit";
const UNIT_ALLOWED = `${NAME_ALLOWED}, but not ${UNREADABLE_UNITS.join(" or ")}`;

const OFF: Lifetimes = { leastMs: 0, mostMs: 0 };
const AUTO: Lifetimes = { leastMs: LEAST_TTL_MS, mostMs: MOST_TTL_MS };

function parseReservation(value: unknown): Lifetimes | undefined {
  if (value === "off") return OFF;
  if (value === "auto") return AUTO;
  if (typeof value !== "object" || value === null || Object.keys(value).length === 0) return undefined;
  const { ttl, clients = true, ...others } = value as { ttl?: unknown; clients?: unknown };
  if (typeof clients !== "boolean" || Object.keys(others).length > 0) return undefined;
  const ttlMs = ttl === undefined ? undefined : parseDurationMs(ttl);
  if (ttl !== undefined && (ttlMs === undefined || ttlMs > MOST_RESERVATION_TTL_MS)) return undefined;
  // Isolates must give units back before an object that nobody asks leaves memory: see lifetimes.ts.
  const atMostMs = Math.min(ttlMs ?? MOST_TTL_MS, MOST_TTL_MS);
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
const UNITS = integer(1, MOST_UNITS);

const FIELD_SCHEMAS = {
  units: UNITS,
  "units?": v.optional(UNITS),
  "count?": v.optional(integer(0, MOST_UNITS)),
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
      field === "limit" && kind === "units" ? integer(0, MOST_UNITS) : schemaOf(kind),
    ]),
  );
}

/**
 * The fields of any rule, whatever its algorithm. The default of `unit` is the default quota unit of
 * draft-ietf-httpapi-ratelimit-headers-11 (worker/http/headers.ts).
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
  deadlineMs: v.optional(integer(1, MOST_DEADLINE_MS), DEFAULT_DEADLINE_MS),
  objects: v.optional(v.custom<Layout>(isLayout, LAYOUT_ALLOWED), "per-key"),
  reservation: v.pipe(
    v.optional(
      v.custom(
        (value) => parseReservation(value) !== undefined,
        `"auto", "off" or a table { ttl = DURATION, clients = false } of one field or both, with a ttl of at most ${MOST_RESERVATION_TTL_MS} ms`,
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
