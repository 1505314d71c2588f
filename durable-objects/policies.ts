import * as v from "valibot";
import type { AnyAlgorithm, FieldKind, Quota } from "./algorithms/algorithm.ts";
import { algorithms } from "./algorithms/registry.ts";
import { DURATION_ALLOWED, parseDurationMs } from "./durations.ts";
import { integer, oneOf, table, violation, violationsOf } from "./violations.ts";

/** One limit: an algorithm with its configuration. */
export interface Rule {
  readonly name: string;
  readonly algorithm: AnyAlgorithm;
  /** Made by `algorithm.configure`, and only ever given back to it. */
  readonly config: object;
  readonly capacity: number;
  readonly quota: Quota;
}

/** What a key is limited by, as the deployer wrote it in `[vars.POLICIES.<name>]`. */
export interface Policy {
  readonly name: string;
  readonly rules: readonly [Rule, ...Rule[]];
  /** What to answer when the level beneath does not. */
  readonly onFailure: "closed" | "open";
  /** The longest a caller waits for the object, in milliseconds. */
  readonly deadlineMs: number;
  /** One object a key, or so many objects that share all keys. */
  readonly objects: "per-key" | number;
  /** The longest a reservation made from this policy can live; 0 when there are none. */
  readonly reservationTtlMs: number;
  /** Decide and report, never deny. */
  readonly shadow: boolean;
  /** `ip`: keys are addresses, an IPv6 one counts with its /64. */
  readonly keyKind: "text" | "ip";
}

export type Policies = ReadonlyMap<string, Policy>;

export const MOST_UNITS = 1_000_000_000;
export const MOST_OBJECTS = 65_536;
const MOST_DEADLINE_MS = 60_000;
const DEFAULT_DEADLINE_MS = 500;
/** How long units may stay reserved unless a policy says otherwise; what a crash then holds that long. */
const DEFAULT_RESERVATION_TTL_MS = 1_000;
const MOST_RESERVATION_TTL_MS = 60_000;

const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const NAME_ALLOWED = "1 to 64 letters, digits, - or _, beginning with a letter or digit";

/**
 * Reads the policies of `wrangler.toml`, once, at start-up.
 *
 * @throws Error that names every bad policy, field and value, and what is allowed: a worker with a bad
 * policy does not start, and a deployment with one is refused while the last good one goes on.
 */
export function parsePolicies(vars: unknown): Policies {
  const tables = tablesOf(vars);
  const problems: string[] = [];
  const policies = new Map<string, Policy>();
  for (const [name, fields] of tables) {
    const parsed = NAME.test(name)
      ? parsePolicy(name, fields)
      : { problems: [violation(["its name"], name, NAME_ALLOWED)] };
    if ("problems" in parsed)
      problems.push(...parsed.problems.map((text) => `policy ${JSON.stringify(name)}: ${text}`));
    else policies.set(name, parsed);
  }
  if (problems.length > 0) throw new Error(`bad configuration, not serving:\n${problems.join("\n")}`);
  return policies;
}

function tablesOf(vars: unknown): [string, unknown][] {
  const wanted = "POLICIES must be a table of policies: add one to wrangler.toml as [vars.POLICIES.<name>]";
  const tables = typeof vars === "string" ? parseJson(vars) : vars;
  const isTable = typeof tables === "object" && tables !== null && !Array.isArray(tables);
  const entries = isTable ? Object.entries(tables) : [];
  if (entries.length === 0) throw new Error(`bad configuration, not serving:\n${wanted}`);
  return entries;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function parsePolicy(name: string, fields: unknown): Policy | { problems: string[] } {
  const algorithmName =
    typeof fields === "object" && fields !== null && "algorithm" in fields ? fields.algorithm : undefined;
  const algorithm = typeof algorithmName === "string" ? algorithms.get(algorithmName) : undefined;
  if (algorithm === undefined) {
    const names = [...algorithms.keys()].map((each) => JSON.stringify(each)).join(", ");
    return { problems: [violation(["algorithm"], algorithmName, `one of ${names}`)] };
  }
  const parsed = v.safeParse(table({ ...POLICY_FIELDS, ...ruleFields(algorithm) }), fields);
  if (!parsed.success) return { problems: violationsOf(parsed.issues).map(({ detail }) => detail) };
  const rule = ruleOf(name, algorithm, parsed.output);
  if ("problems" in rule) return rule;
  const { onFailure, deadlineMs, objects, reservation, shadow, keyKind } = parsed.output;
  return {
    name,
    rules: [rule],
    onFailure,
    deadlineMs,
    objects,
    reservationTtlMs: reservation,
    shadow,
    keyKind,
  };
}

function ruleOf(
  name: string,
  algorithm: AnyAlgorithm,
  output: Readonly<Record<string, unknown>>,
): Rule | { problems: string[] } {
  const fields: Record<string, number> = {};
  for (const field of Object.keys(algorithm.fields)) {
    const value = output[field];
    if (typeof value === "number") fields[field] = value;
  }
  const config = algorithm.configure(fields);
  if ("problem" in config) {
    const { field, allowed } = config.problem;
    return { problems: [violation([field], fields[field], allowed)] };
  }
  const capacity = algorithm.capacity(config);
  return { name, algorithm, config, capacity, quota: algorithm.quota(config) };
}

function parseReservation(value: unknown): number | undefined {
  if (value === "off") return 0;
  if (value === "auto") return DEFAULT_RESERVATION_TTL_MS;
  if (typeof value !== "object" || value === null || !("ttl" in value) || Object.keys(value).length > 1)
    return undefined;
  const ttlMs = parseDurationMs(value.ttl);
  return ttlMs === undefined || ttlMs > MOST_RESERVATION_TTL_MS ? undefined : ttlMs;
}

const DURATION = v.pipe(
  v.custom((value) => parseDurationMs(value) !== undefined, DURATION_ALLOWED),
  v.transform((value) => parseDurationMs(value)),
);
const UNITS = integer(1, MOST_UNITS);

const FIELD_SCHEMAS = {
  units: UNITS,
  "units?": v.optional(UNITS),
  duration: DURATION,
  "duration?": v.optional(DURATION),
} satisfies Record<FieldKind, v.GenericSchema<unknown, number | undefined>>;

function ruleFields(algorithm: AnyAlgorithm): Record<string, v.GenericSchema<unknown, number | undefined>> {
  return Object.fromEntries(
    Object.entries(algorithm.fields).map(([field, kind]) => [field, FIELD_SCHEMAS[kind]]),
  );
}

/** What any policy may also say, whatever its algorithm. */
const POLICY_FIELDS = {
  algorithm: v.string(),
  onFailure: v.optional(oneOf(["closed", "open"]), "closed"),
  deadlineMs: v.optional(integer(1, MOST_DEADLINE_MS), DEFAULT_DEADLINE_MS),
  objects: v.optional(
    v.custom<"per-key" | number>(
      (value) => value === "per-key" || v.is(integer(1, MOST_OBJECTS), value),
      `"per-key" or an integer from 1 to ${MOST_OBJECTS}`,
    ),
    "per-key",
  ),
  reservation: v.pipe(
    v.optional(
      v.custom(
        (value) => parseReservation(value) !== undefined,
        `"auto", "off" or a table { ttl = DURATION } with a ttl of at most ${MOST_RESERVATION_TTL_MS} ms`,
      ),
      "auto",
    ),
    v.transform((value) => parseReservation(value) ?? 0),
  ),
  shadow: v.optional(v.boolean("true or false"), false),
  keyKind: v.optional(oneOf(["text", "ip"]), "text"),
};
