/**
 * Random calls: three requests over HTTP for each two calls over the service binding. Both run at once, each on a
 * limiter of its own, since workerd has one thread.
 */
import { describe, expect, test } from "vitest";
import { depth, IS_DEEP } from "../support/depth.ts";
import type { Outcomes } from "../support/fuzz/binding-fuzz.ts";
import { fuzzedOverBinding, fuzzedOverHttp } from "../support/fuzz/fuzzed-limiter.ts";
import type { Answered } from "../support/fuzz/http-fuzz.ts";
import type { Operation } from "../support/fuzz/openapi-operations.ts";
import { announcedSeed } from "../support/random.ts";

// The quick lengths reach nearly always every operation, every method and every status.
/** The environment variable FUZZED sets another number: a million takes some 20 minutes on two cores. */
const FUZZED = Number(process.env["FUZZED"] ?? depth(400, 30_000));
const REQUESTS = Math.round(0.6 * FUZZED);
const CALLS = Math.round(0.4 * FUZZED);
const MAX_MS = 2_400_000;

const OPEN = new Set(["/healthz", "/openapi.json"]);
const STATUSES = [101, 200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 422, 426, 429];

/** Whether an operation had an answer with a status like this. */
function had(answered: Answered, operation: string, is: (status: number) => boolean): boolean {
  return [...(answered.get(operation)?.keys() ?? [])].some(is);
}

/**
 * What the fuzzing has not met: a status, and an operation that was never answered, or never refused. One that it does
 * not know how to call would stay here.
 */
function unmet(answered: Answered, operations: readonly Operation[]): unknown[] {
  const statuses = new Set([...answered.values()].flatMap((counts) => [...counts.keys()]));
  return [
    ...STATUSES.filter((status) => !statuses.has(status)),
    ...operations.filter(({ id }) => !had(answered, id, (status) => status < 400)),
    ...operations.filter(({ id, path }) => !OPEN.has(path) && !had(answered, id, (status) => status >= 400)),
  ];
}

const unmetMethods = (outcomes: Outcomes) =>
  [...outcomes].filter(([method, counts]) => method !== "none" && !counts.has("ok"));

describe.concurrent("whatever is sent, each answer is one that the document promises", () => {
  test(`${REQUESTS} requests over HTTP`, { timeout: MAX_MS }, async () => {
    const { answered, operations } = await fuzzedOverHttp({
      seed: announcedSeed("fuzz over HTTP"),
      count: REQUESTS,
      isEnough: (met, all) => !IS_DEEP || unmet(met, all).length === 0,
      concurrency: 32,
    });
    if (IS_DEEP) expect(unmet(answered, operations)).toEqual([]);
    // What is open to all is never refused.
    const open = operations.filter(({ path }) => OPEN.has(path));
    expect(open.filter(({ id }) => had(answered, id, (status) => status >= 400))).toEqual([]);
  });

  test(`${CALLS} calls over the service binding`, { timeout: MAX_MS }, async () => {
    const outcomes = await fuzzedOverBinding({
      seed: announcedSeed("fuzz over the binding"),
      count: CALLS,
      isEnough: (met) => !IS_DEEP || unmetMethods(met).length === 0,
      concurrency: 64,
    });
    if (IS_DEEP) expect(unmetMethods(outcomes)).toEqual([]);
  });
});
