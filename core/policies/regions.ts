/** Regions: parts of the world. A key whose units are in a pool has an object of its own in each region. */
import * as v from "valibot";
import { oneOf, table, violation, violationsOf } from "../validation.ts";
import { LOCATION_HINTS, type LocationHint } from "./placement.ts";
import { NAME, NAME_ALLOWED } from "./policy-fields.ts";

/**
 * A region, and the codes of `request.cf` that say which requests belong to it. Colo goes before country and
 * continent.
 */
export interface Region {
  readonly name: string;
  readonly colos: readonly string[];
  readonly countries: readonly string[];
  readonly continents: readonly string[];
  /**
   * Where Cloudflare is asked to place its objects:
   * https://developers.cloudflare.com/durable-objects/reference/data-location/
   */
  readonly locationHint?: LocationHint;
}

/** Where a request came in, as far as `request.cf` says it. */
export interface Origin {
  readonly colo?: unknown;
  readonly country?: unknown;
  readonly continent?: unknown;
}

/** At least one region. The first one also has the requests that belong to no region. */
export type Regions = readonly [Region, ...Region[]];

/** Without `[vars.REGIONS]`, each continent is a region. */
const CONTINENTS: Regions = [
  continent("na", "enam"),
  continent("eu", "weur"),
  continent("as", "apac"),
  continent("sa", "sam"),
  continent("oc", "oc"),
  continent("af", "afr"),
];

function continent(name: string, locationHint: LocationHint): Region {
  return { name, colos: [], countries: [], continents: [name.toUpperCase()], locationHint };
}

const CODES_ALLOWED = 'an array of upper-case codes, like ["EU"]';
const codes = v.optional(
  v.pipe(
    v.array(v.pipe(v.string(CODES_ALLOWED), v.regex(/^[A-Z0-9]{2,3}$/, CODES_ALLOWED)), CODES_ALLOWED),
    v.readonly(),
  ),
  [],
);
const REGION_FIELDS = {
  colos: codes,
  countries: codes,
  continents: codes,
  locationHint: v.optional(oneOf(LOCATION_HINTS)),
};

/**
 * Reads the regions of `[vars.REGIONS.<name>]`, as tables or as JSON text; `undefined`: each continent is a region.
 *
 * @throws Error that names every bad region, field and value, and what is allowed
 */
export function parseRegions(vars: unknown): Regions {
  if (vars === undefined) return CONTINENTS;
  const given = typeof vars === "string" ? jsonIn(vars) : vars;
  const tables = typeof given === "object" && given !== null ? Object.entries(given) : [];
  const problems: string[] = [];
  const regions: Region[] = [];
  for (const [name, fields] of tables) {
    const parsed = v.safeParse(table(REGION_FIELDS), fields);
    const found = parsed.success ? [] : violationsOf(parsed.issues).map(({ detail }) => detail);
    if (!NAME.test(name)) found.push(violation(["its name"], name, NAME_ALLOWED));
    problems.push(...found.map((detail) => `region ${JSON.stringify(name)}: ${detail}`));
    if (parsed.success) {
      const { locationHint, ...codesOf } = parsed.output;
      regions.push({ name, ...codesOf, ...(locationHint !== undefined && { locationHint }) });
    }
  }
  const [first, ...others] = regions;
  if (first === undefined && problems.length === 0)
    problems.push(
      violation(["REGIONS"], vars, "left out, or a table of at least one region: [vars.REGIONS.<name>]"),
    );
  if (first === undefined || problems.length > 0)
    throw new Error(`bad configuration, not serving:\n${problems.join("\n")}`);
  return [first, ...others];
}

function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** The region that a request belongs to: by its colo, else its country, else its continent, else the first region. */
export function regionOf(regions: Regions, { colo, country, continent: from }: Origin): Region {
  const within = (field: "colos" | "countries" | "continents", code: unknown) =>
    typeof code === "string" ? regions.find((region) => region[field].includes(code)) : undefined;
  return within("colos", colo) ?? within("countries", country) ?? within("continents", from) ?? regions[0];
}
