/** Refunds by callers who want more than they took: a charge is given back once, and only while it still counts. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { HttpCaller, tokenEntry } from "../support/callers.ts";
import type { TimedAnswer } from "../support/http-client.ts";
import { mostInWindow, worstExcess } from "../support/interval-bound.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { deadlineMs: 30_000 };
const WINDOW_MS = 700;
const policies = {
  /** Nothing is refilled while a test runs. */
  slow: { algorithm: "token-bucket", limit: 1, burst: 100, window: "30d", ...PATIENT },
  bucket: { algorithm: "token-bucket", limit: 10, window: WINDOW_MS, ...PATIENT },
  log: { algorithm: "sliding-log", limit: 10, window: WINDOW_MS, ...PATIENT },
};
const state = makeState();
let serving: Serving;
let [attacker, victim, trusted] = [] as unknown as [HttpCaller, HttpCaller, HttpCaller];
let keys = 0;
const freshKey = () => `key-${(keys += 1)}`;

beforeAll(async () => {
  const tokens = [
    tokenEntry("attacker"),
    tokenEntry("victim"),
    tokenEntry("trusted", { scopes: ["limit", "refund"] }),
  ];
  serving = await serveBundle(state, policies, { tokens });
  const caller = (name: string) => new HttpCaller(serving.url, name);
  [attacker, victim, trusted] = [caller("attacker"), caller("victim"), caller("trusted")];
});
afterAll(async () => {
  for (const caller of [attacker, victim, trusted]) caller.close();
  await serving.stop();
  removeState(state);
});

describe("refunds of a caller with the scope limit", () => {
  const refund = (caller: HttpCaller, key: string, fields: object, policy = "slow") =>
    caller.post("refund", { policy, key, ...fields });
  const remaining = async (key: string) => (await victim.peek("slow", key)).body["remaining"];
  /** Takes units under an idempotency key. */
  async function take(
    caller: HttpCaller,
    key: string,
    cost: number,
    idempotencyKey: string,
    policy = "slow",
  ) {
    const answer = await caller.limit(policy, key, { cost, idempotencyKey });
    expect(answer.body["success"]).toBe(true);
    return answer;
  }

  test("need a charge, or the scope refund", async () => {
    const key = freshKey();
    await take(attacker, key, 10, "take");
    const unnamed = await refund(attacker, key, { units: 10, idempotencyKey: "back" });
    expect([unnamed.status, await remaining(key)]).toEqual([403, 90]);
    expect((await refund(trusted, key, { units: 10, idempotencyKey: "back" })).status).toBe(200);
    expect(await remaining(key)).toBe(100);
  });

  test("give a charge back once, however often and under whatever idempotency key they are asked for", async () => {
    const key = freshKey();
    await take(victim, key, 30, "theirs");
    await take(attacker, key, 10, "take");
    for (const idempotencyKey of ["back", "back", "back 2", "take 2"])
      await refund(attacker, key, { units: 10, charge: "take", idempotencyKey });
    expect(await remaining(key)).toBe(70);
  });

  test("give back no more than the charge took, all at once or in parts", async () => {
    const [whole, parts] = [freshKey(), freshKey()];
    for (const key of [whole, parts]) {
      await take(victim, key, 30, "theirs");
      await take(attacker, key, 10, "take");
    }
    await refund(attacker, whole, { units: 25, charge: "take", idempotencyKey: "back" });
    expect(await remaining(whole)).toBeLessThanOrEqual(70);
    for (const part of [6, 6, 6])
      await refund(attacker, parts, { units: part, charge: "take", idempotencyKey: `back ${Math.random()}` });
    expect(await remaining(parts)).toBeLessThanOrEqual(70);
  });

  test("give back nothing for a charge of another caller, of another key, of a call that took nothing, or of none", async () => {
    const [key, other] = [freshKey(), freshKey()];
    await take(victim, key, 30, "theirs");
    await take(attacker, other, 10, "elsewhere");
    await take(attacker, key, 0, "free");
    await attacker.limit("slow", key, { cost: 99, idempotencyKey: "denied" });
    const stored = '\u0001{"token":"victim"}\u0001theirs';
    for (const charge of ["theirs", stored, "elsewhere", "free", "denied", "none"]) {
      const answer = await refund(attacker, key, { units: 5, charge, idempotencyKey: `back ${charge}` });
      expect(answer.status).toBeLessThan(500);
    }
    expect(await remaining(key)).toBe(70);
  });

  test("take the charge of a decision that was made to be refundable, once", async () => {
    const key = freshKey();
    await take(victim, key, 30, "theirs");
    const { body } = await attacker.limit("slow", key, { cost: 10, refundable: true });
    const { charge } = body;
    expect(charge).toEqual(expect.any(String));
    for (const idempotencyKey of ["back", "back again"])
      await refund(attacker, key, { units: 10, charge, idempotencyKey });
    expect(await remaining(key)).toBe(70);
  });

  test.concurrent.each(["bucket", "log"])(
    "give back nothing that has come back by itself: a %s admits no more than without the refund",
    async (policy) => {
      const key = freshKey();
      const admitted: TimedAnswer[] = [];
      const tryTen = async (idempotencyKey: string) => {
        const answer = await attacker.limit(policy, key, { cost: 10, idempotencyKey });
        if (answer.body["success"] === true) admitted.push(answer);
      };
      for (let round = 0; round < 3; round += 1) {
        await tryTen(`take ${round}`);
        await sleep(WINDOW_MS + 20);
        await tryTen(`take ${round} again`);
        await refund(
          attacker,
          key,
          { units: 10, charge: `take ${round}`, idempotencyKey: `back ${round}` },
          policy,
        );
        await tryTen(`take ${round} too much`);
        await sleep(WINDOW_MS + 20);
      }
      const calls = admitted.map((answer) => ({ ...answer, units: 10 }));
      expect(calls.length).toBeGreaterThanOrEqual(6);
      if (policy === "log") expect(mostInWindow(calls, WINDOW_MS)).toBeLessThanOrEqual(10);
      else expect(worstExcess(calls, { limit: 10, windowMs: WINDOW_MS, burst: 10 })).toBeLessThanOrEqual(0);
    },
  );
});
