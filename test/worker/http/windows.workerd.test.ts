import { afterEach, describe, expect, test, vi } from "vitest";
import { Calendar } from "../../../core/algorithms/windows/calendar.ts";
import { call, freshKey, idIn, limit } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

/** The end of this month in Berlin. */
const endMs = () => Calendar.of("month", "Europe/Berlin")?.around(Date.now()).endMs ?? 0;
const figure = (body: Record<string, unknown>, name: string) => Number(body[name]);

describe("a month in Europe/Berlin", () => {
  test("lasts until its real end, in the answer and in the headers", async () => {
    const key = freshKey();
    const [before, fromMs] = [endMs(), Date.now()];
    const first = await limit("monthly", key, { cost: 50 });
    const denied = await limit("monthly", key);
    const [after, toMs] = [endMs(), Date.now()];
    expect(first.body).toMatchObject({ success: true, remaining: 0 });
    expect(first.headers.get("ratelimit-policy")).toBe('"monthly";q=50;w=2592000');
    // A month that ends while this test runs has another end.
    if (before !== after) return;
    expect(denied.body).toMatchObject({ success: false, reason: "quota", remaining: 0 });
    for (const ms of [figure(first.body, "resetAfterMs"), figure(denied.body, "retryAfterMs")]) {
      expect(ms).toBeLessThanOrEqual(before - fromMs);
      expect(ms).toBeGreaterThanOrEqual(before - toMs);
    }
    const retryAfterMs = figure(denied.body, "retryAfterMs");
    expect(denied.headers.get("retry-after")).toBe(String(Math.ceil(retryAfterMs / 1_000)));
  });

  test("counts what a hold has really used, and gives back what a charge took", async () => {
    const key = freshKey();
    const held = await call("/v1/holds", { body: { policy: "monthly", key, units: 30 } });
    expect((await limit("monthly", key, { cost: 21 })).body).toMatchObject({ success: false, remaining: 20 });
    await call(`/v1/holds/${idIn(held)}/settle`, { body: { used: 10 } });
    const charged = await limit("monthly", key, { cost: 25, refundable: true });
    expect(charged.body).toMatchObject({ success: true, remaining: 15 });
    const { charge } = charged.body as { charge: string };
    const refund = { policy: "monthly", key, units: 5, charge, idempotencyKey: freshKey() };
    expect((await call("/v1/refund", { body: refund })).body).toMatchObject({ remaining: 20 });
  });
});

test("in shadow, windows decide and report, and deny nothing", async () => {
  const key = freshKey();
  await limit("shadow-windows", key, { cost: 2 });
  const { body } = await limit("shadow-windows", key, { cost: 2 });
  expect(body).toMatchObject({ success: true, violated: ["year"] });
  expect(body["rules"]).toMatchObject([
    { name: "year", success: false, remaining: 0 },
    { name: "sliding", success: true, remaining: 98 },
  ]);
});

describe("an object's clock that moves on", () => {
  afterEach(() => void vi.useRealTimers());

  test("to the next month finds a whole quota, after an eviction too, and never before", async () => {
    const object = objectOf("monthly", freshKey());
    // A month ahead of every clock, so that nothing here has an alarm that is due.
    const startMs = Date.now() + 40 * 86_400_000;
    const month = Calendar.of("month", "Europe/Berlin")?.around(startMs);
    if (month === undefined) throw new Error("there is no Berlin");
    vi.useFakeTimers({ toFake: ["Date"], now: month.startMs });
    expect(await object.limit(50)).toMatchObject({ remaining: 0, resetAfterMs: month.endMs - month.startMs });
    await object.evict();
    vi.setSystemTime(month.endMs - 1);
    expect(await object.limit(1)).toMatchObject({ success: false, retryAfterMs: 1 });
    vi.setSystemTime(month.endMs);
    expect(await object.limit(50)).toMatchObject({ success: true });
  });
});
