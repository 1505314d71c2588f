import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { worstExcess, type AdmittedCall } from "../support/interval-bound.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const BUCKETS = {
  thousand: { limit: 1_000, windowMs: 1_000, burst: 500 },
  fifty: { limit: 50, windowMs: 1_000, burst: 5 },
  odd: { limit: 7, windowMs: 300, burst: 7 },
  three: { limit: 3, windowMs: 10_000, burst: 3 },
  single: { limit: 1, windowMs: 40, burst: 1 },
  /** So deep that a machine that stalls for a second does not fill it: at saturation none is lost. */
  deep: { limit: 200, windowMs: 1_000, burst: 400 },
  million: { limit: 1_000_000, windowMs: 1_000, burst: 1_000_000 },
};
type Name = keyof typeof BUCKETS;

const policies = Object.fromEntries(
  Object.entries(BUCKETS).flatMap(([name, { limit, windowMs, burst }]) => {
    const fields = { algorithm: "token-bucket", limit, window: windowMs, burst, deadlineMs: 30_000 };
    return [
      [name, fields],
      [`${name}-shared`, { ...fields, objects: 2 }],
    ];
  }),
);

const CONNECTIONS = 96;
// A sixth of the calls still asks each bucket for more than twice what it has.
const PART = depth(1 / 15, 1);
const state = makeState();
let serving: Serving;
let client: HttpClient;

beforeAll(async () => {
  serving = await serveBundle(state, policies);
  client = new HttpClient(serving.url, CONNECTIONS);
});
afterAll(async () => {
  client.close();
  await serving.stop();
  removeState(state);
});

/** Every connection asks again as soon as it is answered; what was admitted is noted per key. */
async function hammer(
  policy: string,
  keys: readonly string[],
  calls: number,
  cost: (call: number) => number,
) {
  const admitted = new Map<string, AdmittedCall[]>(keys.map((key) => [key, []]));
  let made = 0;
  const worker = async () => {
    while (made < calls) {
      made += 1;
      const key = keys[made % keys.length] ?? "";
      const units = cost(made);
      const { status, body, sentAtMs, receivedAtMs } = await client.limit(policy, key, { cost: units });
      if (status !== 200 || body["reason"] === "degraded") throw new Error(JSON.stringify({ status, body }));
      if (body["success"] === true) admitted.get(key)?.push({ sentAtMs, receivedAtMs, units });
    }
  };
  await Promise.all(Array.from({ length: CONNECTIONS }, worker));
  return admitted;
}

const spread = (calls: readonly AdmittedCall[]) => ({
  units: calls.reduce((sum, { units }) => sum + units, 0),
  fromMs: Math.min(...calls.map(({ receivedAtMs }) => receivedAtMs)),
  toMs: Math.max(...calls.map(({ sentAtMs }) => sentAtMs)),
});

test.each([
  ["thousand", 3, 8_000],
  ["thousand-shared", 3, 8_000],
  ["fifty", 4, 6_000],
  ["fifty-shared", 4, 6_000],
  ["odd", 5, 4_000],
  ["three", 2, 2_000],
  ["single", 3, 4_000],
  ["million", 1, 4_000],
])(
  "%s over %d keys: no interval has more than the bound, whatever is asked at once",
  async (policy, count, calls) => {
    const bucket = BUCKETS[policy.replace("-shared", "") as Name];
    const keys = Array.from({ length: count }, (_, index) => `${policy}:${index}`);
    const ones = await hammer(policy, keys, PART * calls, () => 1);
    for (const admitted of ones.values()) expect(worstExcess(admitted, bucket)).toBeLessThanOrEqual(0);
    const mixed = await hammer(policy, keys, PART * calls, (call) => 1 + (call % Math.min(7, bucket.burst)));
    for (const [key, admitted] of mixed) {
      expect(worstExcess([...(ones.get(key) ?? []), ...admitted], bucket)).toBeLessThanOrEqual(0);
    }
  },
);

test("at saturation nothing is held back: all that the bucket allows is admitted", async () => {
  const bucket = BUCKETS.deep;
  const admitted =
    (await hammer("deep", ["saturated"], depth(3_000, 12_000), () => 1)).get("saturated") ?? [];
  const { units, fromMs, toMs } = spread(admitted);
  // Asked for all the time between the first and the last that passed. Callers on a busy machine leave short gaps.
  const allowed = bucket.burst + Math.floor((bucket.limit * (toMs - fromMs)) / bucket.windowMs);
  expect(units).toBeGreaterThanOrEqual(Math.floor(allowed * 0.98));
  expect(units).toBeGreaterThan(bucket.burst);
});

test("200 simultaneous first calls of a key share one bucket", async () => {
  const keys = ["first:1", "first:2", "first:3"];
  for (const key of keys) {
    const answers = await Promise.all(Array.from({ length: 200 }, () => client.limit("three", key)));
    expect(answers.filter(({ body }) => body["success"] === true)).toHaveLength(3);
  }
});

test("the promised wait is honest: surely earlier is refused, surely later passes", async () => {
  const key = "waits";
  await client.limit("odd", key, { cost: 7 });
  const denied = await client.limit("odd", key, { cost: 5 });
  const retryAfterMs = Number(denied.body["retryAfterMs"]);
  expect(retryAfterMs).toBeGreaterThan(0);
  for (;;) {
    const again = await client.limit("odd", key, { cost: 5 });
    if (again.receivedAtMs < denied.sentAtMs + retryAfterMs) expect(again.body["success"]).toBe(false);
    if (again.sentAtMs >= denied.receivedAtMs + retryAfterMs) expect(again.body["success"]).toBe(true);
    if (again.body["success"] === true) break;
  }
});
