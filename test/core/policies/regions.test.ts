import { describe, expect, test } from "vitest";
import {
  parsePolicies,
  parseRegions,
  RegionalPolicies,
  regionOf,
} from "../../../core/policies/parse-policies.ts";
import { localName, type Policy, publicName } from "../../../core/policies/policy.ts";
import { requirePool } from "../../../durable-objects/pool/protocol.ts";

const BUCKET = { algorithm: "token-bucket", limit: 12, window: "1s", burst: 24 };

describe("regions", () => {
  test("are one a continent unless the deployment says otherwise", () => {
    const regions = parseRegions(undefined);
    expect(regions.map(({ name }) => name)).toEqual(["na", "eu", "as", "sa", "oc", "af"]);
    expect(regionOf(regions, { continent: "AS", country: "JP", colo: "NRT" }).name).toBe("as");
    expect(regionOf(regions, { continent: "EU" }).locationHint).toBe("weur");
  });

  test("may be JSON, as variables of the environment are", () => {
    const regions = { eu: { continents: ["EU"] } };
    expect(parseRegions(JSON.stringify(regions))).toEqual(parseRegions(regions));
  });

  test.each([
    [{ continent: "AN" }],
    [{}],
    [{ continent: undefined }],
    [{ continent: 7 }],
    [{ continent: "__proto__" }],
  ])("a request from %j belongs to the first", (origin) => {
    expect(regionOf(parseRegions(undefined), origin).name).toBe("na");
  });

  test("what is narrower goes first: the colo, then the country, then the continent", () => {
    const regions = parseRegions({
      first: { continents: ["EU"] },
      second: { countries: ["DE"] },
      third: { colos: ["FRA"], locationHint: "weur" },
    });
    const origin = { continent: "EU", country: "DE", colo: "FRA" };
    expect(regionOf(regions, origin).name).toBe("third");
    expect(regionOf(regions, { ...origin, colo: "MUC" }).name).toBe("second");
    expect(regionOf(regions, { ...origin, colo: "CDG", country: "FR" }).name).toBe("first");
  });

  test.each([
    [{ eu: { continents: "EU" } }, 'region "eu": continents is "EU": must be an array of upper-case codes'],
    [
      { eu: { continents: ["eu"] } },
      'region "eu": continents.0 is "eu": must be an array of upper-case codes',
    ],
    [{ eu: { hint: "weur" } }, 'region "eu": hint is not a field: there are colos, countries, continents'],
    [{ eu: { locationHint: "mars" } }, 'region "eu": locationHint is "mars": must be one of "wnam"'],
    [{ "e@u": {} }, 'region "e@u": its name is "e@u": must be 1 to 64 letters'],
    [{}, "REGIONS is an object: must be left out, or a table of at least one region"],
    ["eu", 'REGIONS is "eu": must be left out, or a table of at least one region'],
  ])("%j is refused", (vars, message) => {
    expect(() => parseRegions(vars)).toThrow(message);
  });
});

describe("a policy with a pool", () => {
  const regions = parseRegions({ eu: { continents: ["EU"] }, us: { continents: ["NA"] } });
  const policies = parsePolicies({
    pooled: { ...BUCKET, pool: "redis", onFailure: "local" },
    plain: BUCKET,
    slots: { algorithm: "concurrency", limit: 5, pool: "redis", onFailure: "local", localShare: 0.4 },
  });
  const regional = new RegionalPolicies(policies, regions);
  const find = (name: string) => regional.get(name) as Policy;

  test("is a policy of its own in each region, and callers know it by one name", () => {
    const here = regional.within(find("pooled"), regions[1]);
    expect(here).toMatchObject({ name: "pooled@us", region: { name: "us" }, rules: [{ name: "pooled" }] });
    expect(regional.get("pooled@us")).toBe(here);
    expect(publicName(here.name)).toBe("pooled");
    expect(regional.within(find("pooled"), undefined).name).toBe("pooled@eu");
    expect(regional.get("pooled@mars")).toBeUndefined();
  });

  test("without one a policy is the same everywhere", () => {
    expect(regional.within(find("plain"), regions[1])).toBe(policies.get("plain"));
    expect(regional.get("plain@eu")).toBeUndefined();
  });

  test("alone a region has its part, never more: a bucket keeps its rate by a longer window", () => {
    const alone = find(localName(find("pooled@eu")));
    expect(alone).toMatchObject({
      rules: [{ capacity: 12, config: { limit: 12, windowMs: 2_000, burst: 12 } }],
    });
    expect(alone.pool).toBeUndefined();
    expect(find(localName(find("slots@us"))).rules[0].capacity).toBe(2);
  });

  test("of which less than a unit would be left to a region alone is refused", () => {
    const small = parsePolicies({
      login: { ...BUCKET, burst: 1, limit: 1, pool: "redis", onFailure: "local" },
    });
    expect(() => new RegionalPolicies(small, regions)).toThrow(
      'policy "login": with onFailure = "local" a region alone has 1 times 0.500 units of login',
    );
  });

  test("needs its secrets", () => {
    const UPSTASH_REDIS_REST_URL = "https://x.upstash.io";
    const UPSTASH_REDIS_REST_TOKEN = "t";
    expect(requirePool(policies, { UPSTASH_REDIS_REST_URL, UPSTASH_REDIS_REST_TOKEN })).toEqual({
      url: UPSTASH_REDIS_REST_URL,
      token: UPSTASH_REDIS_REST_TOKEN,
    });
    expect(requirePool(parsePolicies({ plain: BUCKET }), {})).toBeUndefined();
    expect(() => requirePool(policies, {})).toThrow(
      /policy "pooled": pool = "redis" needs two secrets\nUPSTASH_REDIS_REST_URL is missing.*\nUPSTASH_REDIS_REST_TOKEN is missing/,
    );
    expect(() =>
      requirePool(policies, { UPSTASH_REDIS_REST_TOKEN, UPSTASH_REDIS_REST_URL: "x.upstash.io" }),
    ).toThrow('UPSTASH_REDIS_REST_URL is "x.upstash.io": must be a secret');
    expect(() => requirePool(policies, { UPSTASH_REDIS_REST_URL, UPSTASH_REDIS_REST_TOKEN: " " })).toThrow(
      "UPSTASH_REDIS_REST_TOKEN is empty",
    );
  });
});
