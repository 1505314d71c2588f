import { expect, test } from "vitest";
import { providerPauseMs } from "../../../middleware/llm/provider-pauses.ts";

const NOW_MS = Date.parse("2026-06-01T12:00:00Z");
const pauseMs = (headers: Record<string, string>, status = 200) =>
  providerPauseMs({ status, headers: new Headers(headers) }, NOW_MS);

test.each([
  ["20ms", 20],
  ["1s", 1_000],
  ["1.5s", 1_500],
  ["2m59.56s", 10_000],
  ["6m0s", 10_000],
  ["3", 3_000],
  ["0", 0],
  ["soon", 0],
  ["-1s", 0],
])("nothing remains, and all is back in %s: a pause of %d ms", (reset, ms) => {
  expect(pauseMs({ "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": reset })).toBe(ms);
  expect(pauseMs({ "x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": reset })).toBe(0);
  expect(pauseMs({ "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": reset })).toBe(0);
});

test("an instant is read by the provider's clock, and at most 10 s are waited", () => {
  const at = (reset: string, date?: string) =>
    pauseMs({
      "anthropic-ratelimit-output-tokens-remaining": "0",
      "anthropic-ratelimit-output-tokens-reset": reset,
      ...(date !== undefined && { date }),
    });
  expect(at("2026-06-01T12:00:04Z")).toBe(4_000);
  expect(at("2026-06-01T12:00:04Z", "Mon, 01 Jun 2026 12:00:03 GMT")).toBe(1_000);
  expect(at("2026-06-01T11:59:00Z")).toBe(0);
  expect(at("2027-06-01T12:00:00Z")).toBe(10_000);
});

test("of several the longest counts", () => {
  const headers = {
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "3s",
  };
  expect(pauseMs(headers)).toBe(3_000);
});

test.each([429, 503, 529])("Retry-After of %d is a pause, of a minute at most", (status) => {
  expect(pauseMs({ "retry-after": "20" }, status)).toBe(20_000);
  expect(pauseMs({ "retry-after": "86400" }, status)).toBe(60_000);
  expect(pauseMs({ "retry-after": "20" }, 200)).toBe(0);
});
