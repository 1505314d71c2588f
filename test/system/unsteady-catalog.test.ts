/** The catalog is slow, fails, is dead or silent: no call is told that something is not there, or is refused, for that. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { createLimiter } from "../../package/client.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { parsedMetrics } from "../support/metrics.ts";
import { BACKGROUND_MS, makeState, removeState, serveBundle } from "../support/served.ts";

const SUPPORT = join(import.meta.dirname, "..", "support");
const POLICIES = { api: { algorithm: "token-bucket", limit: 1_000, window: "30d" } };
const FATES = ["slow", "failing", "dead", "silent"] as const;
/** The catalog never answers, so what an isolate does not know stays unknown. */
const SILENT = ["failing", "dead", "silent"] as const;
const NEVER = depth(SILENT.slice(2), [...SILENT]);
const WHILE_KNOWN = depth([FATES[0], FATES[2]], [...FATES]);
const ISOLATES = 12;
const state = makeState();
let serving: Serving;
/** Isolates that nobody has called yet. */
let cold: number[] = [];
const coldIsolate = () => {
  const isolate = cold.pop();
  if (isolate === undefined) throw new Error("all isolates were called");
  return isolate;
};

const serve = async () => {
  cold = Array.from({ length: ISOLATES - 1 }, (_, each) => each + 1);
  const main = join(SUPPORT, "unsteady-catalog.mjs");
  const caller = join(SUPPORT, "bound-caller.mjs");
  const options = { main, caller, hasDeploymentObjects: true, isolates: ISOLATES };
  serving = await serveBundle(state, POLICIES, options);
};

type Answered = readonly [status: number, body: Record<string, unknown>];

async function call(
  isolate: number,
  how: string,
  body?: object,
  token: string = TOKENS.full,
): Promise<Answered> {
  const [method, path = ""] = how.split(" ");
  const response = await fetch(`${serving.urls[isolate] ?? ""}${path}`, {
    method: method ?? "",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    ...(body && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  const isJson = response.headers.get("content-type")?.includes("json") === true;
  return [response.status, isJson ? (JSON.parse(text) as Record<string, unknown>) : { text }];
}

/** How the catalog answers isolates from now on. Returns how many of their messages there were. */
async function answering(fate: (typeof FATES)[number] | "well"): Promise<number> {
  const response = await fetch(`${serving.url}/catalog`, { method: "PUT", body: fate });
  return (await response.json()) as number;
}

/** A token, policies, a lease and a hold that are not in the deployment's file. */
let made: { token: string; leases: string[]; holds: string[] };
const SLOTS = { policy: "slots", key: "k" };
const PLAN = { policy: "plan", key: "k" };

beforeAll(async () => {
  await serve();
  const plan = { algorithm: "token-bucket", limit: 1_000, window: "30d", objects: 1 };
  await call(0, "PUT /v1/policies/plan", plan);
  await call(0, "PUT /v1/policies/slots", { algorithm: "concurrency", limit: 1_000, ttl: "1h" });
  const [, { token }] = await call(0, "POST /v1/tokens", { name: "made", scopes: ["limit", "reserve"] });
  const leases: string[] = [];
  const holds: string[] = [];
  for (let each = 0; each < 20; each += 1) {
    const [, leased] = await call(0, "POST /v1/leases", SLOTS);
    const [, held] = await call(0, "POST /v1/holds", { ...PLAN, units: 1, ttlMs: 3_600_000 });
    leases.push((leased["lease"] as { id: string }).id);
    holds.push((held["hold"] as { id: string }).id);
  }
  made = { token: String(token), leases, holds };
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

/** Calls that need what was made at run time, with the status of their answers when the isolate knows of it. */
function callsOnMade(): readonly [status: number, how: string, body?: object | undefined, token?: string][] {
  const [lease = "", ended = "", held = "", settled = ""] = [
    ...made.leases.splice(0, 2),
    ...made.holds.splice(0, 2),
  ];
  const reserve = { protocol: 1, calls: [{ limit: { ...PLAN, cost: 1 } }] };
  return [
    [200, "POST /v1/limit", PLAN],
    [200, "POST /v1/limit?policy=plan&key=k"],
    [200, "POST /v1/limit", { policy: "api", key: "k" }, made.token],
    [200, "POST /v1/limit", PLAN, made.token],
    [200, "GET /v1/policies", undefined, made.token],
    [200, "GET /v1/token", undefined, made.token],
    [200, "POST /v1/reservations", reserve, made.token],
    [200, "POST /v1/limit/all", { checks: [{ policy: "api", key: "k" }, PLAN] }],
    [200, "POST /v1/limit/all", { checks: [PLAN], atomic: false }],
    [200, "POST /v1/refund", { ...PLAN, units: 1, idempotencyKey: "r" }],
    [200, "GET /v1/policies/plan/keys/k"],
    [204, "DELETE /v1/policies/plan/keys/other"],
    [200, "GET /v1/policies/plan/keys"],
    [200, "GET /v1/stats?policy=plan"],
    [200, "GET /v1/stats/keys?policy=plan"],
    [200, "POST /v1/leases", SLOTS],
    [200, `POST /v1/leases/${lease}/renew`, {}],
    [204, `DELETE /v1/leases/${ended}`],
    [200, `POST /v1/holds/${settled}/settle`, { used: 1 }],
    [204, `DELETE /v1/holds/${held}`],
  ];
}

/** What is not there, what is refused, and what the file decides: as far as that may depend on the catalog. */
async function expectOfOthers(isolate: number, isReached: boolean): Promise<void> {
  const code = (short: string) => ({ type: `urn:weir:problem:${short}` });
  const unknown = isReached ? [404, code("policy-not-found")] : [503, code("catalog-unreached")];
  const stranger = isReached ? [401, code("unauthorized")] : [503, code("catalog-unreached")];
  expect(await call(isolate, "POST /v1/limit", { policy: "nowhere", key: "k" })).toMatchObject(unknown);
  expect(await call(isolate, "POST /v1/limit", PLAN, "weir_wrong")).toMatchObject(stranger);
  expect(await call(isolate, "POST /v1/limit", { policy: "api", key: "k" })).toMatchObject([200, {}]);
  expect(await call(isolate, "POST /v1/limit", { policy: "plan", key: "k" }, "a b")).toMatchObject([401, {}]);
  const response = await fetch(`${serving.urls[isolate] ?? ""}/v1/policies`);
  expect(response.status).toBe(401);
}

describe.each(NEVER)("an isolate that the catalog has never answered, while it is %s", (fate) => {
  test("answers 503 to what the catalog alone may know, decides by the file, and recovers", async () => {
    await answering(fate);
    const isolate = coldIsolate();
    const calls = callsOnMade();
    for (const [, how, body, token] of calls) {
      const answer = await call(isolate, how, body, token);
      expect([how, ...answer]).toMatchObject([how, 503, { type: "urn:weir:problem:catalog-unreached" }]);
    }
    const batch = {
      protocol: 1,
      calls: [{ limit: { ...PLAN, cost: 1 } }, { limit: { ...PLAN, policy: "api", cost: 1 } }],
    };
    const [status, { answers }] = await call(isolate, "POST /v1/reservations", batch);
    expect([status, answers]).toMatchObject([
      200,
      [{ failed: expect.any(String) as string }, { decision: {} }],
    ]);
    await expectOfOthers(isolate, false);
    await answering("well");
    await expectKnown(isolate, calls);
    await expectOfOthers(isolate, true);
  });
});

/** Each call is answered with 503 until it is answered as ever. */
async function expectKnown(isolate: number, calls: ReturnType<typeof callsOnMade>): Promise<void> {
  for (const [expected, how, body, token] of calls) {
    let answer = await call(isolate, how, body, token);
    await vi.waitUntil(
      async () => {
        if (answer[0] !== 503) return true;
        expect([how, ...answer]).toMatchObject([how, 503, { type: "urn:weir:problem:catalog-unreached" }]);
        answer = await call(isolate, how, body, token);
        return false;
      },
      { timeout: 60_000, interval: 20 },
    );
    expect([how, ...answer]).toMatchObject([how, expected, {}]);
  }
}

test("an answer counts that comes later than a call waits for it", async () => {
  await answering("slow");
  const isolate = coldIsolate();
  await expectKnown(isolate, callsOnMade());
  await expectOfOthers(isolate, true);
  await answering("well");
});

test("a client in another process goes on as onFailure says, and throws nothing", async () => {
  await answering("failing");
  const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const url = serving.urls[coldIsolate()] ?? "";
  await using issued = createLimiter({ url, token: made.token });
  await using known = createLimiter({ url, token: TOKENS.full });
  for (const limiter of [issued, known])
    for (const decided of [
      limiter.limit(PLAN),
      limiter.limit({ ...PLAN, idempotencyKey: "i" }),
      limiter.hold({ ...PLAN, units: 1 }),
      limiter.acquire(SLOTS),
      limiter.limitAll({ checks: [PLAN] }).then(({ decisions }) => decisions[0]),
    ])
      expect(await decided).toMatchObject({ success: false, reason: "degraded" });
  const unreached = { status: 503, code: "catalog-unreached" };
  await expect(issued.peek(PLAN)).rejects.toMatchObject(unreached);
  await answering("well");
  await expect
    .poll(async () => await issued.limit(PLAN), { timeout: 60_000 })
    .toMatchObject({ reason: "ok" });
  warn.mockRestore();
});

test("over the service binding it is the same", async () => {
  await serving.stop();
  await serve();
  await answering("failing");
  const bound = async (method: string, argument: object): Promise<Answered> => {
    const body = JSON.stringify({ binding: "LIMITER", method, argument });
    const response = await fetch(serving.callerUrl, { method: "POST", body });
    const answered = (await response.json()) as { status: number; body: Record<string, unknown> };
    return [answered.status, answered.body];
  };
  const calls: [string, object][] = [
    ["limit", PLAN],
    ["limitAll", { checks: [PLAN] }],
    ["acquire", { ...SLOTS, detached: true }],
    ["renew", { id: made.leases.pop() ?? "" }],
    ["peek", PLAN],
    ["keys", { policy: "plan" }],
  ];
  for (const [method, argument] of calls)
    expect([method, ...(await bound(method, argument))]).toMatchObject([
      method,
      503,
      { code: "catalog-unreached" },
    ]);
  expect(await bound("limit", { policy: "api", key: "k" })).toMatchObject([200, { success: true }]);
  await answering("well");
  await expect.poll(async () => await bound("limit", PLAN), { timeout: 60_000 }).toMatchObject([200, {}]);
  for (const [method, argument] of calls)
    expect([method, ...(await bound(method, argument))]).toMatchObject([method, 200, {}]);
  expect(await bound("limit", { policy: "nowhere", key: "k" })).toMatchObject([404, {}]);
});

describe.each(WHILE_KNOWN)("an isolate that knows the catalog, while it is %s", (fate) => {
  test("goes on with what it knows, and then learns what has changed", async () => {
    await answering("well");
    const isolate = coldIsolate();
    const name = `revoked-${fate}`;
    const [, issued] = await call(0, "POST /v1/tokens", { name, scopes: ["limit"] });
    const revoked = String(issued["token"]);
    expect(await call(isolate, "POST /v1/limit", PLAN, revoked)).toMatchObject([200, {}]);
    await answering(fate);
    const pattern = `blocked-${fate}`;
    // It may die of another isolate's message while it answers this one.
    const block = async () =>
      (await call(0, `PUT /v1/policies/plan/overrides/${pattern}`, { blocked: true }))[0] < 300;
    await expect.poll(block, { timeout: 30_000 }).toBe(true);
    expect(await call(0, `DELETE /v1/tokens/${name}`)).toMatchObject([204, {}]);
    const calls = callsOnMade();
    for (const [expected, how, body, token] of calls)
      expect([how, ...(await call(isolate, how, body, token))]).toMatchObject([how, expected, {}]);
    await expectOfOthers(isolate, true);
    if (fate !== "slow") {
      // The revocation cannot be known, and nothing that was known is forgotten.
      expect(await call(isolate, "POST /v1/limit", PLAN, revoked)).toMatchObject([200, {}]);
      await answering("well");
    }
    const blocked = { policy: "plan", key: pattern };
    const inForce = async () => [
      (await call(isolate, "POST /v1/limit", blocked))[1]["reason"],
      (await call(isolate, "POST /v1/limit", PLAN, revoked))[0],
    ];
    await expect.poll(inForce, { timeout: 60_000 }).toEqual(["blocked", 401]);
    await answering("well");
    expect(await call(isolate, "POST /v1/limit", PLAN, made.token)).toMatchObject([200, {}]);
  });
});

test("strangers bring a new isolate to ask the catalog once at a time, at a bounded rate, and others not at all", async () => {
  const flood = async (isolate: number, calls: number) => {
    const wrong = Array.from({ length: calls }, (_, each) =>
      call(isolate, "POST /v1/limit", PLAN, `weir_wrong_${each}`),
    );
    return new Set((await Promise.all(wrong)).map(([status]) => status));
  };
  const silent = coldIsolate();
  let before = await answering("silent");
  const nobody = await Promise.all(
    Array.from({ length: 100 }, () => fetch(`${serving.urls[silent] ?? ""}/v1/policies`)),
  );
  expect(new Set(nobody.map(({ status }) => status))).toEqual(new Set([401]));
  expect(await answering("silent")).toBe(before);
  expect(await flood(silent, 200)).toEqual(new Set([503]));
  expect((await answering("silent")) - before).toBe(1);
  before = await answering("failing");
  const failing = coldIsolate();
  const sinceMs = performance.now();
  for (let each = 0; each < 20; each += 1) expect(await flood(failing, 20)).toEqual(new Set([503]));
  // The pause after the first failure is a fifth of the usual time, at least three quarters of that.
  const pausesMs = performance.now() - sinceMs;
  const asked = (await answering("well")) - before;
  expect(asked).toBeLessThanOrEqual(1 + pausesMs / (0.75 * (BACKGROUND_MS / 5)));
  await expect.poll(async () => await flood(failing, 1), { timeout: 60_000 }).toEqual(new Set([401]));
  await expect
    .poll(async () => await call(failing, "POST /v1/limit", PLAN, made.token))
    .toMatchObject([200, {}]);
});

test("failures and the age of what was known are counted", async () => {
  await answering("failing");
  const isolate = coldIsolate();
  const counts = async () => {
    await call(0, "POST /v1/limit", PLAN);
    await call(isolate, "POST /v1/limit", PLAN);
    const headers = { authorization: `Bearer ${TOKENS.metrics}` };
    const { samples } = parsedMetrics(await (await fetch(`${serving.url}/metrics`, { headers })).text());
    const inForce = (what: string) => samples.get(`weir_catalog_failures_total{in_force="${what}"}`) ?? 0;
    return [
      inForce("file") > 0,
      inForce("catalog") > 0,
      (samples.get("weir_catalog_age_seconds_sum") ?? 0) > 0,
    ];
  };
  await expect.poll(counts, { timeout: 60_000 }).toEqual([true, true, true]);
  await answering("well");
});
