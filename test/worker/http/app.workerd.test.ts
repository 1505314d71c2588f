import { describe, expect, test } from "vitest";
import { TEST_POLICIES, TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, limit } from "../../support/limiter.ts";

const problem = (status: number, code: string) => ({
  type: `urn:weir:problem:${code}`,
  status,
  title: expect.any(String),
  detail: expect.any(String),
});

describe("200", () => {
  test("a decision says everything the contract promises", async () => {
    const key = freshKey();
    const { status, headers, body } = await limit("api", key);
    expect(status).toBe(200);
    expect(body).toEqual({
      success: true,
      policy: "api",
      key,
      limit: 500,
      remaining: 499,
      resetAfterMs: 10,
      retryAfterMs: 0,
      reason: "ok",
      source: "object",
      rules: [
        {
          name: "api",
          success: true,
          limit: 500,
          remaining: 499,
          resetAfterMs: 10,
          retryAfterMs: 0,
          reason: "ok",
        },
      ],
    });
    expect(headers.get("content-type")).toBe("application/json");
    expect(headers.get("ratelimit-policy")).toBe('"api";q=100;w=1');
    expect(headers.get("ratelimit")).toBe('"api";r=499;t=1');
    expect(headers.has("retry-after")).toBe(false);
  });

  test("a denial is an answer too: 200, why, and how long to wait", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 5 });
    const { status, headers, body } = await limit("slow", key, { cost: 2 });
    expect(status).toBe(200);
    expect(body).toMatchObject({ success: false, remaining: 0, reason: "quota", violated: ["slow"] });
    const retryAfterMs = Number(body["retryAfterMs"]);
    expect(retryAfterMs).toBeGreaterThan(1_036_000_000);
    expect(retryAfterMs).toBeLessThanOrEqual(1_036_800_000);
    expect(headers.get("retry-after")).toBe(String(Math.ceil(retryAfterMs / 1_000)));
    expect(headers.get("ratelimit-policy")).toBe('"slow";q=5;w=2592000');
  });

  test("a cost over the limit answers never, without a Retry-After, and touches nothing", async () => {
    const key = freshKey();
    const { headers, body } = await limit("slow", key, { cost: 6 });
    expect(body).toMatchObject({
      success: false,
      reason: "cost-over-limit",
      retryAfterMs: null,
      remaining: 5,
    });
    expect(headers.has("retry-after")).toBe(false);
    expect((await limit("slow", key, { cost: 5 })).body["success"]).toBe(true);
  });

  test("a cost of 0 looks and takes nothing, also when nothing is left", async () => {
    const key = freshKey();
    expect((await limit("slow", key, { cost: 0 })).body).toMatchObject({ success: true, remaining: 5 });
    await limit("slow", key, { cost: 5 });
    expect((await limit("slow", key, { cost: 0 })).body).toMatchObject({ success: true, remaining: 0 });
  });

  test("a refund gives back what was taken, and not more", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 3 });
    const refund = (units: number) =>
      call("/v1/refund", { body: { policy: "slow", key, units, idempotencyKey: crypto.randomUUID() } });
    expect((await refund(2)).body).toMatchObject({ success: true, remaining: 4 });
    expect((await refund(1_000)).body).toMatchObject({ success: true, remaining: 5, resetAfterMs: 0 });
  });

  test("peeking tells what the next call would be told, and takes nothing", async () => {
    const key = freshKey("a/b c?d#%é");
    const path = `/v1/policies/slow/keys/${encodeURIComponent(key)}`;
    expect((await call(path)).body).toMatchObject({ key, success: true, remaining: 5, outstanding: 0 });
    await limit("slow", key, { cost: 5 });
    expect((await call(path)).body).toMatchObject({ success: false, remaining: 0, reason: "quota" });
  });

  test("a reset makes the key as new", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 5 });
    const reset = await call(`/v1/policies/slow/keys/${key}`, { method: "DELETE" });
    expect(reset.status).toBe(204);
    expect((await limit("slow", key, { cost: 5 })).body["success"]).toBe(true);
  });

  test("the policies are listed, each with its rules", async () => {
    const { body } = await call("/v1/policies");
    const policies = body["policies"] as { name: string }[];
    expect(policies.map(({ name }) => name)).toEqual(Object.keys(TEST_POLICIES));
    expect(policies.find(({ name }) => name === "moved")).toMatchObject({ objects: 8, objectsBefore: [4] });
    expect(policies[0]).toEqual({
      name: "api",
      rules: [
        {
          name: "api",
          algorithm: "token-bucket",
          unit: "requests",
          capacity: 500,
          limit: 100,
          windowMs: 1_000,
          burst: 500,
        },
      ],
      onFailure: "closed",
      deadlineMs: 1_000,
      maxWaitMs: 30_000,
      maxWaiters: 1_000,
      objects: "per-key",
      reservationTtlMs: 8_000,
      denialTtlMs: 10_000,
      shadow: false,
      headers: ["draft-11"],
      keyKind: "text",
      priorities: ["critical", "high", "normal", "low"],
      defaultPriority: "normal",
      ageingMs: 10_000,
      reserve: {},
    });
  });

  test("a shadow policy decides and reports, and never denies", async () => {
    const key = freshKey();
    await limit("shadow", key, { cost: 2 });
    const { body } = await limit("shadow", key);
    expect(body).toMatchObject({ success: true, reason: "shadow", retryAfterMs: 0, violated: ["shadow"] });
    expect(body["rules"]).toMatchObject([{ success: false, reason: "quota" }]);
  });

  test("health needs no token", async () => {
    expect(await call("/healthz", { token: "" })).toMatchObject({ status: 200, body: { status: "ok" } });
  });
});

describe("?deny=429", () => {
  test("an admission is still 200", async () => {
    expect((await call("/v1/limit?deny=429", { body: { policy: "slow", key: freshKey() } })).status).toBe(
      200,
    );
  });

  test("a denial is a 429 that names the policies violated", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 5 });
    const { status, headers, body } = await call("/v1/limit?deny=429", { body: { policy: "slow", key } });
    expect(status).toBe(429);
    expect(headers.get("content-type")).toBe("application/problem+json");
    expect(headers.get("retry-after")).toMatch(/^\d+$/);
    expect(headers.get("ratelimit")).toMatch(/^"slow";r=0;t=\d+$/);
    expect(body).toMatchObject({
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      status: 429,
      "violated-policies": ["slow"],
      decision: { success: false, reason: "quota" },
    });
  });

  test("any other status is refused", async () => {
    const { status, body } = await call("/v1/limit?deny=503", { body: { policy: "slow", key: freshKey() } });
    expect(status).toBe(422);
    expect(body["errors"]).toEqual([{ pointer: "/deny", detail: 'deny is "503": must be 429, or left out' }]);
  });

  test.each(["dney=429", "Deny=429", "deny=429&x=1", "deny=429&deny=200"])(
    "in other words (%s) is refused, and nothing is taken",
    async (query) => {
      const key = freshKey();
      const { status } = await call(`/v1/limit?${query}`, { body: { policy: "slow", key, cost: 2 } });
      expect(status).toBe(422);
      expect((await limit("slow", key, { cost: 0 })).body["remaining"]).toBe(5);
    },
  );
});

describe("400", () => {
  test.each([
    ["not JSON", "{"],
    ["nothing", ""],
    ["a trailing comma", '{"policy":"slow",}'],
  ])("a body that is %s", async (_, body) => {
    expect(await call("/v1/limit", { body })).toMatchObject({ status: 400, body: problem(400, "malformed") });
  });

  test("a key in the address that is not percent-encoded UTF-8", async () => {
    const called = await call("/v1/policies/slow/keys/%ff");
    expect(called).toMatchObject({ status: 400, body: problem(400, "malformed") });
  });
});

describe("401", () => {
  test.each([
    ["no token", ""],
    ["an unknown token", "weir_guess"],
    ["the hash instead of the token", "0".repeat(64)],
  ])("%s", async (_, token) => {
    const called = await call("/v1/limit", { token, body: { policy: "slow", key: "a" } });
    expect(called).toMatchObject({ status: 401, body: problem(401, "unauthorized") });
    expect(called.headers.get("www-authenticate")).toBe('Bearer realm="weir"');
  });

  test("another scheme", async () => {
    const called = await call("/v1/policies", {
      token: "",
      headers: { authorization: `Basic ${TOKENS.full}` },
    });
    expect(called.status).toBe(401);
  });
});

describe("403", () => {
  test.each([
    ["limit without the scope", TOKENS.admin, "/v1/limit", "POST"],
    ["refund without the scope", TOKENS.admin, "/v1/refund", "POST"],
    ["reset without the scope", TOKENS.limit, "/v1/policies/slow/keys/a", "DELETE"],
    ["an end of waits without the scope", TOKENS.limit, "/v1/policies/slow/keys/a/waiters", "DELETE"],
  ])("%s", async (_, token, path, method) => {
    const called = await call(path, {
      token,
      method,
      ...(method === "POST" && { body: { policy: "slow", key: "a" } }),
    });
    expect(called).toMatchObject({ status: 403, body: problem(403, "forbidden") });
  });

  test("a policy that the token may not use, whether there is one or not", async () => {
    for (const policy of ["slow", "nowhere"]) {
      const called = await call("/v1/limit", { token: TOKENS.tenant, body: { policy, key: "tenant-a:1" } });
      expect(called.status).toBe(403);
    }
    const { body } = await call("/v1/policies", { token: TOKENS.tenant });
    expect(body["policies"]).toMatchObject([{ name: "api" }]);
  });

  test("a key without the token's prefix", async () => {
    const token = TOKENS.tenant;
    expect((await call("/v1/limit", { token, body: { policy: "api", key: "tenant-b:1" } })).status).toBe(403);
    expect((await call("/v1/limit", { token, body: { policy: "api", key: "tenant-a:1" } })).status).toBe(200);
    expect((await call("/v1/policies/api/keys/tenant-b%3A1", { token })).status).toBe(403);
  });
});

describe("404", () => {
  test.each(["nowhere", "__proto__", "toString", ""])("the policy %j", async (policy) => {
    const called = await call("/v1/limit", { body: { policy, key: "a" } });
    expect(called).toMatchObject({ status: 404, body: problem(404, "policy-not-found") });
  });

  test("a policy may be called constructor", async () => {
    expect((await limit("constructor", freshKey())).body).toMatchObject({ success: true, limit: 1 });
  });

  test.each(["/", "/v2/limit", "/v1/limit/", "/v1/policies/slow/keys/", "/v1/policies/slow/"])(
    "%s",
    async (path) => {
      expect(await call(path)).toMatchObject({ status: 404, body: problem(404, "not-found") });
    },
  );
});

describe("405", () => {
  test.each([
    ["GET", "/v1/limit", "POST"],
    ["PUT", "/v1/refund", "POST"],
    ["OPTIONS", "/v1/limit", "POST"],
    ["POST", "/v1/policies", "GET, HEAD"],
    ["PATCH", "/v1/policies/slow/keys/a", "GET, HEAD, PUT, DELETE"],
    ["DELETE", "/healthz", "GET, HEAD"],
  ])("%s %s", async (method, path, allow) => {
    const called = await call(path, { method });
    expect(called).toMatchObject({ status: 405, body: problem(405, "method-not-allowed") });
    expect(called.headers.get("allow")).toBe(allow);
  });
});

describe("413", () => {
  test("a body over 16 KiB, and not one of exactly that", async () => {
    const body = (bytes: number) => JSON.stringify({ policy: "slow", key: "a" }).padEnd(bytes, " ");
    expect((await call("/v1/limit", { body: body(16_384) })).status).toBe(200);
    const called = await call("/v1/limit", { body: body(16_385) });
    expect(called).toMatchObject({ status: 413, body: problem(413, "body-too-large") });
  });
});

describe("415", () => {
  test.each(["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"])(
    "%s",
    async (contentType) => {
      const called = await call("/v1/limit", { body: "{}", headers: { "content-type": contentType } });
      expect(called).toMatchObject({ status: 415, body: problem(415, "unsupported-media-type") });
    },
  );

  test("a compressed body", async () => {
    const called = await call("/v1/limit", { body: "{}", headers: { "content-encoding": "gzip" } });
    expect(called.status).toBe(415);
  });

  test("a charset of utf-8 is fine", async () => {
    const headers = { "content-type": 'Application/JSON; charset="UTF-8"' };
    expect((await call("/v1/limit", { body: { policy: "slow", key: freshKey() }, headers })).status).toBe(
      200,
    );
  });
});

describe("422", () => {
  const key = "k".repeat(512);
  test.each([
    [{ key }, "/policy", "policy is missing: must be the name of a policy"],
    [{ policy: "slow" }, "/key", "key is missing: must be 1 to 512 bytes of UTF-8"],
    [{ policy: "slow", key: "" }, "/key", 'key is "": must be 1 to 512 bytes'],
    [{ policy: "slow", key: `${key}k` }, "/key", "must be 1 to 512 bytes"],
    [{ policy: "slow", key: "é".repeat(257) }, "/key", "must be 1 to 512 bytes"],
    [{ policy: "slow", key: "\ud800" }, "/key", 'key is "\\ud800": must be 1 to 512 bytes'],
    [{ policy: "slow", key: 7 }, "/key", "key is 7: must be 1 to 512 bytes"],
    [{ policy: "slow", key, cost: -1 }, "/cost", "cost is -1: must be an integer from 0 to 1000000000"],
    [{ policy: "slow", key, cost: 1.5 }, "/cost", "cost is 1.5: must be an integer"],
    [{ policy: "slow", key, cost: 1_000_000_001 }, "/cost", "cost is 1000000001: must be an integer"],
    [{ policy: "slow", key, cost: "1" }, "/cost", 'cost is "1": must be an integer'],
    [{ policy: "slow", key, cost: null }, "/cost", "cost is null: must be an integer"],
    [{ policy: "slow", key, cost: [1] }, "/cost", "cost is an array of 1: must be an integer"],
    [{ policy: "slow", key, idempotencyKey: "" }, "/idempotencyKey", "must be 1 to 256 bytes"],
    [
      { policy: "slow", key, costs: 5 },
      "/costs",
      "costs is not a field: there are policy, key, cost, idempotencyKey",
    ],
    ["text", "", 'the value is "text": must be an object with the fields policy, key'],
    [null, "", "the value is null: must be an object"],
  ])("%j", async (body, pointer, detail) => {
    const called = await call("/v1/limit", { body: JSON.stringify(body) });
    expect(called).toMatchObject({ status: 422, body: problem(422, "not-allowed") });
    expect(called.body["errors"]).toEqual([{ pointer, detail: expect.stringContaining(detail) }]);
  });

  test("a field called __proto__", async () => {
    const called = await call("/v1/limit", { body: '{"policy":"slow","key":"a","__proto__":{"cost":0}}' });
    expect(called.status).toBe(422);
    expect(called.body["errors"]).toMatchObject([{ pointer: "/__proto__" }]);
  });

  test("a refund without an idempotency key, or of nothing", async () => {
    const called = await call("/v1/refund", { body: { policy: "slow", key: "a", units: 0 } });
    expect(called.status).toBe(422);
    expect(called.body["errors"]).toMatchObject([{ pointer: "/units" }, { pointer: "/idempotencyKey" }]);
  });
});
