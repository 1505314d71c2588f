/**
 * Random calls: three requests over HTTP for each two calls over the service binding. Both run at once, each on a
 * limiter of its own, since workerd has one thread.
 */
import { describe, expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import { fuzzedOverBinding, fuzzedOverHttp } from "../support/fuzz/fuzzed-limiter.ts";
import type { Answered } from "../support/fuzz/http-fuzz.ts";
import { announcedSeed } from "../support/random.ts";

// The quick lengths reach every operation, every method and every status.
/** The environment variable FUZZED sets another number: a million takes some 20 minutes on two cores. */
const FUZZED = Number(process.env["FUZZED"] ?? depth(10_000, 250_000));
const REQUESTS = Math.round(0.6 * FUZZED);
const CALLS = Math.round(0.4 * FUZZED);
const MOST_MS = 2_400_000;

/** Whether an operation had an answer with a status like this. */
function had(answered: Answered, operation: string, is: (status: number) => boolean): boolean {
  return [...(answered.get(operation)?.keys() ?? [])].some(is);
}

describe.concurrent("whatever is sent, each answer is one that the document promises", () => {
  test(`${REQUESTS} requests over HTTP`, { timeout: MOST_MS }, async () => {
    const { answered, operations } = await fuzzedOverHttp({
      seed: announcedSeed("fuzz over HTTP"),
      count: REQUESTS,
      concurrency: 32,
    });
    const statuses = new Set([...answered.values()].flatMap((counts) => [...counts.keys()]));
    for (const status of [101, 200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 422, 426, 429])
      expect([...statuses]).toContain(status);
    // An operation that the fuzzing does not know how to call would never be answered, or be refused alone.
    expect(operations.filter(({ id }) => !had(answered, id, (status) => status < 400))).toEqual([]);
    const open = operations.filter(({ path }) => path === "/healthz" || path === "/openapi.json");
    const refused = operations.filter(({ id }) => had(answered, id, (status) => status >= 400));
    expect(new Set([...refused, ...open])).toEqual(new Set(operations));
  });

  test(`${CALLS} calls over the service binding`, { timeout: MOST_MS }, async () => {
    const outcomes = await fuzzedOverBinding({
      seed: announcedSeed("fuzz over the binding"),
      count: CALLS,
      concurrency: 64,
    });
    const never = [...outcomes].filter(([method, counts]) => method !== "none" && !counts.has("ok"));
    expect(never).toEqual([]);
  });
});
