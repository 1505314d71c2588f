import { runInDurableObject } from "cloudflare:test";
import { afterEach, expect, test, vi } from "vitest";
import type { LimiterStub } from "../../client/transports/objects.ts";
import type { Env } from "../../worker/bindings/env.ts";
import { app } from "../../worker/http/app.ts";
import { eventually } from "../support/eventually.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { call, freshKey, limit } from "../support/limiter.ts";
import { objectOf } from "../support/objects.ts";

afterEach(() => vi.restoreAllMocks());

/** Makes a key's object fail as it really would: its storage refuses. */
async function breakStorage(policy: string, key: string): Promise<void> {
  const object = objectOf(policy, key);
  // An answer that is remembered needs tables.
  await object.limit(1, "remembered");
  await runInDurableObject(
    object.stub,
    (_, { storage }) => void storage.sql.exec("DROP TABLE journal; CREATE TABLE journal (broken TEXT)"),
  );
}

/** Makes a key's object hang: it takes no call until it is released. */
async function hang(policy: string, key: string): Promise<() => Promise<void>> {
  let [isHanging, isReleased] = [false, false];
  // Not awaited yet: it hangs too.
  const hung = runInDurableObject(objectOf(policy, key).stub, (_, state) =>
    state.blockConcurrencyWhile(async () => {
      isHanging = true;
      while (!isReleased) await scheduler.wait(20);
    }),
  );
  await eventually(() => expect(isHanging).toBe(true));
  return () => {
    isReleased = true;
    return hung;
  };
}

const DEGRADED = { reason: "degraded", source: "fallback", rules: [], limit: 5 };
const FIGURES = ["remaining", "resetAfterMs", "retryAfterMs"];

test.each([
  ["closed", false],
  ["open", true],
  ["shadow-closed", true],
])(
  "an object that throws: policy %s answers success %s, says it is degraded and invents no figures",
  async (policy, success) => {
    const key = freshKey();
    await breakStorage(policy, key);
    const { status, headers, body } = await limit(policy, key);
    expect(status).toBe(200);
    expect(body).toEqual({ success, policy, key, ...DEGRADED });
    expect(Object.keys(body)).not.toEqual(expect.arrayContaining(FIGURES));
    expect(headers.has("ratelimit")).toBe(false);
    expect(headers.has("retry-after")).toBe(false);
    expect(headers.get("ratelimit-policy")).toBe(`"${policy}";q=5;w=2592000`);
  },
);

test("an object that hangs is waited for until the deadline, then the policy decides", async () => {
  const key = freshKey();
  for (const [policy, success] of [
    ["open", true],
    ["closed", false],
  ] as const) {
    const release = await hang(policy, key);
    expect((await limit(policy, key)).body).toEqual({ success, policy, key, ...DEGRADED });
    await release();
    await eventually(async () => expect((await limit(policy, key)).body).toMatchObject({ source: "object" }));
  }
});

test("a degraded denial is not taken for a quota that is used up: ?deny=429 answers 503", async () => {
  const key = freshKey();
  await breakStorage("closed", key);
  const called = await call("/v1/limit?deny=429", { body: { policy: "closed", key } });
  expect(called).toMatchObject({
    status: 503,
    body: { type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", status: 503 },
  });
});

test("a refund that cannot be done is a 503, never a success, whatever onFailure says", async () => {
  const key = freshKey();
  await breakStorage("open", key);
  const called = await call("/v1/refund", { body: { policy: "open", key, units: 1, idempotencyKey: "a" } });
  expect(called).toMatchObject({ status: 503, body: { type: "urn:weir:problem:unavailable" } });
});

test("peek and reset of an object that hangs are a 503", async () => {
  const key = freshKey();
  const release = await hang("open", key);
  const path = `/v1/policies/open/keys/${key}`;
  expect((await call(path)).status).toBe(503);
  expect((await call(path, { method: "DELETE" })).status).toBe(503);
  await release();
});

test("an overloaded object is asked once and not again", async () => {
  // The one failure that cannot be had locally: the runtime's error for it, from a namespace of our own.
  const overloaded = Object.assign(new Error("Durable Object is overloaded."), {
    overloaded: true,
    remote: true,
  });
  const ask = vi.fn(() => Promise.reject(overloaded));
  const env = {
    OBJECTS: { getByName: () => ({ limit: ask, reserve: ask }) as unknown as LimiterStub },
    API_TOKENS: JSON.stringify(TEST_TOKENS),
  } satisfies Env;
  const response = await app.request(
    "/v1/limit",
    {
      method: "POST",
      headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
      body: JSON.stringify({ policy: "closed", key: "a" }),
    },
    env,
  );
  expect(await response.json()).toMatchObject({ success: false, reason: "degraded" });
  expect(ask).toHaveBeenCalledTimes(1);
});
