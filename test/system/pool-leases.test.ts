/** Leases of a pool's slots, given in three regions: never too many at any instant, none lost, none leaked. */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { depth } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { openSocket } from "../support/leaving-client.ts";
import { announcedSeed, seededRandoms } from "../support/random.ts";
import { startWorld, type World } from "../support/regions.ts";

const CALLER = join(import.meta.dirname, "..", "support", "caller.mjs");
const LIMIT = 4;
const TTL_MS = 1_500;
// One region is killed in the middle of it, or each of the three.
const STORM_MS = depth(4_000, 12_000);
const KILLS = depth(1, 3);
const slots = { algorithm: "concurrency", pool: "redis", deadlineMs: 2_000, maxWait: "30s" };
const POLICIES = {
  storm: { ...slots, limit: LIMIT, ttl: TTL_MS, maxTtl: TTL_MS },
  slots: { ...slots, limit: LIMIT, ttl: "60s" },
  mutex: { ...slots, limit: 1, ttl: "30s" },
  planned: { ...slots, limit: 1, ttl: "60s", plans: { pro: { limit: 2 } } },
  mixed: {
    rules: {
      slots: { algorithm: "concurrency", limit: 2, ttl: "30s" },
      rate: { algorithm: "token-bucket", limit: 3, window: "1h" },
    },
    pool: "redis",
    deadlineMs: 2_000,
  },
};
/** Two readings of one clock, a fraction of a millisecond apart, may differ by one. */
const ROUNDING_MS = 2;
const randomOf = seededRandoms(announcedSeed("pool leases"));

let world: World;
beforeAll(async () => {
  world = await startWorld(POLICIES, ["EU", "NA", "AS"], { caller: CALLER });
});
afterAll(() => world.stop());

interface Lease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}
const [EU, NA, AS] = [0, 1, 2];
const call = async (region: number, method: string, path: string, body?: unknown) =>
  await (world.regions[region] as World["regions"][number]).client.call(method, path, body);
const acquire = async (region: number, policy: string, key: string, fields: object = {}) =>
  await call(region, "POST", "/v1/leases", { policy, key, ...fields });
const release = async (region: number, { id }: Lease) => await call(region, "DELETE", `/v1/leases/${id}`);
const look = async (region: number, policy: string, key: string) =>
  (await call(region, "GET", `/v1/policies/${policy}/keys/${key}`)).body;
const leaseIn = ({ body }: { readonly body: Record<string, unknown> }) => body["lease"] as Lease | undefined;

/** Units that a client certainly had. */
interface Held {
  readonly key: string;
  readonly fromMs: number;
  readonly untilMs: number;
}

/** One caller: waits or not, holds, releases, in any region, or never comes back. */
async function visit(key: string, held: Held[], random: () => number): Promise<void> {
  const region = Math.floor(random() * 3);
  const waitMs = random() < 0.5 ? 0 : Math.floor(random() * 2_000);
  const asked = await acquire(region, "storm", key, { waitMs }).catch(() => undefined);
  const lease = asked && leaseIn(asked);
  if (asked === undefined || lease === undefined) return await sleep(20 + random() * 100);
  const waitedMs = Number(asked.body["waitedMs"] ?? 0);
  const endMs = asked.sentAtMs + waitedMs + lease.expiresAfterMs - ROUNDING_MS;
  await sleep(random() * 200);
  const isCrash = random() < 0.1;
  held.push({ key, fromMs: asked.receivedAtMs, untilMs: isCrash ? endMs : Math.min(endMs, Date.now()) });
  // Whoever crashes leaves a lease behind, which ends by itself.
  if (!isCrash) await release(region, lease).catch(() => undefined);
}

function mostAtOnce(held: readonly Held[]): number {
  const edges = held
    .filter(({ fromMs, untilMs }) => untilMs > fromMs)
    .flatMap(
      ({ fromMs, untilMs }) =>
        [
          [fromMs, 1],
          [untilMs, -1],
        ] as const,
    )
    // What ends at an instant has ended then.
    .toSorted(([a, first], [b, second]) => a - b || first - second);
  let [now, most] = [0, 0];
  for (const [, change] of edges) most = Math.max(most, (now += change));
  return most;
}

test("a storm of leases in all regions, which are killed meanwhile: never more than the limit at once", async () => {
  const held: Held[] = [];
  const keys = ["one", "two"];
  const untilMs = Date.now() + STORM_MS;
  const visitor = async (index: number) => {
    const random = randomOf(index);
    while (Date.now() < untilMs) await visit(keys[index % keys.length] ?? "", held, random);
  };
  const visitors = Promise.all(Array.from({ length: 30 }, (_, index) => visitor(index)));
  for (let kill = 0; kill < KILLS; kill += 1) {
    await sleep(depth(1_500, 2_500));
    await world.restartRegion(kill);
  }
  await visitors;
  for (const key of keys) {
    const ofKey = held.filter((each) => each.key === key);
    expect(ofKey.length).toBeGreaterThan(STORM_MS / 400);
    expect(mostAtOnce(ofKey)).toBeLessThanOrEqual(LIMIT);
  }
  // Slots of those who crashed, and of regions, come back by themselves.
  for (const key of keys)
    await expect
      .poll(async () => (await look(EU, "storm", key))["remaining"], { timeout: 20_000 })
      .toBe(LIMIT);
});

test("a slot goes from one region to another: released there, it is granted to who waits here", async () => {
  const leases = [];
  for (let count = 0; count < LIMIT; count += 1) leases.push(leaseIn(await acquire(EU, "slots", "handed")));
  expect(leases.every((lease) => lease !== undefined)).toBe(true);
  expect((await acquire(NA, "slots", "handed")).body).toMatchObject({ success: false, reason: "quota" });
  const waiting = acquire(NA, "slots", "handed", { waitMs: 20_000 });
  await eventually(async () => expect((await look(AS, "slots", "handed"))["queueLength"]).toBe(1));
  expect((await release(EU, leases[0] as Lease)).status).toBe(204);
  expect((await waiting).body).toMatchObject({ success: true });
});

test("leases survive the crash of their region: they are renewed and released after it", async () => {
  const granted = await Promise.all([1, 2, 3].map(() => acquire(NA, "slots", "crash")));
  const leases = granted.map((each) => leaseIn(each) as Lease);
  await world.restartRegion(NA);
  expect((await call(NA, "POST", `/v1/leases/${leases[0]?.id}/renew`, {})).status).toBe(200);
  expect((await acquire(EU, "slots", "crash", { units: 2 })).body).toMatchObject({ success: false });
  for (const lease of leases) expect((await release(NA, lease)).status).toBe(204);
  await expect
    .poll(async () => (await look(EU, "slots", "crash"))["remaining"], { timeout: 10_000 })
    .toBe(LIMIT);
});

// These three mostly wait, for objects of their own, and do so together.
test.concurrent("a mutex has one holder in the whole world, and its token rises from holder to holder", async () => {
  let last = 0;
  for (let turn = 0; turn < 9; turn += 1) {
    const granted = await acquire(turn % 3, "mutex", "m", { waitMs: 20_000 });
    const lease = leaseIn(granted) as Lease;
    expect(granted.body).toMatchObject({ success: true });
    expect(lease.fencingToken).toBeGreaterThan(last);
    last = lease.fencingToken;
    expect((await acquire((turn + 1) % 3, "mutex", "m")).body).toMatchObject({ success: false });
    await release(turn % 3, lease);
  }
});

test.concurrent("a lease that is released after its object left memory gives its slot back at once", async () => {
  const lease = leaseIn(await acquire(EU, "slots", "asleep", { units: 3 })) as Lease;
  // An idle object is gone after about 10 s.
  await sleep(13_000);
  expect((await look(NA, "slots", "asleep"))["remaining"]).toBe(1);
  expect((await release(EU, lease)).status).toBe(204);
  await eventually(async () => expect((await look(NA, "slots", "asleep"))["remaining"]).toBe(LIMIT));
});

test.concurrent("a socket keeps its slot while it is open, beyond its lease, and gives it back when it closes", async () => {
  const url = world.regions[EU]?.serving.url ?? "";
  const socket = openSocket(url, "/v1/leases/socket?policy=storm&key=socket&units=4");
  expect(JSON.parse(await socket.first)).toMatchObject({ success: true, lease: { expiresAfterMs: TTL_MS } });
  await sleep(3 * TTL_MS);
  expect((await acquire(NA, "storm", "socket")).body).toMatchObject({ success: false });
  expect(socket.text()).toContain(`{"renewed":{"expiresAfterMs":${TTL_MS}}}`);
  const waiting = acquire(NA, "storm", "socket", { waitMs: 10_000 });
  socket.leave();
  expect((await waiting).body).toMatchObject({ success: true });
});

test("a reset ends its region's leases, and their slots are free everywhere at once", async () => {
  const lease = leaseIn(await acquire(EU, "slots", "reset", { units: 3 })) as Lease;
  expect((await look(NA, "slots", "reset"))["remaining"]).toBe(1);
  expect((await call(EU, "DELETE", "/v1/policies/slots/keys/reset")).status).toBe(204);
  expect((await acquire(NA, "slots", "reset", { units: LIMIT })).body).toMatchObject({ success: true });
  expect((await release(EU, lease)).status).toBe(404);
});

test("a socket is told that its lease has ended also while Redis is away", async () => {
  const url = world.regions[EU]?.serving.url ?? "";
  const socket = openSocket(url, "/v1/leases/socket?policy=storm&key=cut&units=4");
  await socket.first;
  world.redis.process.kill("SIGSTOP");
  try {
    await expect.poll(() => socket.text(), { timeout: 12_000 }).toContain("the lease has ended");
  } finally {
    world.redis.process.kill("SIGCONT");
  }
  expect((await acquire(NA, "storm", "cut", { waitMs: 20_000 })).body).toMatchObject({ success: true });
});

test("a lease of a call on several keys has its slot for as long as any lease", async () => {
  const checks = [{ policy: "storm", key: "all", cost: LIMIT }];
  const { body } = await call(EU, "POST", "/v1/limit/all", { checks });
  expect(body).toMatchObject({ success: true, decisions: [{ lease: {} }] });
  const [{ lease }] = body["decisions"] as [{ lease: Lease & { readonly expiresAfterMs: number } }];
  // What is left of it when the call is answered.
  expect(lease.expiresAfterMs).toBeGreaterThan(TTL_MS - 1_000);
  expect(lease.expiresAfterMs).toBeLessThanOrEqual(TTL_MS);
  const denied = await acquire(NA, "storm", "all");
  expect(denied.body["retryAfterMs"]).toBeLessThanOrEqual(2 * TTL_MS);
});

test("a look tells what its own region leases now", async () => {
  const lease = leaseIn(await acquire(AS, "slots", "looked")) as Lease;
  expect(await look(AS, "slots", "looked")).toMatchObject({ leases: 1, outstanding: 1 });
  await release(AS, lease);
  expect(await look(AS, "slots", "looked")).toMatchObject({ leases: 0, outstanding: 0 });
});

test("many short leases in one region cost Redis little: it keeps the slots it uses", async () => {
  await acquire(AS, "slots", "busy");
  const before = world.bridge.commands();
  const visits = depth(60, 300);
  for (let count = 0; count < visits; count += 1) {
    const lease = leaseIn(await acquire(AS, "slots", "busy")) as Lease;
    await release(AS, lease);
  }
  expect(world.bridge.commands() - before).toBeLessThan(visits / 10);
});

test("slots and a rate together, all or nothing", async () => {
  const first = leaseIn(await acquire(EU, "mixed", "m")) as Lease;
  const second = leaseIn(await acquire(NA, "mixed", "m")) as Lease;
  // No slot: the rate is not touched.
  expect((await acquire(AS, "mixed", "m")).body).toMatchObject({ success: false, violated: ["slots"] });
  await release(EU, first);
  await release(NA, second);
  await expect
    .poll(async () => (await acquire(AS, "mixed", "m", { waitMs: 0 })).body["success"], { timeout: 10_000 })
    .toBe(true);
  // One slot has come back by now; the other may still be on its way.
  await expect
    .poll(async () => (await acquire(AS, "mixed", "m")).body, { timeout: 10_000 })
    .toMatchObject({ success: false, violated: ["rate"] });
});

test("a slot over the binding outlives its link for the grace, is resumed, and goes back with the last link", async () => {
  const key = "linked";
  // So the isolate knows where it is.
  await look(EU, "mutex", key);
  const over = async (fields: object) => {
    const body = JSON.stringify({ policy: "mutex", key, ending: "detached", ...fields });
    const response = await fetch(world.regions[EU]?.serving.callerUrl ?? "", { method: "POST", body });
    return (await response.json()) as { readonly lease?: Lease };
  };
  const { lease } = await over({ graceMs: 20_000 });
  expect(lease).toMatchObject({ id: expect.any(String) });
  // Long enough for the object to hear that the link has ended with its request.
  await sleep(300);
  for (const region of [EU, NA]) expect((await acquire(region, "mutex", key)).body["success"]).toBe(false);
  const resumed = await over({ resume: lease?.id, graceMs: 20_000 });
  expect(resumed.lease).toMatchObject({ id: lease?.id, fencingToken: lease?.fencingToken });
  await over({ resume: lease?.id, ending: "return" }).catch(() => undefined);
  expect((await acquire(NA, "mutex", key, { waitMs: 15_000 })).body["success"]).toBe(true);
});

test("a waiting call is decided by the plan that it names, whatever others name meanwhile", async () => {
  for (const [named, other, isGranted] of [
    ["pro", "", true],
    ["", "pro", false],
  ] as const) {
    const key = `waits for ${named}`;
    const taken = await Promise.all([1, 2].map(() => acquire(EU, "planned", key, { plan: "pro" })));
    const waiting = acquire(NA, "planned", key, { plan: named, waitMs: 3_000 });
    await sleep(300);
    expect((await acquire(NA, "planned", key, { plan: other })).body).toMatchObject({ success: false });
    await release(EU, leaseIn(taken[0] ?? { body: {} }) as Lease);
    expect((await waiting).body).toMatchObject({ success: isGranted });
  }
});
