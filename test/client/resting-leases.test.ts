/** A process that only keeps leases says so seldom, and its slots are still free soon after its death. */
import { expect, test } from "vitest";
import { Ticks } from "../../bench/scale/ticks.ts";
import type { GrantedLease } from "../../client/limiter.ts";
import { describedPolicy } from "../../client/remote/described-policies.ts";
import { ProcessSlots } from "../../client/remote/process-slots.ts";
import type { Slots } from "../../core/protocol/answers.ts";
import { ownKey, readClaimId } from "../../core/protocol/names.ts";
import type { HeldMessage } from "../../core/protocol/reservation-messages.ts";
import { describeForClient } from "../../worker/calls/reservations.ts";
import { depth } from "../support/depth.ts";
import { LeasedKey, LIMIT, policies } from "../support/leased-key.ts";

const ONE_WAY_MS = 5;
/** From then on it has its slots. */
const WARM_MS = 30;
const MINUTE_MS = 60_000;

/** A process and the object of its key. @param isCut whether messages are lost at a time */
function start(name: "hour" | "brief", isCut: (atMs: number) => boolean = () => false) {
  const ticks = new Ticks();
  const key = new LeasedKey(name);
  const sentAtMs: number[] = [];
  const state = { isDead: false };
  const way = () => new Promise<void>((done) => ticks.at(ticks.nowMs + ONE_WAY_MS, done));
  const take = (call: HeldMessage): Slots => {
    key.nowMs = 1_000_000 + ticks.nowMs;
    const said = { ...call, holder: ownKey("a", call.holder), ttlMs: 0, handed: [] };
    return JSON.parse(JSON.stringify({ slots: key.slots(said) })) as Slots;
  };
  const send = async (_: unknown, call: HeldMessage): Promise<Slots | undefined> => {
    sentAtMs.push(ticks.nowMs);
    if (isCut(ticks.nowMs)) {
      // As long as the policy's deadline.
      await new Promise<void>((done) => ticks.at(ticks.nowMs + 1_000, done));
      return undefined;
    }
    await way();
    const answer = take(call);
    await way();
    return answer;
  };
  const after: ReturnType<Ticks["clock"]>["after"] = (ms, work) =>
    ticks.clock(0).after(ms, () => void (state.isDead || work()));
  const time = { nowMs: () => ticks.nowMs, after, isLasting: true };
  const slots = new ProcessSlots({ time, inBackground: (work) => void work, send });
  const named = policies.get(name);
  if (named === undefined) throw new Error("there is no policy");
  const policy = describedPolicy(name, describeForClient(named));
  const acquire = () => slots.acquire(policy, "key", 1)?.lease;
  const secretOf = (lease: GrantedLease) => readClaimId("lease", lease.id)?.secret ?? "";
  const release = (lease: GrantedLease) => slots.release(name, "key", secretOf(lease));
  const renew = (lease: GrantedLease) => slots.renew(name, "key", secretOf(lease));
  const outstanding = () => {
    key.nowMs = 1_000_000 + ticks.nowMs;
    return key.peeked.outstanding;
  };
  let held: GrantedLease | undefined;
  /** The first calls bring slots, and one lease stays. @param each is called in each tick after that */
  const run = (untilMs: number, each: (nowMs: number, lease: GrantedLease) => void = () => undefined) =>
    ticks.run(
      () => ticks.nowMs >= untilMs,
      (nowMs) => {
        const lease = nowMs <= WARM_MS ? acquire() : undefined;
        if (nowMs === WARM_MS) held = lease;
        else if (lease !== undefined) release(lease);
        if (nowMs >= WARM_MS && held === undefined) throw new Error("there is no lease");
        if (held !== undefined) each(nowMs, held);
      },
    );
  const sent = (fromMs: number, untilMs: number) =>
    sentAtMs.filter((atMs) => atMs >= fromMs && atMs < untilMs).length;
  return { key, state, slots, run, acquire, release, renew, outstanding, sent, secretOf };
}

test("an idle process with a lease of an hour sends at most 20 messages a minute, and keeps the lease", async () => {
  const { run, sent, outstanding } = start("hour");
  await run(4 * MINUTE_MS, (nowMs, lease) => {
    if (nowMs % 1_000 === 0) expect(lease.signal?.aborted).toBe(false);
  });
  expect(sent(0, MINUTE_MS)).toBeLessThanOrEqual(32);
  for (let minute = 1; minute < 4; minute += 1)
    expect(sent(minute * MINUTE_MS, (minute + 1) * MINUTE_MS)).toBeLessThanOrEqual(20);
  expect(outstanding()).toBe(1);
});

test.each([
  ["hour", 1_000, 2_800],
  ["hour", 5_000, 5_300],
  ["hour", 8_000, 8_300],
  ["hour", MINUTE_MS, 9_300],
  // No longer than without a process that leases.
  ["brief", MINUTE_MS, 4_300],
] as const)(
  "under the policy %s the slot of a process that dies after %i ms is free %i ms later",
  async (name, diesMs, freeMs) => {
    const { run, state, renew, outstanding } = start(name);
    await run(diesMs + freeMs, (nowMs, lease) => {
      if (nowMs % 1_000 === 0 && nowMs < diesMs) expect(renew(lease)).toBeDefined();
      state.isDead = nowMs >= diesMs;
      if (nowMs === diesMs) expect(outstanding()).toBeGreaterThanOrEqual(1);
    });
    expect(outstanding()).toBe(0);
  },
);

test("free slots of a process go back for a call that needs them and those of the object, and only then", async () => {
  const { key, slots, run, outstanding } = start("brief");
  const free = () => LIMIT - outstanding();
  const answers: (boolean | undefined)[] = [];
  await run(200, (nowMs) => {
    if (nowMs === 100) {
      expect(slots.isHolding).toBe(true);
      expect(free()).toBeLessThan(LIMIT - 1);
      for (const units of [LIMIT, LIMIT - 1])
        void slots.giveIdle("brief", "key", units, free()).then((isBack) => answers.push(isBack));
    }
  });
  expect(answers).toEqual([false, true]);
  expect(free()).toBe(LIMIT - 1);
  expect(key.lease("large", LIMIT - 1)).toBe(true);
});

test("a process that has kept a lease for long keeps it while the limiter is away for 5 s", async () => {
  for (let cutMs = MINUTE_MS; cutMs < MINUTE_MS + 3_000; cutMs += depth(1_500, 500)) {
    const { run, outstanding } = start("hour", (atMs) => atMs >= cutMs && atMs < cutMs + 5_000);
    await run(cutMs + 8_000, (nowMs, lease) => {
      if (nowMs % 100 === 0) expect(lease.signal?.aborted).toBe(false);
    });
    expect(outstanding()).toBe(1);
  }
});

test("a slot that is released after long is back at once, and later acquires bring slots again", async () => {
  const { run, acquire, release, outstanding, sent } = start("hour");
  const releasedMs = MINUTE_MS + 1_234;
  let own = 0;
  await run(releasedMs + 3_000, (nowMs, lease) => {
    if (nowMs === releasedMs) release(lease);
    if (nowMs === releasedMs + 2 * ONE_WAY_MS + 1) expect(outstanding()).toBe(0);
    if (nowMs < releasedMs + 2_000 || nowMs % 10 !== 0) return;
    const granted = acquire();
    if (granted === undefined) return;
    own += 1;
    release(granted);
  });
  expect(sent(releasedMs, releasedMs + 2_000)).toBe(1);
  expect(own).toBeGreaterThan(30);
});

test("a lease that others release while its process rests is told within 3 s, and so is a reset", async () => {
  for (const op of ["release", "reset"]) {
    const { key, run, secretOf } = start("hour");
    const endedMs = MINUTE_MS + 321;
    let toldMs = Infinity;
    await run(endedMs + 4_000, (nowMs, lease) => {
      if (nowMs === endedMs)
        key.call({ op, ...(op === "release" && { id: secretOf(lease), mayBeYoung: true }) });
      if (nowMs > endedMs && lease.signal?.aborted === true) toldMs = Math.min(toldMs, nowMs);
    });
    expect(toldMs).toBeLessThan(endedMs + 3_000 + 2 * ONE_WAY_MS + 100);
  }
});
