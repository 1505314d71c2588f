/** A policy that is tried beside the one in force: it decides the same calls, and nobody notices. */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { createLimiter } from "../../package/client.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const LONG = { window: "30d", deadlineMs: 10_000 };
const bucket = (limit: number) => ({ algorithm: "token-bucket", limit, burst: limit, ...LONG });
const slots = (limit: number) => ({ algorithm: "concurrency", limit, ttl: "10m", deadlineMs: 10_000 });
const POLICIES = {
  plan: bucket(100),
  larger: bucket(20),
  log: { algorithm: "sliding-log", limit: 10, ...LONG },
  again: { algorithm: "sliding-log", limit: 10, ...LONG },
  held: bucket(10),
  slots: slots(3),
  "fewer-slots": slots(1),
  shadowed: { ...bucket(5), shadow: true },
  together: bucket(10),
  other: bucket(2),
  asked: { ...bucket(10), reservation: "off" },
  ruled: {
    rules: { requests: bucketRule(50), tokens: { ...bucketRule(100), unit: "tokens" } },
    deadlineMs: 10_000,
  },
};
const CANDIDATES: Record<string, object> = {
  plan: bucket(60),
  larger: bucket(30),
  log: { ...bucket(7), algorithm: "sliding-log", burst: undefined },
  held: bucket(6),
  slots: slots(2),
  "fewer-slots": slots(2),
  shadowed: bucket(3),
  together: bucket(4),
  asked: bucket(6),
  ruled: {
    rules: { requests: bucketRule(50), tokens: { ...bucketRule(40), unit: "tokens" } },
    deadlineMs: 10_000,
  },
};
function bucketRule(limit: number) {
  return { algorithm: "token-bucket", limit, burst: limit, window: "30d" };
}

const state = makeState();
let serving: Serving;

async function call(
  method: string,
  path: string,
  body?: object,
  headers: Record<string, string> = {},
  isolate = 0,
) {
  const response = await fetch(`${serving.urls[isolate] ?? ""}${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json", ...headers },
    ...(body && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, body: (text === "" ? {} : JSON.parse(text)) as Record<string, unknown> };
}

const candidateAt = (policy: string) => `/v1/policies/${policy}/candidate`;
const limit = async (policy: string, key: string, more: object = {}, isolate = 0) =>
  (await call("POST", "/v1/limit", { policy, key, ...more }, {}, isolate)).body;
const times = async (count: number, work: () => Promise<unknown>) => {
  for (let each = 0; each < count; each += 1) await work();
};
const acquire = async (key: string, more: object = {}) =>
  (await call("POST", "/v1/leases", { policy: "slots", key, ...more })).body as { lease?: { id: string } };
/** What a candidate does in the background is done when what comes after it is: each key has an object of its own. */
const settled = () => new Promise((done) => setTimeout(done, 250));

/** What has been compared, when so many calls are known. */
const compared = (policy: string, calls: number) =>
  vi.waitFor(
    async () => {
      const { body } = await call("GET", candidateAt(policy));
      expect(body["compared"]).toMatchObject({ calls });
      return body;
    },
    { timeout: 40_000, interval: 500 },
  );

beforeAll(async () => {
  serving = await serveBundle(state, POLICIES, { isolates: 2 });
  for (const [policy, fields] of Object.entries(CANDIDATES)) {
    const put = await call("PUT", candidateAt(policy), fields);
    expect(put).toMatchObject({ status: 200, body: { policy } });
  }
  await call("PUT", "/v1/policies/plan/overrides/customer:vip", { multiply: 2 });
  await call("PUT", "/v1/policies/plan/overrides/bad", { blocked: true });
  // Both isolates know of all this.
  await vi.waitFor(
    async () => expect(await limit("plan", "customer:vip", { cost: 0 }, 1)).toMatchObject({ limit: 200 }),
    { timeout: 20_000, interval: 200 },
  );
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

test.concurrent("what both decided is counted, and the keys are told that the candidate alone would deny", async () => {
  await times(120, () => limit("plan", "k"));
  // 60 of both, 60 of the policy alone, and nothing of either.
  await times(150, () => limit("plan", "customer:vip"));
  await times(5, () => limit("plan", "bad"));
  await times(40, () => limit("larger", "k"));
  // The first looks, and the second takes all that both have of another key: neither is compared, what follows is.
  await limit("larger", "debited", { cost: 0 });
  await limit("larger", "debited", { cost: 35, force: true });
  await settled();
  await limit("larger", "debited");
  await times(12, () => limit("log", "k"));
  await times(8, () => limit("shadowed", "k"));
  const body = await compared("plan", 275);
  expect(body["compared"]).toEqual({
    calls: 275,
    admittedByBoth: 60 + 120,
    deniedByCandidateAlone: 40 + 30,
    deniedByBoth: 20 + 5,
    deniedByPolicyAlone: 0,
    undecided: 0,
  });
  expect(body["keys"]).toEqual([
    { key: "k", count: 40, error: 0 },
    { key: "customer:vip", count: 30, error: 0 },
  ]);
  expect((await compared("larger", 41))["compared"]).toMatchObject({
    admittedByBoth: 20,
    deniedByPolicyAlone: 10,
    deniedByBoth: 11,
  });
  expect((await compared("log", 12))["compared"]).toMatchObject({
    admittedByBoth: 7,
    deniedByCandidateAlone: 3,
    deniedByBoth: 2,
  });
  // Of a policy in shadow it counts what it would have denied.
  expect((await compared("shadowed", 8))["compared"]).toMatchObject({
    admittedByBoth: 3,
    deniedByCandidateAlone: 2,
    deniedByBoth: 3,
  });
});

test.concurrent("one that comes after another begins untouched, also if it is the same", async () => {
  const tried = { algorithm: "sliding-log", limit: 4, ...LONG };
  await call("PUT", candidateAt("again"), tried);
  await times(4, () => limit("again", "k"));
  await settled();
  await call("DELETE", candidateAt("again"));
  await call("PUT", candidateAt("again"), tried);
  await times(2, () => limit("again", "k"));
  const { compared: sums } = await compared("again", 2);
  expect(sums).toMatchObject({ admittedByBoth: 2, deniedByCandidateAlone: 0, undecided: 0 });
});

test.concurrent("what the limiter decides for clients in their callers' processes is the candidate's too", async () => {
  await using limiter = createLimiter({ url: serving.url, token: TOKENS.full, policy: "asked" });
  await times(20, () => limiter.limit({ key: "k" }));
  expect(await compared("asked", 20)).toMatchObject({
    compared: { admittedByBoth: 6, deniedByCandidateAlone: 4, deniedByBoth: 10 },
  });
});

test.concurrent("it denies nobody, and takes nothing of what the policy has", async () => {
  expect(await limit("together", "alone", { cost: 10 })).toMatchObject({ success: true, remaining: 0 });
  await compared("plan", 275);
  const headers = { authorization: `Bearer ${TOKENS.full}` };
  const metrics = await (await fetch(`${serving.url}/metrics`, { headers })).text();
  expect(metrics).toMatch(/weir_compared_total\{policy="plan",candidate="\d+",denied_by="candidate"\} 70/);
  expect(metrics).not.toMatch(/weir_decisions_total\{policy="[a-z]+~/);
});

test.concurrent("leases that are renewed and released are the candidate's too", async () => {
  const granted = [await acquire("k"), await acquire("k"), await acquire("k")];
  await settled();
  expect((await acquire("k")).lease).toBeUndefined();
  const [first, second, third] = granted.map(({ lease }) => lease?.id ?? "");
  await call("POST", `/v1/leases/${first}/renew`, { ttlMs: 5_000 });
  await call("DELETE", `/v1/leases/${second}`);
  await settled();
  // One of the candidate's two is free again.
  await acquire("k", { idempotencyKey: "once" });
  await settled();
  await acquire("k", { idempotencyKey: "once" });
  await settled();
  await call("DELETE", `/v1/leases/${third}`);
  await settled();
  // It had no lease for the third, so it has none free for this one.
  await acquire("k");
  const { compared: sums } = await compared("slots", 7);
  expect(sums).toMatchObject({ admittedByBoth: 4, deniedByCandidateAlone: 2, deniedByBoth: 1, undecided: 0 });
});

test.concurrent("a lease that the policy did not grant holds nothing of the candidate", async () => {
  for (let each = 0; each < 3; each += 1) {
    await call("POST", "/v1/leases", { policy: "fewer-slots", key: "k" });
    await settled();
  }
  const { compared: sums } = await compared("fewer-slots", 3);
  expect(sums).toMatchObject({ admittedByBoth: 1, deniedByPolicyAlone: 2 });
});

test.concurrent("holds that are settled and cancelled, refunds and resets are the candidate's too", async () => {
  const hold = async (units: number, more: object = {}) => {
    const { body } = await call("POST", "/v1/holds", { policy: "held", key: "k", units, ...more });
    await settled();
    return (body as { hold?: { id: string } }).hold?.id ?? "";
  };
  const [one, two] = [await hold(4), await hold(2)];
  await hold(2);
  await call("POST", `/v1/holds/${one}/settle`, { used: 1 });
  await call("DELETE", `/v1/holds/${two}`);
  await settled();
  // The candidate has 5 of 6 left.
  await hold(5, { idempotencyKey: "once" });
  await hold(5, { idempotencyKey: "once" });
  await call("DELETE", "/v1/policies/held/keys/k");
  await settled();
  await limit("held", "k", { cost: 6, idempotencyKey: "charged" });
  await settled();
  await call("POST", "/v1/refund", {
    policy: "held",
    key: "k",
    units: 6,
    charge: "charged",
    idempotencyKey: "back",
  });
  await settled();
  await limit("held", "k", { cost: 6 });
  const { compared: sums } = await compared("held", 7);
  expect(sums).toMatchObject({ admittedByBoth: 6, deniedByCandidateAlone: 1, undecided: 0 });
});

test.concurrent("of several checks those are compared that took something, or were denied themselves", async () => {
  const both = (cost: number) =>
    call("POST", "/v1/limit/all", {
      checks: [
        { policy: "together", key: "k", cost },
        { policy: "other", key: "k", cost: 1 },
      ],
    });
  await both(3);
  await both(3);
  await settled();
  // `other` has nothing left, and `together` has 4: this one says nothing of `together`.
  await both(1);
  await limit("together", "k", { cost: 1 });
  // With the call of the test above that takes all units of another key.
  const { compared: sums } = await compared("together", 4);
  expect(sums).toMatchObject({ admittedByBoth: 2, deniedByCandidateAlone: 2 });
});

test.concurrent("a cost by units is put to the candidate's rules", async () => {
  for (let each = 0; each < 3; each += 1) await limit("ruled", "k", { cost: { requests: 1, tokens: 30 } });
  const { compared: sums } = await compared("ruled", 3);
  expect(sums).toMatchObject({ admittedByBoth: 1, deniedByCandidateAlone: 2 });
});

test("it outlives SIGKILL with what it counted, begins anew when it changes, and becomes the policy", async () => {
  const before = await compared("plan", 275);
  await serving.stop("SIGKILL");
  serving = await serveBundle(state, POLICIES, { isolates: 2 });
  const { body } = await call("GET", candidateAt("plan"));
  expect(body).toMatchObject({ candidate: CANDIDATES["plan"], compared: before["compared"] });
  const changed = await call("PUT", candidateAt("plan"), bucket(80), {
    "if-match": `"${String(body["version"])}"`,
  });
  expect(changed).toMatchObject({ status: 200, body: { candidate: { limit: 80 } } });
  expect((await call("GET", candidateAt("plan"))).body).toMatchObject({ compared: { calls: 0 }, keys: [] });
  const stale = { "if-match": `"${String(body["version"])}"` };
  expect((await call("POST", `${candidateAt("plan")}/promote`, undefined, stale)).status).toBe(412);
  const promoted = await call("POST", `${candidateAt("plan")}/promote`);
  expect(promoted).toMatchObject({ status: 200, body: { policy: "plan", limit: 80, source: "catalog" } });
  expect((await call("GET", candidateAt("plan"))).status).toBe(404);
  // What was consumed stays consumed: 100 of the 80 that there are now.
  expect(await limit("plan", "k")).toMatchObject({ success: false, limit: 80 });
  const { entries } = (await call("GET", "/v1/audit")).body as {
    entries: { target: string; after: unknown }[];
  };
  expect(entries.slice(0, 2).map(({ target }) => target)).toEqual(["policy plan", "candidate plan"]);
});
