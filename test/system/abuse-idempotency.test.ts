/** A caller who knows the idempotency keys of another: it gets answers of its own, and takes none away. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { beside, byStatus, HttpCaller, idOf, manyTimes, storedIn, tokenEntry } from "../support/callers.ts";
import { depth, inDeepRuns } from "../support/depth.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { deadlineMs: 30_000 };
const bucket = (limit: number, more: object = {}) => ({
  algorithm: "token-bucket",
  limit,
  window: "30d",
  ...more,
});
const policies = {
  /** Refilled once in 30 days. */
  quota: { ...bucket(1, { burst: 100_000 }), ...PATIENT },
  shared: {
    rules: { requests: bucket(1_000), tokens: bucket(1_000_000, { unit: "tokens" }) },
    objects: 1,
    ...PATIENT,
  },
  slots: { algorithm: "concurrency", limit: 1_000, ttl: "10m", ...PATIENT },
};
/** More answers of one caller on one key than a segment has, or the journal. */
const ANSWERS = 6_000;
// Deep runs make thousands of calls that are written. The same bounds are tested inside workerd, and the ranges in the core.

const state = makeState();
let serving: Serving;
let attacker: HttpCaller;
let victim: HttpCaller;
let keys = 0;
const freshKey = () => `key-${(keys += 1)}`;

async function start(): Promise<void> {
  // Refunds that name no charge have idempotency keys too.
  const grant = { scopes: ["limit", "refund"] };
  const tokens = [tokenEntry("attacker", grant), tokenEntry("victim", grant)];
  // Without statistics, which write several times a second in tests: this file measures what idempotency stores.
  serving = await serveBundle(state, policies, { tokens, hasDeploymentObjects: false });
  [attacker, victim] = [new HttpCaller(serving.url, "attacker"), new HttpCaller(serving.url, "victim")];
}
beforeAll(start);
afterAll(async () => {
  attacker.close();
  victim.close();
  await serving.stop();
  removeState(state);
});

/** The calls that take an idempotency key, each with another request under the same one. */
const CALLS: Record<string, { path: string; policy: keyof typeof policies; body: object; other: object }> = {
  limit: { path: "limit", policy: "quota", body: { cost: 3 }, other: { cost: 4 } },
  refund: { path: "refund", policy: "quota", body: { units: 3 }, other: { units: 4 } },
  hold: { path: "holds", policy: "quota", body: { units: 3 }, other: { units: 4 } },
  acquire: { path: "leases", policy: "slots", body: { units: 3 }, other: { units: 4 } },
};

/** Idempotency keys by which a caller might come to what another was answered under `key`. */
const GUESSES: Record<string, (key: string) => string> = {
  "the key itself": (key) => key,
  "the key as it is stored for the victim": (key) => `\u0001{"token":"victim"}\u0001${key}`,
  "the rest of the key as it is stored": (key) => `{"token":"victim"}\u0001${key}`,
  "the key after a mark": (key) => `\u0001${key}`,
};

describe.each(Object.entries(CALLS))("an idempotency key of %s", (_name, { path, policy, body, other }) => {
  test.each(Object.entries(GUESSES))("is the victim's own: %s", async (_, guess) => {
    const key = freshKey();
    // Something has been taken, so that a refund has something to give back.
    if (policy === "quota") await victim.limit(policy, key, { cost: 50 });
    const ask = (caller: HttpCaller, fields: object, idempotencyKey: string) =>
      caller.post(path, { policy, key, ...fields, idempotencyKey });
    const first = await ask(victim, body, "order-1");
    expect(first.status).toBe(200);
    const theirs = await ask(attacker, body, guess("order-1"));
    // It was not told the victim's answer, but charged for its own call.
    expect(theirs.status).toBe(200);
    expect(theirs.body["remaining"]).not.toBe(first.body["remaining"]);
    if (path === "holds" || path === "leases") expect(idOf(theirs)).not.toBe(idOf(first));
    const another = await ask(attacker, other, `${guess("order-1")} again`);
    expect(another.status).toBe(200);
    // Under the attacker's own key another request is its own conflict, which tells of its own first request.
    const conflict = await ask(attacker, other, guess("order-1"));
    expect(conflict.status).toBe(409);
    const again = await ask(victim, body, "order-1");
    expect([again.status, again.body["remaining"]]).toEqual([200, first.body["remaining"]]);
    if (path === "holds" || path === "leases") expect(idOf(again)).toBe(idOf(first));
  });

  test("tells nobody else that it was used: another request under it is answered, and is no 409", async () => {
    const key = freshKey();
    await victim.post(path, { policy, key, ...body, idempotencyKey: "order-2" });
    for (const guess of Object.values(GUESSES)) {
      const idempotencyKey = guess("order-2");
      const answer = await attacker.post(path, { policy, key, ...other, idempotencyKey });
      expect([answer.status, answer.body["success"]]).toEqual([200, true]);
    }
  });
});

test.each(Object.entries(GUESSES))(
  "an idempotency key of limit/all is the victim's own: %s",
  async (_, guess) => {
    const [one, two] = [freshKey(), freshKey()];
    const ask = (caller: HttpCaller, cost: number, idempotencyKey: string) => {
      const check = (key: string) => ({ policy: "quota", key, cost });
      return caller.post("limit/all", { checks: [check(one), check(two), check(one)], idempotencyKey });
    };
    const remaining = async () => (await victim.peek("quota", one)).body["remaining"];
    const first = await ask(victim, 3, "order-3");
    expect(first.body["success"]).toBe(true);
    expect((await ask(attacker, 3, guess("order-3"))).body["success"]).toBe(true);
    expect((await ask(attacker, 5, guess("order-3 (3)"))).body["success"]).toBe(true);
    expect(await remaining()).toBe(100_000 - 6 - 6 - 10);
    expect((await ask(victim, 3, "order-3")).body["success"]).toBe(true);
    expect(await remaining()).toBe(100_000 - 6 - 6 - 10);
  },
);

test("calls that take nothing write nothing under their idempotency keys, and push nothing out", async () => {
  const key = freshKey();
  const once = { cost: 3, idempotencyKey: "order-4" };
  const first = await victim.limit("quota", key, once);
  const stored = storedIn(state);
  const free = (index: number) => attacker.limit("quota", key, { cost: 0, idempotencyKey: `free-${index}` });
  const calls = depth(1_050, 10_050);
  expect(byStatus(await manyTimes(calls, 64, free))).toEqual({ 200: calls });
  const byUnit = { cost: { requests: 0, tokens: 0 }, idempotencyKey: "free" };
  expect((await attacker.limit("shared", key, byUnit)).status).toBe(200);
  // Answers of 350 bytes each would be 0.35 MiB at least. The log of a database that is written grows in steps.
  expect(storedIn(state) - stored).toBeLessThan(0.25);
  // Nothing is remembered of a call that takes nothing, so the same key is free for another request.
  expect((await attacker.limit("quota", key, { cost: 2, idempotencyKey: "free-1" })).status).toBe(200);
  expect((await victim.limit("quota", key, once)).body["remaining"]).toBe(first.body["remaining"]);
  expect((await victim.peek("quota", key)).body["remaining"]).toBe(100_000 - 3 - 2);
});

inDeepRuns(
  "thousands of charged calls in a minute are admitted, and push nobody's answer out: the victim's retry is answered as first",
  async () => {
    const key = freshKey();
    const once = { cost: 3, idempotencyKey: "order-5" };
    const first = await victim.limit("quota", key, once);
    const charged = (index: number) => attacker.limit("quota", key, { idempotencyKey: `charge-${index}` });
    const answers = await beside(victim, "shared", () => manyTimes(ANSWERS, 64, charged));
    expect(answers.filter(({ status }) => status !== 200)).toEqual([]);
    expect((await victim.limit("quota", key, once)).body["remaining"]).toBe(first.body["remaining"]);
    expect((await victim.peek("quota", key)).body["remaining"]).toBe(100_000 - 3 - ANSWERS);
    // A retry of the first is answered, and charges nothing.
    expect((await charged(0)).body["remaining"]).toBe(answers[0]?.body["remaining"]);
    expect((await victim.peek("quota", key)).body["remaining"]).toBe(100_000 - 3 - ANSWERS);
  },
);

describe("what is remembered of a hold's end", () => {
  const secretOf = (id: string) => id.slice(id.indexOf(".") + 1);

  test("is not found, changed or pushed out by calls under the hold's secret as an idempotency key", async () => {
    const key = freshKey();
    const id = idOf(await victim.hold("quota", key, { units: 10 }));
    const first = await victim.settle(id, 4);
    const secret = secretOf(id);
    for (const guess of [secret, `\u0001${secret}`, id]) {
      for (const { path, body } of Object.values(CALLS).filter(({ policy }) => policy === "quota"))
        expect(
          (await attacker.post(path, { policy: "quota", key, ...body, idempotencyKey: `${guess}${path}` }))
            .status,
        ).toBe(200);
      expect((await attacker.limit("quota", key, { cost: 1, idempotencyKey: guess })).status).toBe(200);
    }
    const again = await victim.settle(id, 9);
    expect([again.status, again.body["remaining"]]).toEqual([200, first.body["remaining"]]);
  });

  inDeepRuns(
    "lasts for a caller that settles again, however many holds another makes and settles meanwhile",
    async () => {
      const key = freshKey();
      const id = idOf(await victim.hold("quota", key, { units: 10 }));
      const first = await victim.settle(id, 4);
      const churn = async () => attacker.settle(idOf(await attacker.hold("quota", key)), 0);
      expect(byStatus(await manyTimes(ANSWERS + 150, 64, churn))).toEqual({ 200: ANSWERS + 150 });
      const again = await victim.settle(id, 4);
      expect([again.status, again.body["remaining"]]).toEqual([200, first.body["remaining"]]);
    },
  );
});
