/** Adaptive concurrency on plain workerd: a storm of reports, and a kill. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { announcedSeed, pick, seededRandoms } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const CEILING = 12;
const FLOOR = 2;
const INITIAL = 6;
/** The lifetime and the ceiling are those of slots that isolates grant by themselves under `concurrency`. */
const adaptive = {
  algorithm: "adaptive-concurrency",
  limit: CEILING,
  floor: FLOOR,
  initial: INITIAL,
  ttl: "10s",
};
const patient = { maxWait: "30s", deadlineMs: 20_000 };
const policies = {
  aimd: { ...adaptive, adapt: "aimd", backoffRatio: 0.5, ...patient },
  vegas: { ...adaptive, adapt: "vegas", ...patient },
  gradient2: { ...adaptive, adapt: "gradient2", ...patient },
};
const CALLERS = 24;
const STORM_MS = depth(2_000, 20_000);

const state = makeState();
let serving: Serving;
let client: HttpClient;

async function start(): Promise<void> {
  serving = await serveBundle(state, policies);
  client = new HttpClient(serving.url, 64);
}
beforeAll(start);
afterAll(async () => {
  client.close();
  await serving.stop();
  removeState(state);
});

const limitOf = async (policy: string, key: string) => Number((await client.peek(policy, key)).body["limit"]);

test.each(Object.keys(policies))(
  "%s: in a storm of reports no grant exceeds the limit of its answer, which moves between the bounds",
  async (policy) => {
    const randoms = seededRandoms(announcedSeed(policy));
    const untilMs = Date.now() + STORM_MS;
    const held: { readonly fromMs: number; readonly toMs: number }[] = [];
    const limits = new Set<number>();
    const statuses = new Set<number>();
    /** Leases whose grant is known, and whose release is not on its way. */
    const live = new Set<string>();
    const grantsOver: string[] = [];
    const callAndReport = async (random: () => number) => {
      const before = [...live];
      const { body, receivedAtMs } = await client.call("POST", "/v1/leases", {
        policy,
        key: "storm",
        waitMs: random() < 0.5 ? 1_000 : 0,
      });
      limits.add(Number(body["limit"]));
      if (body["success"] !== true) return await sleep(2);
      const { id } = body["lease"] as { id: string };
      const leased = before.filter((each) => live.has(each)).length + 1;
      if (leased > Number(body["limit"])) grantsOver.push(`${leased} of ${String(body["limit"])}`);
      live.add(id);
      await sleep(random() * 4);
      live.delete(id);
      const toMs = Date.now();
      // Calls are now quick, now slow, for all callers at once.
      const isSlow = Math.floor(toMs / 300) % 2 === 1;
      const durationMs = (isSlow ? 100 : 10) * (1 + random());
      const outcome = isSlow ? pick(random, ["dropped", "ok", "ignore"]) : "ok";
      const { status } = await client.call("POST", `/v1/leases/${id}/release`, { outcome, durationMs });
      statuses.add(status);
      held.push({ fromMs: receivedAtMs, toMs });
    };
    await Promise.all(
      Array.from({ length: CALLERS }, async (_, caller) => {
        const random = randoms(caller);
        while (Date.now() < untilMs) await callAndReport(random);
      }),
    );
    expect([...statuses]).toEqual([204]);
    expect(grantsOver).toEqual([]);
    expect(Math.min(...limits)).toBeGreaterThanOrEqual(FLOOR);
    expect(Math.max(...limits)).toBeLessThanOrEqual(CEILING);
    expect(limits.size).toBeGreaterThan(3);
    expect(mostAtOnce(held)).toBeLessThanOrEqual(CEILING);
    expect((await client.peek(policy, "storm")).body).toMatchObject({
      leases: 0,
      queueLength: 0,
      reclaimed: 0,
    });
  },
);

/** How many intervals have an instant in common, at most. What ends at an instant is over then. */
function mostAtOnce(intervals: readonly { readonly fromMs: number; readonly toMs: number }[]): number {
  const changes = intervals
    .flatMap(({ fromMs, toMs }) => [
      { atMs: fromMs, by: 1 },
      { atMs: toMs, by: -1 },
    ])
    .toSorted((a, b) => a.atMs - b.atMs || a.by - b.by);
  let [now, most] = [0, 0];
  for (const { by } of changes) {
    now += by;
    most = Math.max(most, now);
  }
  return most;
}

test("what was learned and what is leased survive a kill", async () => {
  const acquire = async () => {
    const { body } = await client.call("POST", "/v1/leases", { policy: "aimd", key: "kill" });
    return (body["lease"] as { id: string }).id;
  };
  const [first, second] = [await acquire(), await acquire()];
  await client.call("POST", `/v1/leases/${first}/release`, { outcome: "dropped" });
  expect(await limitOf("aimd", "kill")).toBe(3);
  client.close();
  await serving.stop("SIGKILL");
  await start();
  expect((await client.peek("aimd", "kill")).body).toMatchObject({ limit: 3, leases: 1, remaining: 2 });
  expect((await client.call("POST", `/v1/leases/${second}/release`, { outcome: "dropped" })).status).toBe(
    204,
  );
  expect(await limitOf("aimd", "kill")).toBe(FLOOR);
});
