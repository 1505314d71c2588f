/** Sliding logs on plain workerd, asked by many at once and killed in between: no window has more than the limit. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { mostInWindow, type AdmittedCall } from "../support/interval-bound.ts";
import { announcedSeed, seededRandoms } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const CRASHES = depth(2, 8);
const ROUND_MS = 1_300;
const LOGS = {
  five: { limit: 5, windowMs: 1_000 },
  hundred: { limit: 100, windowMs: 400 },
  /** Writes ahead: W is 60 units. */
  thousands: { limit: 3_000, windowMs: 2_000 },
  shared: { limit: 20, windowMs: 700, objects: 1 },
};

const policies = Object.fromEntries(
  Object.entries(LOGS).map(([name, { windowMs, ...fields }]) => [
    name,
    { algorithm: "sliding-log", window: windowMs, deadlineMs: 10_000, ...fields },
  ]),
);

const state = makeState();
let serving: Serving | undefined;
afterAll(async () => {
  await serving?.stop();
  removeState(state);
});

test("in no window more than the limit, whatever is asked at once and whenever it is killed", async () => {
  const randomOf = seededRandoms(announcedSeed("sliding log"));
  const random = randomOf(0);
  let workersMade = 0;
  const admitted = new Map(
    Object.keys(LOGS).flatMap((name) => [1, 2].map((key) => [`${name} ${key}`, [] as AdmittedCall[]])),
  );
  for (let round = 0; round <= CRASHES; round += 1) {
    serving = await serveBundle(state, policies);
    const client = new HttpClient(serving.url, 64);
    let isOver = false;
    const worker = async (name: string, calls: AdmittedCall[]) => {
      const [policy = "", key = ""] = name.split(" ");
      const ownRandom = randomOf((workersMade += 1));
      while (!isOver) {
        const units = 1 + Math.floor(ownRandom() * 3);
        const { body, sentAtMs, receivedAtMs } = await client.limit(policy, key, { cost: units });
        if (body["success"] === true && body["reason"] === "ok")
          calls.push({ sentAtMs, receivedAtMs, units });
      }
    };
    const workers = [...admitted].flatMap(([name, calls]) =>
      Array.from({ length: 6 }, () => worker(name, calls).catch(() => undefined)),
    );
    await sleep(ROUND_MS * (0.5 + random()));
    isOver = round === CRASHES;
    if (!isOver) await serving.stop("SIGKILL");
    isOver = true;
    await Promise.all(workers);
    client.close();
  }
  for (const [name, calls] of admitted) {
    const { limit, windowMs } = LOGS[name.split(" ")[0] as keyof typeof LOGS];
    const most = mostInWindow(calls, windowMs);
    expect({ name, over: Math.max(0, most - limit) }).toEqual({ name, over: 0 });
    expect(calls.length).toBeGreaterThan(CRASHES);
  }
  // A busy log comes close to its limit, so the check is no empty one.
  expect(mostInWindow(admitted.get("five 1") ?? [], 1_000)).toBeGreaterThanOrEqual(4);
});
