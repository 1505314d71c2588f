import { expect, test } from "vitest";
import { Objects, type LimiterNamespace } from "../../../client/transports/objects.ts";
import { SYSTEM_TIME } from "../../../core/clock.ts";
import {
  parseBackgroundMs,
  parseDeployment,
  parsePolicies,
  requireHome,
} from "../../../core/policies/parse-policies.ts";
import { LOCATION_HINTS } from "../../../core/policies/policy.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { type ObjectNamespace, Places } from "../../../durable-objects/moves/key-moves.ts";

const given = (fields: object) => ({ a: { algorithm: "token-bucket", limit: 1, window: "1s", ...fields } });
const parse = (fields: object) => parsePolicies(given(fields)).get("a") as Policy;

test("a policy may say where its objects are", () => {
  expect(parse({})).not.toHaveProperty("locationHint");
  expect(parse({})).not.toHaveProperty("jurisdiction");
  expect(parse({ locationHint: "weur" }).locationHint).toBe("weur");
  expect(parse({ jurisdiction: "eu" }).jurisdiction).toBe("eu");
  expect(parse({}).regions).toBe("auto");
  expect(parse({ regions: "always", limit: 1_000 }).regions).toBe("always");
});

test.each([
  [{ locationHint: "europe" }, 'locationHint is "europe": must be one of "wnam", "enam", "sam", "weur"'],
  [{ jurisdiction: "EU" }, 'jurisdiction is "EU": must be one of "eu", "us", "fedramp"'],
  [{ jurisdiction: "eu", locationHint: "weur" }, "must be left out, or without a jurisdiction"],
  [{ jurisdiction: "eu", pool: "redis" }, 'jurisdiction is "eu": must be left out, or without a pool'],
  [{ regions: "never" }, 'regions is "never": must be one of "auto", "always", "off"'],
  [
    { regions: "always", pool: "redis" },
    'regions is "always": must be left out, "auto" or "off" with a pool',
  ],
  [{ regions: "always", jurisdiction: "eu" }, 'left out, "auto" or "off" with a jurisdiction'],
  [{ regions: "always", reservation: "off" }, 'left out, "auto" or "off" without reservations'],
  [{ regions: "always", limit: 100, reserve: { critical: 0.1 } }, 'left out, "auto" or "off" with reserve'],
  [{ regions: "always", blockFor: "1m" }, '"auto" or "off" with rules of the algorithm'],
  [{ locationHint: "weur", pool: "redis" }, 'locationHint is "weur": must be left out, or without a pool'],
])("%j is refused", (fields, said) => {
  expect(() => parse(fields)).toThrow(said);
});

/** A namespace that tells what it was asked. */
function telling(told: string[], place = ""): LimiterNamespace & ObjectNamespace {
  return {
    jurisdiction: (name: string) => telling(told, `${name}:`),
    idFromName: (name: string) => `${place}${name}`,
    getByName: (name: string, options?: object) => {
      told.push(`${place}${name} ${JSON.stringify(options ?? {})}`);
      return {} as never;
    },
  };
}

test("isolates ask the objects of the policy's jurisdiction, or near the place it names", () => {
  const told: string[] = [];
  const objects = new Objects(telling(told), SYSTEM_TIME);
  for (const fields of [{}, { locationHint: "oc" }, { jurisdiction: "eu" }])
    objects.objectOf(parse(fields), "k");
  expect(told).toEqual(["a/key/k {}", 'a/key/k {"locationHint":"oc"}', "eu:a/key/k {}"]);
});

test("where there are no jurisdictions, nobody is asked: the limiter has no answer", async () => {
  const without: LimiterNamespace = { getByName: () => ({}) as never };
  const asked = await new Objects(without, SYSTEM_TIME).ask(parse({ jurisdiction: "eu" }), "k", () =>
    Promise.resolve("an answer"),
  );
  expect(asked).toBeUndefined();
});

test("an object knows its own name within its jurisdiction only, and finds others there", () => {
  const told: string[] = [];
  const places = new Places(telling(told), "eu:a/shared/1", (policy) => (policy === "a" ? "eu" : undefined));
  expect(places.isHere("a/shared/1")).toBe(true);
  expect(places.isHere("a/shared/2")).toBe(false);
  expect(new Places(telling(told), "a/shared/1", () => "eu").isHere("a/shared/1")).toBe(false);
  places.objectAt("a/shared/2");
  expect(told).toEqual(["eu:a/shared/2 {}"]);
});

test("plain workerd has no jurisdictions: what it serves says so, and goes without", () => {
  const policies = given({ jurisdiction: "eu" });
  expect(parseDeployment({ policies }).policies.get("a")?.jurisdiction).toBe("eu");
  const ignored = parseDeployment({ policies, areJurisdictionsIgnored: true });
  expect(ignored.policies.get("a")).not.toHaveProperty("jurisdiction");
});

test("work in the background may be due sooner or later; anything else is refused with what is allowed", () => {
  expect([undefined, "200", 50, "60000"].map(parseBackgroundMs)).toEqual([undefined, 200, 50, 60_000]);
  for (const other of ["", "soon", 49, 60_001, 200.5])
    expect(() => parseBackgroundMs(other)).toThrow("must be a whole number from 50 to 60000");
});

test("the home of a deployment is one of Cloudflare's location hints, or left out", () => {
  for (const home of [undefined, ...LOCATION_HINTS]) expect(() => requireHome(home)).not.toThrow();
  for (const other of ["", "WEUR", "mars", 5, null, ["weur"]])
    expect(() => requireHome(other)).toThrow(
      /^bad configuration, not serving:\nHOME is .*: must be one of "wnam", .*"me"$/,
    );
});
