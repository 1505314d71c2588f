import { expect, test } from "vitest";
import {
  duration,
  overrideLine,
  perSecond,
  ruleLine,
  scheduledLine,
  startsInMs,
  wireDuration,
} from "../../dashboard/words.ts";

test("durations have the largest unit that fits", () => {
  expect([0, 999, 1_000, 1_500, 90_000, 3_600_000, 86_400_000 * 30].map(duration)).toEqual([
    "0 ms",
    "999 ms",
    "1 s",
    "1.5 s",
    "1.5 min",
    "1 h",
    "30 d",
  ]);
});

test("a duration in a field is exact, as wrangler.toml has it", () => {
  expect([500, 1_000, 90_000, 120_000, 86_400_000 * 30].map(wireDuration)).toEqual([
    "500ms",
    "1s",
    "90s",
    "2m",
    "30d",
  ]);
});

test("rates are whole numbers, small ones not", () => {
  expect([0, 0.25, 9.96, 12.4, 48_211].map(perSecond)).toEqual(["0", "0.3", "10.0", "12", "48,211"]);
});

test("a rule and an override stand in one line", () => {
  const bucket = { name: "api", algorithm: "token-bucket", limit: 1_000, windowMs: 60_000, burst: 5_000 };
  expect(ruleLine(bucket)).toBe("token-bucket: 1,000 per minute, up to 5,000 at once");
  expect(ruleLine({ ...bucket, burst: 1_000 })).toBe("token-bucket: 1,000 per minute");
  expect(ruleLine({ name: "x", algorithm: "unlimited" })).toBe("unlimited");
  expect(ruleLine({ ...bucket, windowMs: 90_000, burst: 1_000 })).toBe("token-bucket: 1,000 per 1.5 min");
  const place = { policy: "api", pattern: "a", version: 3 };
  expect(overrideLine({ ...place, blocked: true, note: "n" })).toBe("blocked");
  expect(overrideLine({ ...place, multiply: 10 })).toBe("all limits × 10");
  expect(overrideLine({ ...place, limit: 5, burst: 6, startsAt: "x", expiresAt: "x" })).toBe(
    "limit 5, burst 6",
  );
  const rules = { tokens: { limit: 5_000 }, requests: { window: "1h" } };
  expect(overrideLine({ ...place, rules })).toBe("tokens: limit 5,000; requests: window 1h");
});

test("an override that has not begun says when it starts", () => {
  const nowMs = Date.parse("2027-01-24T12:00:00Z");
  const starting = (startsAt?: string) => ({
    policy: "api",
    pattern: "a",
    version: 3,
    blocked: true as const,
    ...(startsAt !== undefined && { startsAt }),
  });
  const texts = [
    "2027-01-26T12:00:00Z",
    "2027-01-24T12:00:01Z",
    "2027-01-24T12:00:00Z",
    "2026-01-01T00:00:00Z",
  ];
  expect(texts.map((text) => startsInMs(starting(text), nowMs))).toEqual([172_800_000, 1_000, 0, 0]);
  expect(startsInMs(starting(), nowMs)).toBe(0);
  expect(scheduledLine(starting("2027-01-26T12:00:00Z"), nowMs)).toBe("blocked, starts in 2 d");
  expect(scheduledLine(starting("2026-01-01T00:00:00Z"), nowMs)).toBe("blocked");
});
