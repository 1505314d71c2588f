/** An object that hears another version of its policy decides by the stricter of both, and by its own again later. */
import { expect, test } from "vitest";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const NOW_MS = 1_760_000_000_000;
const HOUR_MS = 3_600_000;
const LOG = { algorithm: "sliding-log", limit: 100, window: "1h" };

/** An object with a policy, and what makes it hear another version of it. */
function mixed(given: object) {
  const object = new AlarmedObject(known({ p: given }), NOW_MS);
  const hear = (other: object) => {
    const { terms = "" } = known({ p: other }).get("p") ?? {};
    object.parts.hear("p", "a", { terms });
  };
  const remaining = () => object.limit("a", 0).rules[0]?.remaining;
  return { object, hear, remaining };
}

test("a limit that is lowered counts for a minute after it was heard last, and what was used stays used", () => {
  const { object, hear, remaining } = mixed(LOG);
  object.limit("a", 30);
  hear({ ...LOG, limit: 50 });
  expect(remaining()).toBe(20);
  expect(object.limit("a", 21).rules).toMatchObject([{ success: false, limit: 50, retryAfterMs: HOUR_MS }]);
  object.limit("a", 15);
  expect(remaining()).toBe(5);
  object.nowMs += 59_999;
  hear({ ...LOG, limit: 50 });
  object.nowMs += 59_999;
  expect(remaining()).toBe(5);
  object.nowMs += 1;
  expect(remaining()).toBe(55);
});

test("one that is raised does not count yet", () => {
  const { hear, remaining } = mixed(LOG);
  hear({ ...LOG, limit: 500 });
  expect(remaining()).toBe(100);
});

test("both count from then on, each by its own time", () => {
  const fast = { algorithm: "token-bucket", limit: 100, window: "1s" };
  const { object, hear } = mixed(fast);
  hear({ ...fast, limit: 10, burst: 10 });
  let admitted = 0;
  for (let call = 0; call < 500; call += 1) {
    if (object.limit("a", 1).rules[0]?.success === true) admitted += 1;
    object.nowMs += 10;
  }
  // A bucket of 10 that is refilled with 10 a second, for 5 s.
  expect(admitted).toBeLessThanOrEqual(10 + 50);
  expect(admitted).toBeGreaterThan(55);
});

test("of two other versions the first counts until it is forgotten", () => {
  const { object, hear, remaining } = mixed(LOG);
  hear({ ...LOG, limit: 50 });
  hear({ ...LOG, limit: 20 });
  expect(remaining()).toBe(50);
  object.nowMs += 60_000;
  hear({ ...LOG, limit: 20 });
  expect(remaining()).toBe(20);
});

test("terms of its own, or that it cannot read, change nothing", () => {
  const { object, hear, remaining } = mixed(LOG);
  hear({ ...LOG, onFailure: "open" });
  object.parts.hear("p", "a", { terms: "{" });
  object.parts.hear("nobody", "a", { terms: "[]" });
  expect(remaining()).toBe(100);
});

test("what is kept for important calls is kept of the stricter limit", () => {
  const given = { ...LOG, priorities: ["high", "low"], defaultPriority: "low", reserve: { high: "20%" } };
  const { object, hear, remaining } = mixed(given);
  expect(remaining()).toBe(80);
  hear({ ...given, limit: 50 });
  // A fifth of what the object's own policy has.
  expect(remaining()).toBe(30);
  const high = object.ask("a", (each, keyState, nowMs) =>
    each.limit(keyState, { cost: 0, priority: "high" }, nowMs),
  );
  expect(high).toMatchObject({ rules: [{ remaining: 50 }] });
});

test("an object that starts anew goes on from what is stored, and hears again", async () => {
  const { object, hear, remaining } = mixed(LOG);
  hear({ ...LOG, limit: 50 });
  object.limit("a", 30);
  await object.restart(known({ p: LOG }));
  expect(remaining()).toBe(70);
  hear({ ...LOG, limit: 50 });
  expect(remaining()).toBe(20);
});
