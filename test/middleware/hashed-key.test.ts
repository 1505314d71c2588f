import { Hono } from "hono";
/** A credential is neither stored as a key nor shown to callers. */
import { createHmac } from "node:crypto";
import { expect, test } from "vitest";
import { withConcurrency, withRateLimit } from "../../package/fetch.ts";
import { hashedKey, rateLimit } from "../../package/hono.ts";
import { memoryLimiter } from "../../package/testing.ts";

const SECRET = "a secret of the tests";
const POLICIES = {
  api: { algorithm: "token-bucket", limit: 1, window: "1m" },
  day: { algorithm: "token-bucket", limit: 1, window: "1d" },
  jobs: { algorithm: "concurrency", limit: 1 },
};

test("it is the HMAC-SHA-256, as other programs make it, of 32 digits", async () => {
  const digits = createHmac("sha256", SECRET).update("weir-key-1").digest("hex").slice(0, 32);
  expect(await hashedKey("weir-key-1", SECRET)).toBe(`key_${digits}`);
  // Libraries take any spaces and tabs before the token: each kind would have a quota of its own.
  for (const before of ["Bearer ", "bearer  ", "Bearer\t", "BEARER \t "])
    expect(await hashedKey(`${before}weir-key-1`, SECRET)).toBe(`key_${digits}`);
});

test("another credential and another secret make other keys, also at the same time", async () => {
  const secrets = [SECRET, `${SECRET} too`];
  const keys = await Promise.all(
    ["a", "b", "a"].flatMap((credential) => secrets.map((secret) => hashedKey(credential, secret))),
  );
  expect(new Set(keys).size).toBe(4);
  expect(keys.slice(0, 2)).toEqual(keys.slice(4));
});

// As a header is read, without the space at its end.
test.each([undefined, null, "", "Bearer ", "Bearer", []])(
  "%j is no credential: its requests share a key",
  async (none) => {
    expect(await hashedKey(none, SECRET)).toBe("anonymous");
    expect(await hashedKey(none, SECRET, "nobody")).toBe("nobody");
  },
);

test.each([
  [undefined, "secret is missing: must be a text of at least 16 characters"],
  ["", "secret has 0 characters: must be"],
  ["too-short", "secret has 9 characters: must be"],
])("the secret %j is refused, and is not in the error", async (secret, said) => {
  const error = await hashedKey("k", secret).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(TypeError);
  expect(String(error)).toContain(said);
  if (secret) expect(String(error)).not.toContain(secret);
});

test("a limit by it stores no credential", async () => {
  const limiter = memoryLimiter({ policies: POLICIES });
  const key = (c: { req: { header(name: string): string | undefined } }) =>
    hashedKey(c.req.header("x-api-key"), SECRET);
  const app = new Hono().use(rateLimit({ limiter, policy: "api", key })).get("/", (c) => c.text("ok"));
  const get = (value: string) => app.request("/", { headers: { "x-api-key": value } });
  expect([(await get("one")).status, (await get("one")).status, (await get("two")).status]).toEqual([
    200, 429, 200,
  ]);
  expect(JSON.stringify(limiter.calls)).not.toMatch(/"(one|two)"/);
});

test("no answer to a denied request has the key, not in any of its decisions either", async () => {
  const limiter = memoryLimiter({ policies: POLICIES });
  const [key, policy] = ["a-very-secret-key", "api"];
  const ok = () => new Response("ok");
  const checks = ["api", "day"].map((each) => ({ policy: each, key }));
  await limiter.limit({ policy, key });
  await limiter.limit({ policy: "day", key });
  await limiter.acquire({ policy: "jobs", key });
  const answers = [
    await withRateLimit({ limiter, policy, key }, ok)(new Request("http://a/")),
    await withRateLimit({ limiter, limits: checks }, ok)(new Request("http://a/")),
    await withRateLimit({ limiter, limits: checks, mode: "any" }, ok)(new Request("http://a/")),
    await withConcurrency({ limiter, policy: "jobs", key }, ok)(new Request("http://a/")),
  ];
  for (const answer of answers) {
    expect([429, 503]).toContain(answer.status);
    const text = await answer.text();
    expect(text).not.toContain(key);
    expect(JSON.parse(text)).toMatchObject({ decision: { success: false } });
    expect(JSON.stringify([...answer.headers])).not.toContain(key);
  }
});
