/**
 * Two hundred clients over twenty keys, for a minute at full length: they wait, renew, release, crash without releasing, go while they
 * wait, and hold sockets; and the server is killed in between. What each client knows for certain is compared with the
 * limit at every instant, and the order of all grants with the order in which they were asked for.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, expect, test, vi } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { openSocket, send } from "../support/leaving-client.ts";
import { announcedSeed, seededRandoms } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const CLIENTS = 200;
const KEYS = 20;
// Ten seconds are six lives of a lease, and hundreds of each kind of client.
const LASTS_MS = depth(3_000, 24_000);
const KILLS = depth(1, 3);
const LIMIT = 3;
const TTL_MS = 1_500;
/** Two readings of one clock, a fraction of a millisecond apart, may differ by one. */
const ROUNDING_MS = 2;

const policies = {
  slots: {
    algorithm: "concurrency",
    limit: LIMIT,
    ttl: TTL_MS,
    maxTtl: "1m",
    maxWait: "30s",
    deadlineMs: 20_000,
  },
};

const state = makeState();
let serving: Serving;
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

/** Units that a client certainly had, from when it heard of the grant until it let go or they could have expired. */
interface Held {
  readonly key: string;
  readonly units: number;
  readonly how: "call" | "socket";
  readonly fromMs: number;
  untilMs: number;
}

/** A grant in the log: between when its call came to the object, and its place among all grants of the key. */
interface Grant {
  readonly key: string;
  readonly fromMs: number;
  readonly toMs: number;
  readonly fencingToken: number;
}

interface Answer {
  readonly waitedMs: number;
  readonly lease?: { readonly id: string; readonly fencingToken: number; readonly expiresAfterMs: number };
}

const held: Held[] = [];
const grants: Grant[] = [];
const counts = { granted: 0, denied: 0, crashed: 0, left: 0, sockets: 0, failed: 0 };

/** Takes an answer into the log; `undefined`: no lease. */
function noted(
  how: Held["how"],
  key: string,
  units: number,
  sentAtMs: number,
  receivedAtMs: number,
  { lease, waitedMs }: Answer,
) {
  if (lease === undefined) {
    counts.denied += 1;
    return undefined;
  }
  counts.granted += 1;
  const { id, fencingToken, expiresAfterMs } = lease;
  grants.push({ key, fromMs: sentAtMs, toMs: receivedAtMs - waitedMs + ROUNDING_MS, fencingToken });
  // The object granted it no earlier than the call had been sent and had waited.
  const untilMs = sentAtMs + waitedMs + expiresAfterMs - ROUNDING_MS;
  const entry: Held = { key, units, how, fromMs: receivedAtMs, untilMs };
  held.push(entry);
  return { id, entry };
}

async function overHttp(client: HttpClient, key: string, units: number, random: () => number): Promise<void> {
  const waitMs = random() < 0.3 ? 0 : Math.floor(random() * 4_000);
  const path = "/v1/leases";
  const { body, sentAtMs, receivedAtMs } = await client.call("POST", path, {
    policy: "slots",
    key,
    units,
    waitMs,
  });
  const lease = noted("call", key, units, sentAtMs, receivedAtMs, body as unknown as Answer);
  if (lease === undefined) return await sleep(random() * 200);
  await sleep(random() * 150);
  if (random() < 0.2) {
    const renewed = await client.call("POST", `${path}/${lease.id}/renew`, {});
    if (renewed.status === 200) lease.entry.untilMs = renewed.sentAtMs + TTL_MS - ROUNDING_MS;
    await sleep(random() * 150);
  }
  if (random() < 0.15) {
    // A machine that crashed: nobody releases, and the slot comes back by itself.
    counts.crashed += 1;
    return;
  }
  lease.entry.untilMs = Math.min(lease.entry.untilMs, Date.now());
  await client.call("DELETE", `${path}/${lease.id}`);
}

async function whoLeaves(key: string, units: number, random: () => number): Promise<void> {
  const client = send(serving.url, "/v1/leases", { policy: "slots", key, units, waitMs: 5_000 });
  await sleep(random() * 300);
  client.leave();
  counts.left += 1;
}

async function overSocket(key: string, units: number, random: () => number): Promise<void> {
  const query = `policy=slots&key=${key}&units=${units}&waitMs=${Math.floor(random() * 4_000)}`;
  const sentAtMs = Date.now();
  const socket = openSocket(serving.url, `/v1/leases/socket?${query}`);
  try {
    const first = await Promise.race([socket.first, socket.received.then(() => undefined), sleep(10_000)]);
    if (first === undefined) return;
    const lease = noted("socket", key, units, sentAtMs, Date.now(), JSON.parse(first) as Answer);
    // Renewed by itself, for longer than a lease lasts; until somebody is killed.
    if (lease === undefined) return;
    counts.sockets += 1;
    lease.entry.untilMs = Infinity;
    await Promise.race([sleep(random() * 2 * TTL_MS), socket.received]);
    lease.entry.untilMs = Math.min(Date.now(), killedAtMs > sentAtMs ? killedAtMs : Infinity);
  } finally {
    socket.leave();
  }
}

let killedAtMs = 0;

/** When the server, or this process, stood still: the alarm that renews a socket's lease may have come too late then. */
const stoodStillAtMs: number[] = [];
const STILL_MS = TTL_MS / 5;

/** Asks again and again whether the server answers in time. */
async function watchForStandstills(isOver: () => boolean): Promise<void> {
  while (!isOver()) {
    const sentAtMs = Date.now();
    await fetch(`${serving.url}/healthz`).then(
      (response) => response.text(),
      () => undefined,
    );
    if (Date.now() - sentAtMs > STILL_MS) stoodStillAtMs.push(sentAtMs);
    await sleep(20);
  }
}

/** Until when a socket's client certainly had its lease. */
function certainUntilMs({ how, fromMs, untilMs }: Held): number {
  if (how === "call") return untilMs;
  return Math.min(untilMs, ...stoodStillAtMs.filter((atMs) => atMs > fromMs - STILL_MS));
}

async function clientLoop(client: () => HttpClient, random: () => number, untilMs: number): Promise<void> {
  while (Date.now() < untilMs) {
    const key = `key-${Math.floor(random() * KEYS)}`;
    const units = random() < 0.2 ? 2 : 1;
    const kind = random();
    try {
      if (kind < 0.06) await whoLeaves(key, units, random);
      else if (kind < 0.12) await overSocket(key, units, random);
      else await overHttp(client(), key, units, random);
    } catch {
      // The server was killed meanwhile: what was not answered is known to nobody.
      counts.failed += 1;
      await sleep(50);
    }
  }
}

test("at no instant more than the limit is held, grants are in order, and in the end every slot is free", async () => {
  const randomOf = seededRandoms(announcedSeed("lease storm"));
  serving = await serveBundle(state, policies);
  let client = new HttpClient(serving.url, CLIENTS);
  const untilMs = Date.now() + LASTS_MS;
  const watching = watchForStandstills(() => Date.now() > untilMs);
  const clients = Array.from({ length: CLIENTS }, (_, index) =>
    clientLoop(() => client, randomOf(index), untilMs),
  );
  for (let kill = 0; kill < KILLS; kill += 1) {
    await sleep(LASTS_MS / (KILLS + 1));
    killedAtMs = Date.now();
    await serving.stop("SIGKILL");
    client.close();
    serving = await serveBundle(state, policies);
    client = new HttpClient(serving.url, CLIENTS);
  }
  await Promise.all([...clients, watching]);
  for (const each of held) each.untilMs = certainUntilMs(each);
  console.log("lease storm:", counts, "the server stood still", stoodStillAtMs.length, "times");
  expect(counts.granted).toBeGreaterThan(LASTS_MS / 60);
  expect(counts.crashed).toBeGreaterThan(LASTS_MS / 1_200);
  expect(overHeld()).toEqual([]);
  expect(maxHeld()).toBe(LIMIT);
  expect(outOfOrder()).toEqual([]);
  for (let key = 0; key < KEYS; key += 1) {
    await vi.waitFor(
      async () =>
        expect((await client.peek("slots", `key-${key}`)).body).toMatchObject({
          leases: 0,
          remaining: LIMIT,
        }),
      { timeout: 30_000, interval: 100 },
    );
  }
  client.close();
});

/** The most units that were certainly held of one key at one instant. */
function maxHeld(): number {
  let most = 0;
  for (const of of Map.groupBy(held, ({ key }) => key).values()) {
    const changes = of
      .filter(({ fromMs, untilMs }) => fromMs < untilMs)
      .flatMap(({ fromMs, untilMs, units }) => [
        { atMs: fromMs, units },
        { atMs: untilMs, units: -units },
      ])
      // At one instant whoever lets go does so first.
      .toSorted((a, b) => a.atMs - b.atMs || a.units - b.units);
    let now = 0;
    for (const { units } of changes) most = Math.max(most, (now += units));
  }
  return most;
}

/** Whoever held a unit together with too many others. */
function overHeld(): (readonly Held[])[] {
  return [...Map.groupBy(held, ({ key }) => key).values()].flatMap((of) =>
    of.flatMap(({ fromMs }) => {
      const together = of.filter((each) => each.fromMs <= fromMs && fromMs < each.untilMs);
      const units = together.reduce((sum, each) => sum + each.units, 0);
      return units > LIMIT ? [together] : [];
    }),
  );
}

/** Reservations that came before one that had been asked for earlier. */
function outOfOrder(): Grant[] {
  return [...Map.groupBy(grants, ({ key }) => key).values()].flatMap((of) => {
    let latestMs = -Infinity;
    return of
      .toSorted((a, b) => a.fencingToken - b.fencingToken)
      .filter(({ fromMs, toMs }) => {
        const isLate = toMs < latestMs;
        latestMs = Math.max(latestMs, fromMs);
        return isLate;
      });
  });
}
