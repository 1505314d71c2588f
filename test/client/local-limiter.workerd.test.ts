import { afterEach, describe, expect, test, vi } from "vitest";
import { inDeepRuns } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { call, freshKey, idIn, limit, report } from "../support/limiter.ts";
import { objectOf } from "../support/objects.ts";

afterEach(() => void vi.useRealTimers());

/** So many calls one after another, and who decided them. */
async function ask(policy: string, key: string, calls: number, fields: Record<string, unknown> = {}) {
  const answers = [];
  for (let made = 0; made < calls; made += 1) answers.push((await limit(policy, key, fields)).body);
  return answers;
}
const sources = (answers: readonly Record<string, unknown>[]) => answers.map(({ source }) => source);
const admitted = (answers: readonly Record<string, unknown>[]) =>
  answers.filter(({ success }) => success === true).length;

describe.each(["hot", "hot-log", "hot-rules"])("%s", (policy) => {
  test("a key that is asked for again and again is decided in the isolate, and every unit is counted", async () => {
    const key = freshKey();
    const answers = await ask(policy, key, 40);
    expect(sources(answers).slice(0, 4)).toEqual(["object", "object", "object", "isolate"]);
    expect(sources(answers).filter((source) => source === "isolate").length).toBeGreaterThan(20);
    expect(admitted(answers)).toBe(40);
    expect((await report(policy, key)).body).toMatchObject({ remaining: 99_960, outstanding: 0 });
  });

  test("of 800 calls, 100 at a time, exactly the limit is admitted", async () => {
    const key = freshKey();
    await limit(policy, key, { cost: policy === "hot-rules" ? { requests: 99_500 } : 99_500 });
    let units = 0;
    for (let wave = 0; wave < 8; wave += 1) {
      const answers = await Promise.all(Array.from({ length: 100 }, () => limit(policy, key)));
      units += admitted(answers.map(({ body }) => body));
    }
    expect(units).toBe(500);
  });
});

/** So many calls are needed until V8 optimizes the code: see `Latch` in core/clock.ts. */
inDeepRuns(
  "requests that wait for each other's messages are answered by optimized code too",
  { timeout: 600_000 },
  async () => {
    let last = "";
    for (let wave = 0; wave < 60; wave += 1) {
      const keys = Array.from({ length: 20 }, freshKey);
      last = keys.at(-1) ?? "";
      for (const key of keys) await Promise.all([1, 2, 3].map(() => limit("hot", key)));
      const answers = await Promise.all(
        keys.flatMap((key) => Array.from({ length: 10 }, () => limit("hot", key))),
      );
      expect(admitted(answers.map(({ body }) => body))).toBe(200);
    }
    // A request gives back few of them: units of the next test are not to wait for all others.
    await eventually(async () => {
      await limit("hot", freshKey());
      expect((await objectOf("hot", last).stub.peek("hot", last)).outstanding).toBe(0);
    });
  },
);

test("with reservations off the object decides every call, and a denial is not remembered", async () => {
  const key = freshKey();
  expect(new Set(sources(await ask("hot-off", key, 12)))).toEqual(new Set(["object"]));
  expect(sources(await ask("hot-off", key, 2, { cost: 999 }))).toEqual(["object", "object"]);
});

test("units that are not used go back when the lifetime ends, and nothing is lost", async () => {
  const key = freshKey();
  const object = objectOf("hot-brief", key);
  await ask("hot-brief", key, 6);
  const peeked = await object.stub.peek("hot-brief", key);
  expect(peeked.outstanding).toBeGreaterThan(0);
  await eventually(async () => expect((await object.stub.peek("hot-brief", key)).outstanding).toBe(0));
  expect(await object.remaining()).toBe(99_994);
});

test("a cost that is larger than what is reserved brings it home, and is decided on everything", async () => {
  const key = freshKey();
  await ask("hot", key, 5);
  const { body } = await limit("hot", key, { cost: 99_995 });
  expect(body).toMatchObject({ success: true, source: "object", remaining: 0 });
});

test("a large cost after calls that could have waited is decided on everything too", async () => {
  const key = freshKey();
  await ask("hot", key, 2, { waitMs: 1_000 });
  const { body } = await limit("hot", key, { cost: 99_998 });
  expect(body).toMatchObject({ success: true, source: "object", remaining: 0 });
});

describe("what the object has to decide", () => {
  test.each([
    ["a look", { cost: 0 }, 99_995],
    ["an idempotent call", { idempotencyKey: "once" }, 99_994],
  ])("%s has everything there is", async (_, fields, remaining) => {
    const key = freshKey();
    await ask("hot", key, 5);
    expect((await limit("hot", key, fields)).body).toMatchObject({ source: "object", remaining });
    expect((await objectOf("hot", key).stub.peek("hot", key)).outstanding).toBe(0);
  });

  test("an idempotent call on a hot key is charged once", async () => {
    const key = freshKey();
    await ask("hot", key, 5);
    for (let made = 0; made < 3; made += 1)
      expect((await limit("hot", key, { cost: 10, idempotencyKey: "order" })).body["remaining"]).toBe(99_985);
  });

  test("a hold may be for all that the isolate had reserved", async () => {
    const key = freshKey();
    await ask("hot", key, 5);
    const held = await call("/v1/holds", { body: { policy: "hot", key, units: 99_995 } });
    expect(held.body["success"]).toBe(true);
    const settled = await call(`/v1/holds/${idIn(held)}/settle`, { body: { used: 5 } });
    expect(settled.body["remaining"]).toBe(99_990);
  });

  test("a reset makes the key as new, whatever was reserved", async () => {
    const key = freshKey();
    await ask("hot", key, 8);
    expect((await call(`/v1/policies/hot/keys/${key}`, { method: "DELETE" })).status).toBe(204);
    expect((await report("hot", key)).body).toMatchObject({ remaining: 100_000, outstanding: 0 });
  });
});

describe("denials", () => {
  test("are remembered: the same cost is denied by the isolate, with what is left of the wait", async () => {
    const key = freshKey();
    await limit("hot", key, { cost: 99_995 });
    const [first, second] = await ask("hot", key, 2, { cost: 10 });
    expect(first).toMatchObject({ success: false, source: "object", remaining: 5 });
    expect(second).toMatchObject({ success: false, source: "isolate", reason: "quota", remaining: 5 });
    expect(Number(second?.["retryAfterMs"])).toBeLessThanOrEqual(Number(first?.["retryAfterMs"]));
    expect(Number(second?.["retryAfterMs"])).toBeGreaterThan(Number(first?.["retryAfterMs"]) - 1_000);
  });

  test("of a larger cost do not deny a smaller one that fits", async () => {
    const key = freshKey();
    await limit("hot", key, { cost: 99_995 });
    await ask("hot", key, 2, { cost: 10 });
    expect((await limit("hot", key, { cost: 5 })).body["success"]).toBe(true);
  });

  test.each([
    [
      "refund",
      (key: string) =>
        call("/v1/refund", { body: { policy: "hot", key, units: 100, idempotencyKey: "back" } }),
    ],
    ["reset", (key: string) => call(`/v1/policies/hot/keys/${key}`, { method: "DELETE" })],
  ])("are forgotten after a %s", async (_, giveBack) => {
    const key = freshKey();
    await limit("hot", key, { cost: 100_000 });
    expect(admitted(await ask("hot", key, 2))).toBe(0);
    await giveBack(key);
    expect((await limit("hot", key)).body["success"]).toBe(true);
  });

  test("in shadow are reported by the isolate too, and deny nobody", async () => {
    const key = freshKey();
    await limit("hot-shadow", key, { cost: 100 });
    const [, second] = await ask("hot-shadow", key, 2);
    expect(second).toMatchObject({ success: true, reason: "shadow", source: "isolate" });
    expect(second?.["violated"]).toEqual(["hot-shadow"]);
  });

  test("that count are counted by the object each time", async () => {
    const key = freshKey();
    const answers = await ask("hammered", key, 5);
    expect(new Set(sources(answers))).toEqual(new Set(["object"]));
  });
});

test("several rules are reserved together, each by its unit", async () => {
  const key = freshKey();
  const answers = await ask("hot-rules", key, 12, { cost: { requests: 1, tokens: 50 } });
  expect(sources(answers)).toContain("isolate");
  const { body } = await report("hot-rules", key);
  const remaining = (body["rules"] as { name: string; remaining: number }[]).map((rule) => rule.remaining);
  expect(remaining).toEqual([99_988, 999_400]);
});

test("the isolate says what remains of the quota, and not what it holds: in the headers too", async () => {
  const key = freshKey();
  for (let calls = 1; calls <= 40; calls += 1) {
    const { body, headers } = await limit("hot", key);
    expect(body["remaining"]).toBe(100_000 - calls);
    expect(headers.get("ratelimit")).toMatch(`r=${100_000 - calls};`);
    // A unit comes back every 25.92 s. Those that the isolate does not use come back within seconds.
    const wholeMs = calls * 25_920 + (body["source"] === "isolate" ? 10_000 : 100 * 25_920);
    expect(body["resetAfterMs"]).toBeLessThanOrEqual(wholeMs);
    expect(body["resetAfterMs"]).toBeGreaterThan(calls * 25_920 - 60_000);
  }
});

test("headers of a decision of the isolate are those of its figures", async () => {
  const key = freshKey();
  await ask("hot", key, 3);
  const { headers, body } = await limit("hot", key);
  expect(body["source"]).toBe("isolate");
  const seconds = Math.ceil(Number(body["resetAfterMs"]) / 1_000);
  expect(headers.get("ratelimit")).toBe(`"hot";r=${Number(body["remaining"])};t=${seconds}`);
  expect(headers.get("ratelimit-policy")).toBe('"hot";q=100000;w=2592000');
});
