import { expect, test } from "vitest";
import type { Decision } from "../../../core/protocol/decision.ts";
import { callLog } from "../../../worker/bindings/call-log.ts";
import { seededRandom } from "../../support/random.ts";

const DENIED: Decision = {
  success: false,
  policy: "login",
  key: "user:secret",
  limit: 5,
  remaining: 0,
  resetAfterMs: 1,
  retryAfterMs: 420_000,
  reason: "quota",
  source: "object",
  rules: [],
};

function logged(settings: Parameters<typeof callLog>[0], work: (log: ReturnType<typeof callLog>) => void) {
  const lines: string[] = [];
  const random = seededRandom(1);
  work(callLog(settings, random, (line) => lines.push(line)));
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
}

test("a denial is a line of JSON without its key", () => {
  const lines = logged({ denials: 1, failures: 1, keys: false }, (log) => {
    log.decided(DENIED);
    log.decided({ ...DENIED, success: true, reason: "ok" });
  });
  expect(lines).toEqual([
    { event: "denial", policy: "login", reason: "quota", source: "object", retryAfterMs: 420_000, rate: 1 },
  ]);
});

test("the key is there when it is asked for", () => {
  const [line] = logged({ denials: 1, failures: 1, keys: true }, (log) => log.decided(DENIED));
  expect(line).toMatchObject({ key: "user:secret" });
});

test("of many the part is logged that was asked for, and each line says which part that is", () => {
  const lines = logged({ denials: 0.1, failures: 0.5, keys: false }, (log) => {
    for (let call = 0; call < 10_000; call += 1) {
      log.decided(DENIED);
      log.failed("login", { cause: "gone", calls: 1, seconds: undefined });
    }
  });
  const denials = lines.filter(({ event }) => event === "denial");
  expect(denials.length).toBeGreaterThan(900);
  expect(denials.length).toBeLessThan(1_100);
  expect(denials.every(({ rate }) => rate === 0.1)).toBe(true);
  expect(lines.length - denials.length).toBeGreaterThan(4_800);
  expect(logged({ denials: 0, failures: 0, keys: false }, (log) => log.decided(DENIED))).toEqual([]);
});

test("what an error quotes is left out, since it may be a key", () => {
  const cause = String.raw`Error: key "user:\"secret\"" is elsewhere`;
  const [line] = logged({ denials: 0, failures: 1, keys: false }, (log) =>
    log.failed("login", { cause, calls: 3, seconds: 12 }),
  );
  expect(line).toEqual({
    event: "failure",
    policy: "login",
    message: 'no answer from the object: Error: key "…" is elsewhere',
    calls: 3,
    seconds: 12,
    rate: 1,
  });
});
