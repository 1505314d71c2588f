/** Schemas for the fields of policies, rules and overrides. Their messages name the allowed values. */
import * as v from "valibot";
import { type AnyAlgorithm, type FieldKind, type Fields, MAX_UNITS } from "../algorithms/algorithm.ts";
import { MAX_WAIT_MS, MAX_WAITERS } from "../algorithms/concurrency.ts";
import { MAX_PARTS } from "../algorithms/token-bucket.ts";
import { type Period, periodOf, PERIODS } from "../algorithms/windows/calendar.ts";
import {
  Flaw,
  integer,
  number,
  oneOf,
  oneOrMore,
  orTable,
  parseInstantMs,
  readBy,
  readWith,
  type Shape,
  shaped,
  strayIn,
} from "../validation.ts";
import { didYouMean } from "../violations.ts";
import { isTable } from "./changed-tables.ts";
import { durationMeant, durationText, failureMeant } from "./other-words.ts";
import {
  HEADER_STYLES,
  type FailureLimit,
  type HeaderStyle,
  JURISDICTIONS,
  type Layout,
  type Lifetimes,
  LOCATION_HINTS,
  MAX_TTL_MS,
  MIN_TTL_MS,
  type RetryJitter,
} from "./policy.ts";

export const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
/** `NAME` in error messages. */
export const NAME_ALLOWED = "1 to 64 letters, digits, - or _, beginning with a letter or digit";
/** valibot's `record` drops these names from a cost by unit, which would lower the cost. */
const UNREADABLE_UNITS = ["constructor", "prototype"];
const UNIT_ALLOWED = `${NAME_ALLOWED}, but not ${UNREADABLE_UNITS.join(" or ")}`;

const DAY_MS = 86_400_000;
const UNITS_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: DAY_MS } as const;

export const DURATION_ALLOWED =
  'a duration of 1 ms or more with its unit, such as "250ms" "10s" "15m" "1h" "30d"';

/**
 * Parses `"250ms" "10s" "15m" "1h" "30d"`, also `"10 s"`; `undefined`: invalid. Not a number: 60 milliseconds instead
 * of 60 seconds is a limit a thousand times as high.
 */
export function parseDurationMs(value: unknown): number | undefined {
  const match = typeof value === "string" ? /^(\d{1,16}) ?(ms|s|m|h|d)$/.exec(value) : null;
  const durationMs = match === null ? 0 : Number(match[1]) * UNITS_MS[match[2] as keyof typeof UNITS_MS];
  return Number.isSafeInteger(durationMs) && durationMs >= 1 ? durationMs : undefined;
}

const PERIOD_ALLOWED = `${DURATION_ALLOWED}, or of the calendar ${PERIODS.map((each) => `"1 ${each}"`).join(" ")}`;

function parsePeriod(value: unknown): number | Period | undefined {
  return periodOf(value) ?? parseDurationMs(value);
}

/** A schema for durations: the error for a number suggests two durations, that for another text what it means. */
function durationBy<Value>(
  read: (value: unknown) => Value | undefined,
  allowed: string,
  shape: Shape = { type: "string" },
) {
  const readings = (value: unknown) => {
    const isNumber =
      typeof value === "number" ? value > 0 : typeof value === "string" && /^[1-9]\d{0,8}$/.test(value);
    if (isNumber) return ` (${String(value)} might be "${String(value)}s" or "${String(value)}ms")`;
    const near = typeof value === "string" ? durationMeant(value) : undefined;
    return near === undefined || read(near) === undefined ? "" : didYouMean(JSON.stringify(near));
  };
  return readBy(read, ({ input }) => allowed + readings(input), shape);
}

const durationUpTo = (maxMs: number) => (value: unknown) => {
  const durationMs = parseDurationMs(value);
  return durationMs === undefined || durationMs > maxMs ? undefined : durationMs;
};

export const aboveZero = (isAllowed: (value: number) => boolean, allowed: string) =>
  shaped(
    v.custom<number>((value) => typeof value === "number" && value > 0 && isAllowed(value), allowed),
    { type: "number", exclusiveMinimum: 0, description: allowed },
  );

export const DURATION = durationBy(parseDurationMs, DURATION_ALLOWED);
export const PERIOD = durationBy(parsePeriod, PERIOD_ALLOWED);
const UNITS = integer(1, MAX_UNITS);

const FIELD_SCHEMAS = {
  units: UNITS,
  "units?": v.optional(UNITS),
  "integer?": v.optional(UNITS),
  "count?": v.optional(integer(0, MAX_UNITS)),
  duration: DURATION,
  "duration?": v.optional(DURATION),
  period: PERIOD,
  "boolean?": v.optional(v.boolean("true or false")),
  "text?": v.optional(v.pipe(v.string("text"), v.nonEmpty("text that is not empty"))),
  "ratio?": v.optional(aboveZero((value) => value < Infinity, "a number above 0")),
} satisfies Record<Extract<FieldKind, string>, v.GenericSchema<unknown, Fields[string]>>;

export function fieldsOf(algorithm: AnyAlgorithm): Record<string, v.GenericSchema<unknown, Fields[string]>> {
  const schemaOf = (field: string, kind: FieldKind) => {
    if (field === "limit" && kind === "units") return integer(0, MAX_UNITS);
    return typeof kind === "string" ? FIELD_SCHEMAS[kind] : v.optional(oneOf(kind));
  };
  return Object.fromEntries(
    Object.entries(algorithm.fields).map(([field, kind]) => [field, schemaOf(field, kind)]),
  );
}

/** The fields of any rule. `unit` defaults to the quota unit of draft-ietf-httpapi-ratelimit-headers-11. */
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

export const PENALTY_FIELDS = {
  blockFor: FIELD_SCHEMAS["duration?"],
  maxBlock: FIELD_SCHEMAS["duration?"],
};

const MAX_WEIGHTS = 100;
const MAX_WEIGHT = 1_000;
const WEIGHTS_ALLOWED = `a table of 1 to ${MAX_WEIGHTS} groups, or beginnings of them with * at the end, each with a weight above 0 and at most ${MAX_WEIGHT}, such as { "gold:*" = 4 }`;

const WEIGHTS_SHAPE = {
  type: "object",
  additionalProperties: { type: "number", exclusiveMinimum: 0, maximum: MAX_WEIGHT },
  description: WEIGHTS_ALLOWED,
};

/** The weight of a group: that of its name, or of the longest beginning that it has, or 1. */
function parseWeights(value: unknown): ((group: string) => number) | Flaw {
  const weights = isTable(value) ? Object.entries(value) : [];
  if (weights.length === 0 || weights.length > MAX_WEIGHTS) return new Flaw([], value, WEIGHTS_ALLOWED);
  for (const [name, weight] of weights) {
    if (name === "" || !/^[^*]*[*]?$/.test(name))
      return new Flaw([name], weight, "the weight of a group, or of a beginning of groups with * at its end");
    if (!(typeof weight === "number" && weight > 0 && weight <= MAX_WEIGHT))
      return new Flaw([name], weight, `a weight above 0 and at most ${MAX_WEIGHT}`);
  }
  const isOf = (name: string, group: string) =>
    name.endsWith("*") ? group.startsWith(name.slice(0, -1)) : name === group;
  // A name is as long as itself with * at the end, and comes before it.
  const lengthOf = (name: string) => (name.endsWith("*") ? name.length - 1.5 : name.length);
  const longestFirst = weights.toSorted(([one], [other]) => lengthOf(other) - lengthOf(one));
  return (group) => Number(longestFirst.find(([name]) => isOf(name, group))?.[1] ?? 1);
}

/** Of rules whose quota groups share (core/algorithms/fair/fair.ts). */
export const FAIR_FIELDS = {
  fair: v.optional(v.literal(true, "true, or left out")),
  weights: v.optional(readWith(parseWeights, WEIGHTS_SHAPE)),
};

const MAX_DEADLINE_MS = 60_000;
/**
 * The first call of a name can take some hundred milliseconds: the runtime ensures that the object exists nowhere
 * else, chooses a place and starts it. That call must not be denied. A longer deadline would keep callers waiting for
 * an object that hangs.
 */
const DEFAULT_DEADLINE_MS = 1_000;

const MAX_RESERVATION_TTL_MS = 60_000;
const OFF: Lifetimes = { leastMs: 0, mostMs: 0 };
const AUTO: Lifetimes = { leastMs: MIN_TTL_MS, mostMs: MAX_TTL_MS };

function parseReservation(value: unknown): Lifetimes | undefined {
  if (value === "off") return OFF;
  if (value === "auto") return AUTO;
  if (typeof value !== "object" || value === null || Object.keys(value).length === 0) return undefined;
  const { ttl, clients = true, ...others } = value as { ttl?: unknown; clients?: unknown };
  if (typeof clients !== "boolean" || Object.keys(others).length > 0) return undefined;
  const ttlMs = durationUpTo(MAX_RESERVATION_TTL_MS)(ttl);
  if (ttl !== undefined && ttlMs === undefined) return undefined;
  // Isolates must return units before an object without calls leaves memory (`MAX_TTL_MS`).
  const atMostMs = Math.min(ttlMs ?? MAX_TTL_MS, MAX_TTL_MS);
  const lifetimes = ttlMs === undefined ? AUTO : { leastMs: atMostMs, mostMs: atMostMs };
  return clients ? lifetimes : { ...lifetimes, clients };
}

const MAX_OBJECTS = 65_536;
/** An unknown key is searched in one object of each earlier layout, one after the other. */
const MAX_BEFORE = 3;
const LAYOUT_ALLOWED = `"per-key" or an integer from 1 to ${MAX_OBJECTS}`;
const LAYOUT_SHAPE = {
  anyOf: [
    { type: "string", const: "per-key" },
    { type: "integer", minimum: 1, maximum: MAX_OBJECTS },
  ],
};
export const BEFORE_ALLOWED = `what objects was before, or a list of at most ${MAX_BEFORE} of these, the last one first; not what it is now`;

function isLayout(value: unknown): value is Layout {
  return value === "per-key" || v.is(integer(1, MAX_OBJECTS), value);
}

function parseBefore(value: unknown): readonly Layout[] | undefined {
  const layouts: readonly unknown[] = Array.isArray(value) ? value : [value];
  const isList = layouts.length > 0 && layouts.length <= MAX_BEFORE && layouts.every(isLayout);
  return isList && new Set(layouts).size === layouts.length ? layouts : undefined;
}

const HEADERS_ALLOWED = `${HEADER_STYLES.flat()
  .map((style) => JSON.stringify(style))
  .join(", ")}, or a list of one of the first two and one of the last two`;

function parseHeaders(value: unknown): readonly HeaderStyle[] | undefined {
  const given: readonly unknown[] = Array.isArray(value) ? value : [value];
  const found = HEADER_STYLES.map((line): readonly HeaderStyle[] =>
    line.filter((style) => given.includes(style)),
  );
  const styles = found.flat();
  const isAllowed = given.length > 0 && found.every(({ length }) => length <= 1);
  return isAllowed && styles.length === given.length ? styles : undefined;
}

/** Parses a share of the wait (a number) or a duration (text). More would only keep callers away. */
function parseRetryJitter(value: unknown): RetryJitter | undefined {
  if (typeof value === "number") return value > 0 && value <= 1 ? { share: value } : undefined;
  const mostMs = durationUpTo(DAY_MS)(value);
  return mostMs === undefined ? undefined : { mostMs };
}

/** Each may cost rows and a message. */
const MAX_THRESHOLDS = 8;
const NOTIFY_ALLOWED = `a list of 1 to ${MAX_THRESHOLDS} different fractions of the limit, each above 0 and at most 1, such as [0.8, 1]`;

const NOTIFY_SHAPE = {
  type: "array",
  items: { type: "number", exclusiveMinimum: 0, maximum: 1 },
  minItems: 1,
  maxItems: MAX_THRESHOLDS,
  description: NOTIFY_ALLOWED,
};

function parseNotify(value: unknown): readonly number[] | Flaw {
  const given: readonly unknown[] = Array.isArray(value) ? value : [];
  if (given.length === 0 || given.length > MAX_THRESHOLDS) return new Flaw([], value, NOTIFY_ALLOWED);
  for (const [index, each] of given.entries()) {
    if (!(typeof each === "number" && each > 0 && each <= 1))
      return new Flaw([String(index)], each, "a fraction of the limit, above 0 and at most 1");
    if (given.indexOf(each) < index)
      return new Flaw([String(index)], each, "another fraction than those before");
  }
  return (given as readonly number[]).toSorted((a, b) => a - b);
}

/** The longest time that a caller whose quota returned may not notice it. */
const MAX_DENIAL_TTL_MS = 3_600_000;

/** Parses a duration that may be 0, in any unit. */
function parseDenialTtlMs(value: unknown): number | undefined {
  if (value === 0 || (typeof value === "string" && /^0 ?(?:ms|s)$/.test(value))) return 0;
  return durationUpTo(MAX_DENIAL_TTL_MS)(value);
}

/** The default priority, if the policy has it. */
export const USUAL = "normal";
/** Every priority with reserved units has its own reservations in each isolate. */
const MAX_NAMES = 8;
const PRIORITY_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$/;
const NAMES_ALLOWED = `a list of 2 to ${MAX_NAMES} different names of up to 32 letters, digits, - or _, the most important first`;

const ON_FAILURE = ["closed", "open", "local"] as const;
const FAILURE_FIELDS = ["limit", "window"];
const ON_FAILURE_ALLOWED =
  `"closed", "open", "local", or a table { limit = 20, window = "1s" } of an integer from 1 to ${MAX_UNITS} and ` +
  `a duration of 1 ms or more, with limit times milliseconds at most 2^53`;

const ON_FAILURE_SHAPE = orTable(
  ON_FAILURE,
  { limit: { type: "integer", minimum: 1, maximum: MAX_UNITS }, window: { type: "string" } },
  FAILURE_FIELDS,
);

function parseOnFailure(value: unknown): (typeof ON_FAILURE)[number] | FailureLimit | Flaw {
  const word = ON_FAILURE.find((each) => each === value);
  if (word !== undefined) return word;
  if (typeof value === "string")
    return new Flaw([], value, ON_FAILURE_ALLOWED + failureMeant(value, ON_FAILURE));
  if (!isTable(value)) return new Flaw([], value, ON_FAILURE_ALLOWED);
  const stray = strayIn(value, FAILURE_FIELDS);
  if (stray !== undefined) return stray;
  const { limit, window } = value;
  if (!v.is(UNITS, limit)) return new Flaw(["limit"], limit, `an integer from 1 to ${MAX_UNITS}`);
  const windowMs = parseDurationMs(window);
  if (windowMs === undefined) return new Flaw(["window"], window, DURATION_ALLOWED);
  const most = Math.floor(MAX_PARTS / windowMs);
  if (limit <= most) return { limit, windowMs };
  const allowed = `at most ${most} with a window of ${durationText(windowMs)} (limit times milliseconds may not exceed 2^53)`;
  return new Flaw(["limit"], limit, allowed);
}

export const POLICY_FIELDS = {
  onFailure: v.optional(readWith(parseOnFailure, ON_FAILURE_SHAPE), "closed"),
  deadlineMs: v.optional(integer(1, MAX_DEADLINE_MS), DEFAULT_DEADLINE_MS),
  objects: v.optional(shaped(v.custom<Layout>(isLayout, LAYOUT_ALLOWED), LAYOUT_SHAPE), "per-key"),
  reservation: v.optional(
    readBy(
      parseReservation,
      `"auto", "off" or a table { ttl = DURATION, clients = false } of one field or both, with a ttl of at most ${durationText(MAX_RESERVATION_TTL_MS)}`,
      orTable(["auto", "off"], { ttl: { type: "string" }, clients: { type: "boolean" } }),
    ),
    "auto",
  ),
  pool: v.optional(oneOf(["redis"])),
  localShare: v.optional(aboveZero((value) => value <= 1, "a number above 0 and at most 1")),
  shadow: v.optional(v.boolean("true or false"), false),
  // Rules that lease have fields of the same names and defaults.
  maxWait: v.optional(
    durationBy(durationUpTo(MAX_WAIT_MS), `${DURATION_ALLOWED}, at most ${durationText(MAX_WAIT_MS)}`),
  ),
  maxWaiters: v.optional(integer(1, MAX_WAITERS)),
  keyKind: v.optional(oneOf(["text", "ip"]), "text"),
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
    ["critical", "high", USUAL, "low"],
  ),
  ageing: v.optional(DURATION, "10s"),
  defaultPriority: v.optional(v.string("the name of a priority")),
  reserve: v.optional(
    v.record(v.string(), v.unknown(), 'a table of parts by priority, such as { critical = "20%" }'),
    {},
  ),
  shed: v.optional(v.unknown()),
  // Read by plans.ts.
  plans: v.optional(v.unknown()),
  limitInCall: v.optional(v.unknown()),
  retryJitter: v.optional(
    readBy(parseRetryJitter, 'a number above 0 and at most 1, or a duration of at most 1 day such as "5s"', {
      anyOf: [{ type: "number", exclusiveMinimum: 0, maximum: 1 }, { type: "string" }],
    }),
  ),
  notify: v.optional(readWith(parseNotify, NOTIFY_SHAPE)),
  headers: v.optional(
    readBy(parseHeaders, HEADERS_ALLOWED, oneOrMore({ type: "string", enum: HEADER_STYLES.flat() })),
    "draft-11",
  ),
  denialTtl: v.optional(
    durationBy(parseDenialTtlMs, `"0s", or ${DURATION_ALLOWED}, at most ${durationText(MAX_DENIAL_TTL_MS)}`, {
      anyOf: [{ type: "string" }, { type: "integer", const: 0 }],
    }),
    "10s",
  ),
  objectsBefore: v.optional(readBy(parseBefore, BEFORE_ALLOWED, oneOrMore(LAYOUT_SHAPE))),
  regions: v.optional(oneOf(["auto", "always", "off"]), "auto"),
  locationHint: v.optional(oneOf(LOCATION_HINTS)),
  jurisdiction: v.optional(oneOf(JURISDICTIONS)),
};

const NOTE_ALLOWED = "text of at most 500 characters";
const START_ALLOWED = 'an instant, such as "2027-01-24T12:00:00Z" (RFC 3339)';
const EXPIRY_ALLOWED = 'an instant in the future, such as "2027-01-31T12:00:00Z" (RFC 3339)';

function instantBy(allowed: string) {
  return v.pipe(
    shaped(v.string(allowed), { type: "string", format: "date-time", description: allowed }),
    v.check((text) => parseInstantMs(text) !== undefined, allowed),
  );
}

export const OVERRIDE_FIELDS = {
  multiply: v.optional(number(0.000_001, 1_000_000)),
  blocked: v.optional(v.literal(true, "true, or left out")),
  unlimited: v.optional(v.literal(true, "true, or left out")),
  startsAt: v.optional(instantBy(START_ALLOWED)),
  expiresAt: v.optional(instantBy(EXPIRY_ALLOWED)),
  note: v.optional(v.pipe(v.string(NOTE_ALLOWED), v.maxLength(500, NOTE_ALLOWED))),
};
