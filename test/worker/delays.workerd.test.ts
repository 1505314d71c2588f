/** Calls that are admitted and told to wait (`delayMs`), over HTTP and in real objects. */
import { describe, expect, test } from "vitest";
import { call, freshKey, limit, report } from "../support/limiter.ts";
import { objectOf } from "../support/objects.ts";
import { at, START_MS } from "../support/virtual-date.ts";

const HOUR_MS = 3_600_000;
const hours = (count: number) => count * HOUR_MS;
const NEXT_MS = HOUR_MS - (START_MS % HOUR_MS);

/** What each call of cost 1 is told at one instant, until one is denied. */
const TOLD: readonly [policy: string, delaysMs: (number | undefined)[]][] = [
  ["leaky", [undefined, hours(1), hours(2), hours(3)]],
  ["cycles", [undefined, NEXT_MS, NEXT_MS + hours(1)]],
  ["bursty", [undefined, undefined, hours(1)]],
  ["warming", [undefined, hours(2.5), hours(4)]],
];

describe.each(TOLD)("%s", (policy, delaysMs) => {
  test("tells its delays over HTTP, also when the object is evicted or crashes in between", async () => {
    const key = freshKey();
    at(0);
    for (const [index, delayMs] of delaysMs.entries()) {
      const { body } = await limit(policy, key);
      expect(body).toMatchObject({ success: true, reason: "ok", source: "object" });
      expect([body["delayMs"], (body["rules"] as { delayMs?: number }[])[0]?.delayMs]).toEqual([
        delayMs,
        delayMs,
      ]);
      if (index % 2 === 0) await objectOf(policy, key).evict();
      else await objectOf(policy, key).crash();
    }
    const { status, body } = await limit(policy, key);
    expect([status, body["success"], body["reason"]]).toEqual([200, false, "quota"]);
    expect(body).not.toHaveProperty("delayMs");
    expect(body["retryAfterMs"]).toBeGreaterThan(0);
  });

  test("tells them to holds too, which delay others as long as they last", async () => {
    const key = freshKey();
    at(0);
    const hold = () => call("/v1/holds", { body: { policy, key, units: 1, ttlMs: 60_000 } });
    for (const delayMs of delaysMs) expect((await hold()).body["delayMs"]).toBe(delayMs);
    expect((await hold()).body["success"]).toBe(false);
    expect((await limit(policy, key)).body["success"]).toBe(false);
  });

  test("a look says what the next call would be told", async () => {
    const key = freshKey();
    at(0);
    for (const delayMs of delaysMs) {
      expect((await report(policy, key)).body["delayMs"]).toBe(delayMs);
      await limit(policy, key);
    }
    expect((await report(policy, key)).body).not.toHaveProperty("delayMs");
  });
});

test("an answer that is repeated tells the delay of its call", async () => {
  const key = freshKey();
  at(0);
  await limit("leaky", key);
  const again = () => limit("leaky", key, { idempotencyKey: "once" });
  const [first, second] = [await again(), await again()];
  expect([first.body["delayMs"], second.body["delayMs"]]).toEqual([HOUR_MS, HOUR_MS]);
  expect((await limit("leaky", key)).body["delayMs"]).toBe(hours(2));
});

test("the longest delay of several rules is the policy's, and each of several keys has its own", async () => {
  const [key, other] = [freshKey(), freshKey()];
  at(0);
  await limit("leaky-rules", key);
  const { body } = await call("/v1/limit/all", {
    body: { checks: [key, other].map((each) => ({ policy: "leaky-rules", key: each })) },
  });
  const decisions = body["decisions"] as { delayMs?: number; rules: { delayMs?: number }[] }[];
  expect(decisions.map(({ delayMs }) => delayMs)).toEqual([HOUR_MS, undefined]);
  expect(decisions[0]?.rules.map(({ delayMs }) => delayMs)).toEqual([undefined, HOUR_MS / 4, HOUR_MS]);
});

test("in shadow nobody is told to wait, and the rules say what they would tell", async () => {
  const key = freshKey();
  at(0);
  const told = [];
  for (let count = 0; count < 3; count += 1) told.push((await limit("leaky-shadow", key)).body);
  expect(told.map(({ success, reason, delayMs }) => [success, reason, delayMs])).toEqual([
    [true, "ok", undefined],
    [true, "ok", undefined],
    [true, "shadow", undefined],
  ]);
  expect(told.map(({ rules }) => (rules as { delayMs?: number }[])[0]?.delayMs)).toEqual([
    undefined,
    HOUR_MS,
    undefined,
  ]);
});
