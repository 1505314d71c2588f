/** How many rows 16 objects write for many keys: of their memory, one row for all says how far it may be ahead. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { seededRandom } from "../support/random.ts";
import { Database } from "./database.ts";
import { SimulatedObject } from "./simulated-object.ts";

const OBJECTS = 16;
const KEYS = 10_000;
const CALLS = 12_000;
const CALLS_A_MS = 2;
const POLICIES = parsePolicies({
  minute: { algorithm: "token-bucket", limit: 100, window: "1m" },
  second: { algorithm: "token-bucket", limit: 1_000, window: "1s" },
  log: { algorithm: "sliding-log", limit: 100, window: "1m" },
});

/** Rows per 1,000 calls on keys that `next` draws, once the first half of them has warmed up. */
function rowsOf(policy: string, next: (call: number) => number): number {
  let calls = 0;
  const databases = Array.from({ length: OBJECTS }, () => new Database());
  const clockMs = () => 1_000_000 + Math.floor(calls / CALLS_A_MS);
  const objects = databases.map((database) => new SimulatedObject(database, POLICIES, clockMs));
  const written = () => databases.reduce((sum, { rowsWritten }) => sum + rowsWritten, 0);
  const make = () => {
    for (const untilCalls = calls + CALLS; calls < untilCalls; calls += 1) {
      const key = next(calls);
      objects[key % OBJECTS]?.limit(policy, `key ${key}`, 1);
    }
  };
  make();
  const before = written();
  make();
  return (1_000 * (written() - before)) / CALLS;
}

/** A key by Zipf's law, about: its number is that of its rank, less 1. */
function zipf(random: () => number): () => number {
  return () => Math.floor((KEYS + 1) ** random()) - 1;
}

test.each([...POLICIES.keys()])("%s: 300 rows at most for 1,000 Zipf decisions", (policy) => {
  expect(rowsOf(policy, zipf(seededRandom(1)))).toBeLessThanOrEqual(300);
});

test.each([...POLICIES.keys()])("%s: hardly a row for 1,000 keys that come once", (policy) => {
  expect(rowsOf(policy, (call) => call)).toBeLessThanOrEqual(2);
});
