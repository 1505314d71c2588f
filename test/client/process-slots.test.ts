/** Leases that a process grants by itself, over a limiter that the test plays. */
import { expect, test } from "vitest";
import { Ticks } from "../../bench/scale/ticks.ts";
import type { GrantedLease } from "../../client/limiter.ts";
import { describedPolicy } from "../../client/remote/described-policies.ts";
import { ProcessSlots } from "../../client/remote/process-slots.ts";
import type { Slots } from "../../core/protocol/answers.ts";
import { readClaimId } from "../../core/protocol/names.ts";
import type { HeldMessage } from "../../core/protocol/reservation-messages.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { parseDeployment } from "../support/milliseconds.ts";

const SLOTS = { algorithm: "concurrency", limit: 100, ttl: 60_000, maxTtl: 90_000 };
const { policies } = parseDeployment({
  policies: {
    slots: SLOTS,
    strict: { ...SLOTS, order: "strict" },
    few: { ...SLOTS, limit: 9 },
    planned: { ...SLOTS, plans: { pro: { limit: 200 } } },
    off: { ...SLOTS, reservation: { clients: false } },
    rate: { algorithm: "token-bucket", limit: 100, window: 1_000 },
  },
});
const GIVEN = {
  more: 0,
  isNew: false,
  lifeMs: 2_500,
  paceMs: 500,
  ttlMs: 0,
  tokens: [1, 1_001],
  ended: [],
  isHome: false,
  most: 10,
  remaining: 5,
};

/** A process whose limiter gives three slots with its first answer. @param isUp whether it answers */
function start(change: (call: HeldMessage, atMs: number) => Partial<typeof GIVEN> = () => ({})) {
  const ticks = new Ticks();
  const sent: HeldMessage[] = [];
  const state = { isUp: true };
  const send = async (_: unknown, call: HeldMessage): Promise<Slots | undefined> => {
    await Promise.resolve();
    if (!state.isUp) return undefined;
    sent.push(call);
    const more = sent.length === 1 ? 3 : 0;
    return { slots: { memory: "memory", given: { ...GIVEN, more, ...change(call, ticks.nowMs) } } };
  };
  const time = { ...ticks.clock(0), isLasting: true };
  const slots = new ProcessSlots({ time, inBackground: (work) => void work, send });
  const named = policies.get("slots");
  if (named === undefined) throw new Error("there is no policy");
  const policy = describedPolicy("slots", describeForClient(named));
  const acquire = (ttlMs?: number) => slots.acquire(policy, "key", 1, ttlMs)?.lease;
  const secretOf = (lease: GrantedLease) => readClaimId("lease", lease.id)?.secret ?? "";
  const release = (lease: GrantedLease) => slots.release("slots", "key", secretOf(lease));
  const renew = (lease: GrantedLease, ttlMs?: number) => slots.renew("slots", "key", secretOf(lease), ttlMs);
  const run = (untilMs: number, each: (nowMs: number) => void) =>
    ticks.run(() => ticks.nowMs >= untilMs, each);
  /** The first calls bring slots. */
  const warm = (nowMs: number) => nowMs <= 5 && acquire(1);
  return { ticks, sent, state, slots, acquire, release, renew, run, warm };
}

test("only relaxed policies without plans are described with slots", () => {
  const described = [...policies].filter(([, policy]) => describeForClient(policy).slots !== undefined);
  expect(described.map(([name]) => name)).toEqual(["slots"]);
});

test("a lease is kept for longer than a reservation's life, renewed and released without a message of its own", async () => {
  const { sent, acquire, release, renew, run, warm } = start();
  let lease: GrantedLease | undefined;
  await run(9_000, (nowMs) => {
    warm(nowMs);
    if (nowMs === 10) lease = acquire();
    if (lease === undefined) return;
    if (nowMs === 8_000) expect(renew(lease, 90_000)?.expiresAfterMs).toBe(90_000);
    if (nowMs === 8_001) expect(renew(lease, 90_001)).toBeUndefined();
    if (nowMs === 8_100) expect(release(lease)).toBe(true);
    if (nowMs === 8_101) expect(release(lease)).toBe(false);
  });
  expect(lease).toMatchObject({ expiresAfterMs: 60_000 });
  expect(lease?.signal?.aborted).toBe(false);
  // It says what it has at the pace of the object, and hands over nothing.
  expect(sent.length).toBeLessThan(25);
  expect(sent.at(-1)).toMatchObject({ leased: 0, released: 1 });
});

test("a lease's signal is aborted when the limiter has not answered for a life, and not before", async () => {
  const { state, sent, ticks, acquire, release, run, warm } = start();
  let lease: GrantedLease | undefined;
  let abortedAtMs: number | undefined;
  await run(4_000, (nowMs) => {
    warm(nowMs);
    if (nowMs === 10) {
      lease = acquire();
      lease?.signal?.addEventListener("abort", () => (abortedAtMs = ticks.nowMs));
      state.isUp = false;
    }
    if (nowMs === 3_000 && lease !== undefined) expect(release(lease)).toBe(false);
  });
  expect(sent).toHaveLength(1);
  expect(abortedAtMs).toBeGreaterThan(2_400);
  // The object keeps the slots for 0.3 s longer.
  expect(abortedAtMs).toBeLessThanOrEqual(2_600);
});

test.each([
  ["it expires", () => ({}), 100],
  ["it was ended elsewhere", ({ turn }: HeldMessage, id: string) => ({ ended: turn > 1 ? [id] : [] }), 9_000],
  ["its slots are not known any more", ({ turn }: HeldMessage) => ({ isNew: turn > 1 }), 9_000],
  ["its key was reset", ({ turn }: HeldMessage) => (turn > 1 ? { resetAgoMs: 1 } : {}), 9_000],
] as const)("a lease's signal is aborted when %s", async (_, change, ttlMs) => {
  let id = "";
  const { acquire, run, warm } = start((call) => change(call, id));
  let lease: GrantedLease | undefined;
  await run(1_500, (nowMs) => {
    warm(nowMs);
    if (nowMs !== 10) return;
    lease = acquire(ttlMs);
    id = readClaimId("lease", lease?.id ?? "")?.secret ?? "";
    expect(lease?.signal?.aborted).toBe(false);
  });
  expect(lease?.signal?.aborted).toBe(true);
});

test("closing aborts all signals and gives all slots back; giving back only what is idle aborts none", async () => {
  for (const isClosing of [true, false]) {
    const { sent, slots, acquire, run, warm } = start();
    let lease: GrantedLease | undefined;
    await run(100, (nowMs) => {
      warm(nowMs);
      if (nowMs === 10) lease = acquire();
      if (nowMs === 20) void slots.giveBack(isClosing);
    });
    expect(lease?.signal?.aborted).toBe(isClosing);
    expect(sent.at(-1)).toMatchObject({ kept: isClosing ? 0 : 1, leased: isClosing ? 0 : 1 });
    expect(slots.isHolding).toBe(false);
  }
});

test("a lease that was renewed for a shorter time ends then, and frees its slot", async () => {
  const { sent, acquire, renew, run, warm } = start();
  let lease: GrantedLease | undefined;
  await run(1_500, (nowMs) => {
    warm(nowMs);
    if (nowMs === 10) lease = acquire(60_000);
    if (nowMs === 20 && lease !== undefined) renew(lease, 300);
  });
  expect(lease?.signal?.aborted).toBe(true);
  expect(sent.at(-1)).toMatchObject({ leased: 0 });
});
