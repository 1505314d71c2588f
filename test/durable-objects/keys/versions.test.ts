/** Which of the versions that calls say an object decides by: the latest, whoever lags. */
import { expect, test } from "vitest";
import type { PolicyRevision } from "../../../core/policies/policy.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const NOW_MS = 1_760_000_000_000;
const TABLE = { algorithm: "sliding-log", limit: 10, window: "1h" };
const FILE = known({ p: TABLE });
const overridden = (limit: number): PolicyRevision => ({
  version: 7,
  fields: JSON.stringify({ ...TABLE, limit }),
});
const ended: PolicyRevision = { version: 7, sinceMs: NOW_MS };

/** Takes a unit of the key; the call says what its isolate knows. */
function take(object: AlarmedObject, inForce?: PolicyRevision) {
  object.parts.hear("p", "a", { inForce });
  return object.limit("a", 1).rules[0];
}

test("an override that has ended is over for a key, with all that was consumed, and nobody brings it back", async () => {
  const object = new AlarmedObject(FILE, NOW_MS);
  for (let used = 1; used <= 12; used += 1)
    expect(take(object, overridden(20))).toMatchObject({ success: true, remaining: 20 - used });
  expect(take(object, ended)).toMatchObject({ success: false, limit: 10, remaining: 0 });
  // An isolate whose clock is behind.
  expect(take(object, overridden(20))).toMatchObject({ success: false, limit: 10 });
  await object.restart(FILE);
  for (const inForce of [undefined, overridden(20)])
    expect(take(object, inForce)).toMatchObject({ success: false, limit: 10, remaining: 0 });
  // The next one that somebody writes is of a later version.
  expect(take(object, { ...overridden(15), version: 8 })).toMatchObject({ success: true, remaining: 2 });
  expect(take(object, ended)).toMatchObject({ success: true, remaining: 1 });
});

test("the one that applies after the first has ended ends too, and the other way round no call says it", () => {
  const object = new AlarmedObject(FILE, NOW_MS);
  expect(take(object, overridden(2))).toMatchObject({ success: true, remaining: 1 });
  expect(take(object, { ...overridden(5), sinceMs: NOW_MS })).toMatchObject({ success: true, remaining: 3 });
  expect(take(object, { ...ended, sinceMs: NOW_MS + 1 })).toMatchObject({ success: true, remaining: 7 });
  expect(take(object, { ...overridden(5), sinceMs: NOW_MS })).toMatchObject({ success: true, remaining: 6 });
});

test("calls of one message that lag change nothing of what another has told for a key that nobody opened", () => {
  const object = new AlarmedObject(FILE, NOW_MS);
  for (const inForce of [overridden(1), ended, overridden(1)]) object.parts.hear("p", "a", { inForce });
  expect(object.limit("a", 1).rules[0]).toMatchObject({ success: true, limit: 10, remaining: 9 });
});
