/** Where Cloudflare places a policy's objects: https://developers.cloudflare.com/durable-objects/reference/data-location/ */
import * as v from "valibot";
import { integer, number, table, violation, violationsOf } from "../validation.ts";

/** Where an object is to be near, when it is made. Later it stays where it is. */
export const LOCATION_HINTS = ["wnam", "enam", "sam", "weur", "eeur", "apac", "oc", "afr", "me"] as const;
export type LocationHint = (typeof LOCATION_HINTS)[number];

/** What an object and all that it stores never leave. It is a part of the object's id. */
export const JURISDICTIONS = ["eu", "us", "fedramp", "fedramp-high"] as const;
export type Jurisdiction = (typeof JURISDICTIONS)[number];

/** What a policy says of the place of its objects. */
interface Placement {
  readonly locationHint?: LocationHint;
  readonly jurisdiction?: Jurisdiction;
}

/** The placement, unless it contradicts itself or the pool, whose regions say where their objects are. */
export function placementOf(
  { locationHint, jurisdiction }: { [Field in keyof Placement]: Placement[Field] | undefined },
  pool: string | undefined,
): Placement | { readonly problems: readonly string[] } {
  const given = { ...(locationHint && { locationHint }), ...(jurisdiction && { jurisdiction }) };
  const [[field, value] = []] = Object.entries(given);
  if (field !== undefined && pool !== undefined)
    return {
      problems: [violation([field], value, "left out, or without a pool: regions have a locationHint")],
    };
  if (locationHint !== undefined && jurisdiction !== undefined)
    return {
      problems: [
        violation(["locationHint"], locationHint, "left out, or without a jurisdiction, which says where"),
      ],
    };
  return given;
}

/* Layouts: which keys share an object. */

/** One object for each key, or so many objects that share all keys. */
export type Layout = "per-key" | number;

/** The most objects that may share the keys of a policy. */
const MAX_OBJECTS = 65_536;
/** A key of which nothing is known is looked for in one object of each layout before, one after the other. */
const MAX_BEFORE = 3;

export const LAYOUT_ALLOWED = `"per-key" or an integer from 1 to ${MAX_OBJECTS}`;
/** What `objectsBefore` allows, as errors say it. */
export const BEFORE_ALLOWED = `what objects was before, or a list of at most ${MAX_BEFORE} of these, the last one first; not what it is now`;

/** Whether a value is a layout. */
export function isLayout(value: unknown): value is Layout {
  return value === "per-key" || v.is(integer(1, MAX_OBJECTS), value);
}

/** The layouts in a value of `objectsBefore`, the last one first; `undefined`: it is not allowed. */
export function parseBefore(value: unknown): readonly Layout[] | undefined {
  const layouts: readonly unknown[] = Array.isArray(value) ? value : [value];
  const isList = layouts.length > 0 && layouts.length <= MAX_BEFORE && layouts.every(isLayout);
  return isList && new Set(layouts).size === layouts.length ? layouts : undefined;
}

/** The policy's `objectsBefore`, unless it contradicts the other fields; `undefined`: it is not given. */
export function beforeOf(
  objects: Layout,
  before: readonly Layout[] | undefined,
  pool: string | undefined,
): { readonly objectsBefore: readonly Layout[] } | { readonly problems: readonly string[] } | undefined {
  if (before === undefined) return undefined;
  const given = before.length === 1 ? before[0] : before;
  // What regions have is in the pool, and comes from there.
  if (pool !== undefined)
    return { problems: [violation(["objectsBefore"], given, "left out, or without a pool")] };
  if (before.includes(objects)) return { problems: [violation(["objectsBefore"], given, BEFORE_ALLOWED)] };
  return { objectsBefore: before };
}

/* What is logged: the table LOG in wrangler.toml. */

/** What is logged of calls. */
export interface LogSettings {
  /** The part of the denials that is logged, from 0 to 1. */
  readonly denials: number;
  /** The part of the calls that is logged to which an object did not answer, from 0 to 1. */
  readonly failures: number;
  /** Whether these lines have keys in them. */
  readonly keys: boolean;
}

const IS_KEYS = "true or false";
const LogTable = table({
  denials: v.optional(number(0, 1), 0),
  failures: v.optional(number(0, 1), 1),
  keys: v.optional(v.boolean(IS_KEYS), false),
});

/**
 * Reads the table; `undefined`: there is none, and failures are logged.
 *
 * @throws Error that names each bad field and value, and what is allowed
 */
export function parseLog(given: unknown): LogSettings {
  const parsed = v.safeParse(LogTable, given ?? {});
  if (parsed.success) return parsed.output;
  const wrong = violationsOf(parsed.issues).map(({ detail }) => `LOG: ${detail}`);
  throw new Error(`bad configuration, not serving:\n${wrong.join("\n")}`);
}

/** At most the longest interval that it replaces. */
const [MIN_BACKGROUND_MS, MAX_BACKGROUND_MS] = [50, 10_000];

/**
 * After how many milliseconds work in the background is due again; `undefined`: as usual.
 *
 * @throws Error that says which numbers are allowed
 */
export function parseBackgroundMs(given: unknown): number | undefined {
  if (given === undefined) return undefined;
  const ms = Number(given);
  if (Number.isInteger(ms) && ms >= MIN_BACKGROUND_MS && ms <= MAX_BACKGROUND_MS) return ms;
  throw new Error(
    `bad configuration, not serving:\nBACKGROUND_MS is ${JSON.stringify(given)}: must be a whole number from ` +
      `${MIN_BACKGROUND_MS} to ${MAX_BACKGROUND_MS}`,
  );
}
