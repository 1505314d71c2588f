/** An isolate far from its object, on plain workerd: it gets a bucket of its own, and decides nearly all calls by itself. */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { worstExcess, type AdmittedCall } from "../support/interval-bound.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const RATE = { limit: 200, windowMs: 1_000, burst: 400 };
const policies = {
  hot: { algorithm: "token-bucket", limit: RATE.limit, window: "1s", burst: RATE.burst, deadlineMs: 20_000 },
};
const LOAD_MS = 8_000;
const STEP_MS = 5;

const state = makeState();
let serving: Serving;
let client: HttpClient;
beforeAll(async () => {
  const main = join(import.meta.dirname, "..", "support", "far-object.mjs");
  serving = await serveBundle(state, policies, { main });
  client = new HttpClient(serving.url, 64);
});
afterAll(async () => {
  client.close();
  await serving.stop("SIGKILL");
  removeState(state);
});

interface Counted {
  readonly messages: number;
  readonly buckets: number;
}

const LOADS: readonly (readonly [string, number])[] = [
  ["above", 2],
  ["below", 0.5],
];
test.each(LOADS.slice(0, depth(1, 2)))(
  "%s the limit: nothing is over it, and few messages go to the object",
  async (key, load) => {
    const admitted: AdmittedCall[] = [];
    const sources: Record<string, number> = {};
    const fromMs = Date.now();
    const calls: Promise<void>[] = [];
    for (let made = 0; Date.now() < fromMs + LOAD_MS; await sleep(STEP_MS))
      for (; made < ((Date.now() - fromMs) * RATE.limit * load) / RATE.windowMs; made += 1) {
        const sentAtMs = Date.now();
        calls.push(
          client.limit("hot", key).then(({ body }) => {
            const end = `${String(body["source"])} ${String(body["reason"])}`;
            sources[end] = (sources[end] ?? 0) + 1;
            if (body["success"] === true) admitted.push({ sentAtMs, receivedAtMs: Date.now(), units: 1 });
          }),
        );
      }
    await Promise.all(calls);
    const count = (await (await fetch(`${serving.url}/messages`)).json()) as Counted;
    console.info(key, sources, count, `${admitted.length} of ${calls.length} admitted`);
    expect(count.buckets).toBeGreaterThan(0);
    expect(worstExcess(admitted, RATE)).toBeLessThanOrEqual(0);
    if (load < 1) expect(admitted.length).toBe(calls.length);
    expect(sources["isolate ok"] ?? 0).toBeGreaterThan(admitted.length / 2);
  },
);
