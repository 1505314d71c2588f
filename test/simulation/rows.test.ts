/** The rows that 16 objects write for many keys: one row for all keys limits the lead of their memory. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { depth, inDeepRuns } from "../support/depth.ts";
import { seededRandom } from "../support/random.ts";
import { Database } from "./database.ts";
import { OneIsolate } from "./one-isolate.ts";
import { SimulatedObject } from "./simulated-object.ts";

const OBJECTS = 16;
const KEYS = 10_000;
const CALLS = depth(6_000, 12_000);
const CALLS_A_MS = 2;
const POLICIES = parsePolicies({
  minute: { algorithm: "token-bucket", limit: 100, window: "1m" },
  second: { algorithm: "token-bucket", limit: 1_000, window: "1s" },
  log: { algorithm: "sliding-log", limit: 100, window: "1m" },
});

/** Rows per 1,000 calls on keys that `next` draws, after a warm-up by half of them. */
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

/** A key by roughly Zipf's law: its number is its rank, less 1. */
function zipf(random: () => number): () => number {
  return () => Math.floor((KEYS + 1) ** random()) - 1;
}

test.each([...POLICIES.keys()])("%s: 300 rows at most for 1,000 Zipf decisions", (policy) => {
  expect(rowsOf(policy, zipf(seededRandom(1)))).toBeLessThanOrEqual(300);
});

test.each([...POLICIES.keys()])("%s: hardly a row for 1,000 keys that come once", (policy) => {
  expect(rowsOf(policy, (call) => call)).toBeLessThanOrEqual(2);
});

/** Messages and rows of an isolate for 1,000 calls, after the longest lifetime. */
function costOf(next: (call: number) => number, callsPerSecond: number) {
  const isolate = new OneIsolate({ algorithm: "token-bucket", limit: 600, window: "1m" });
  const calls = Math.max(depth(5_000, 10_000), 8 * callsPerSecond);
  const make = () => {
    for (let call = 0; call < calls; call += 1) {
      isolate.limit(next(isolate.counts.calls));
      isolate.wait(1_000 / callsPerSecond);
    }
  };
  make();
  const before = isolate.counts;
  make();
  const after = isolate.counts;
  const perThousand = (from: number, to: number) => (1_000 * (to - from)) / calls;
  return {
    messages: perThousand(before.messages, after.messages),
    rows: perThousand(before.rows, after.rows),
  };
}

inDeepRuns(
  "an isolate with 10,000 Zipf calls a second sends 200 messages for 1,000, and 60 rows are written",
  () => {
    const { messages, rows } = costOf(zipf(seededRandom(1)), 10_000);
    expect(messages).toBeLessThanOrEqual(200);
    expect(rows).toBeLessThanOrEqual(60);
  },
);

test.each(depth([100], [1_000, 100]))(
  "of %i keys a second that come once, each costs a message and hardly a row",
  (rate) => {
    const { messages, rows } = costOf((call) => call, rate);
    expect(messages).toBeLessThanOrEqual(1_000);
    expect(rows).toBeLessThanOrEqual(20);
  },
);
