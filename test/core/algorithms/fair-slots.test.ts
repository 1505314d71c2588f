/** Slots that groups share, without anybody waiting. Whose turn it is in a line: test/durable-objects/operations/fair-line.test.ts. */
import { expect, test } from "vitest";
import { untouchedAtMs } from "../../../core/accounts/account.ts";
import { ACTIVE_MS, standingOf } from "../../../core/algorithms/fair/slot-shares.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, pick, seededRandom, whole } from "../../support/random.ts";
import { jain, playSlots, SharedSlots, START_MS } from "../../support/slot-simulation.ts";

const SEED = announcedSeed("fair slots");
const TURNS = depth(15, 100);
const many = <Item>(count: number, of: (index: number) => Item) =>
  Array.from({ length: count }, (_, i) => of(i));

test("groups that want more than there is hold the same, though one comes ten times as often", () => {
  const { held, most, used } = playSlots({ limit: 50 }, [4, 8, 50, 50, 500], { turns: TURNS, seed: SEED });
  expect(most).toBe(50);
  expect(jain(held.slice(2))).toBeGreaterThan(0.97);
  expect(used).toBeGreaterThan(0.87);
});

test("groups within their parts hardly ever find all slots taken beside a flood, and few slots lie idle", () => {
  const wants = [250, ...many(9, () => 2)];
  const { success, used, most } = playSlots({ limit: 50 }, wants, { turns: 3 * TURNS, seed: SEED });
  expect(most).toBe(50);
  const small = success.slice(1).reduce((sum, each) => sum + each, 0) / 9;
  expect(small).toBeGreaterThan(0.94);
  expect(used).toBeGreaterThan(0.87);
});

test("parts are by weight", () => {
  const weights = { g0: 1, g1: 2, g2: 7 };
  const { held, used } = playSlots({ limit: 50, weights }, [100, 100, 100], { turns: TURNS, seed: SEED });
  for (const [group, part] of [5, 10, 35].entries()) expect((held[group] ?? 0) / part).toBeCloseTo(1, 0.7);
  expect(used).toBeGreaterThan(0.96);
});

test("nothing is kept for groups that do not come, and alone a group has all", () => {
  const slots = new SharedSlots({ limit: 10 });
  expect(slots.acquire(0, "other").success).toBe(true);
  for (let lease = 0; lease < 9; lease += 1) expect(slots.acquire(1, "flood").success).toBe(true);
  const alone = new SharedSlots({ limit: 10 });
  for (let lease = 0; lease < 10; lease += 1) expect(alone.acquire(0, "flood").success).toBe(true);
});

/** A flood has all slots of ten, and another group was denied. */
function denied() {
  const slots = new SharedSlots({ limit: 10 });
  const ids = many(10, () => slots.acquire(0, "flood").id);
  expect(slots.acquire(0, "small")).toMatchObject({ success: false, reason: "quota" });
  return { slots, ids };
}

test("a group that was denied within its part gets the next slot, whoever else comes before it", () => {
  const { slots, ids } = denied();
  slots.release(10, ids.pop() ?? "");
  expect(slots.acquire(10, "flood")).toMatchObject({ success: false, remaining: 0 });
  expect(slots.acquire(11, "small").success).toBe(true);
  // And no longer when it has not come for ten seconds.
  const { slots: left, ids: leases } = denied();
  left.release(10, leases.pop() ?? "");
  expect(left.acquire(10_000, "flood").success).toBe(false);
  expect(left.acquire(10_001, "flood").success).toBe(true);
});

test("beyond its part a group still comes before one that holds more", () => {
  const slots = new SharedSlots({ limit: 10 });
  for (const group of ["b", "c", "d"]) slots.acquire(0, group, 1, 1);
  const ids = many(8, () => slots.acquire(1, "flood").id);
  for (let lease = 0; lease < 2; lease += 1) slots.acquire(1, "small");
  expect(slots.acquire(1, "b").success).toBe(false);
  slots.release(2, ids.pop() ?? "");
  expect(slots.ask(2, "small", 0).share).toEqual({ group: "small", limit: 2, remaining: 0 });
  expect(slots.acquire(2, "flood").success).toBe(false);
  expect(slots.acquire(2, "small").success).toBe(true);
});

test("what a call asks again and again keeps no more than asking once", () => {
  const { slots, ids } = denied();
  for (let call = 0; call < 100; call += 1) expect(slots.acquire(1, "small").success).toBe(false);
  for (let release = 0; release < 2; release += 1) slots.release(10, ids.pop() ?? "");
  expect(slots.acquire(10, "flood").success).toBe(true);
  expect(slots.acquire(10, "flood").success).toBe(false);
});

test("a lease that is released or expires counts for its group no more", () => {
  const slots = new SharedSlots({ limit: 4 });
  const { id } = slots.acquire(0, "a");
  slots.acquire(0, "a", 2, 100);
  slots.acquire(0, "b");
  expect([...slots.held(0)]).toEqual([
    ["a", 3],
    ["b", 1],
  ]);
  slots.release(50, id);
  expect(slots.held(99).get("a")).toBe(2);
  expect(slots.ask(99, "a", 0).share).toEqual({ group: "a", limit: 2, remaining: 0 });
  expect(slots.held(100).get("a")).toBeUndefined();
  expect(slots.ask(100, "a", 0).share).toEqual({ group: "a", limit: 2, remaining: 2 });
});

test("a group is active while it holds slots, and for ten seconds after it took, gave back or was denied", () => {
  const partOf = (slots: SharedSlots, nowMs: number) => slots.ask(nowMs, "a", 0).share?.limit;
  const holding = new SharedSlots({ limit: 12 });
  const { id } = holding.acquire(0, "b");
  holding.acquire(0, "c", 1, 5_000);
  expect(partOf(holding, 10_000)).toBe(4);
  expect(partOf(holding, 15_000)).toBe(4);
  expect(partOf(holding, 15_001)).toBe(6);
  holding.release(20_000, id);
  expect(partOf(holding, 30_000)).toBe(6);
  expect(partOf(holding, 30_001)).toBe(12);
  const full = new SharedSlots({ limit: 12 });
  for (let lease = 0; lease < 12; lease += 1) full.acquire(0, "a");
  full.acquire(5_000, "d");
  expect([partOf(full, 15_000), partOf(full, 15_001)]).toEqual([6, 12]);
  const { algorithm, config } = full.rule;
  const listed = (nowMs: number) => algorithm.groups?.(config, full.account.state, START_MS + nowMs);
  expect([listed(10_000), listed(10_001), listed(15_001)]).toEqual([["a", "d"], ["d"], []]);
  expect(untouchedAtMs(full.rule, { ...full.account, holds: [] }, START_MS + 6_000)).toBe(START_MS + 15_000);
});

/** A random history of few slots and groups, at whose denials all waits are tried. */
function history(seed: number): void {
  const random = seededRandom(seed);
  const upTo = (most: number) => Math.floor(random() * (most + 1));
  const limit = 1 + upTo(15);
  const groups = many(2 + upTo(4), (group) => `g${group}`);
  const weights = Object.fromEntries(groups.map((group) => [group, 1 + upTo(3)]));
  const slots = new SharedSlots({ limit, weights });
  const seenMs = new Map<string, number>();
  const leases: string[] = [];
  let nowMs = 0;
  for (let step = 0; step < 60; step += 1) {
    nowMs += upTo(random() < 0.1 ? 9_000 : 30);
    if (random() < 0.3 && leases.length > 0) {
      const [id] = leases.splice(upTo(leases.length - 1), 1);
      slots.release(nowMs, id ?? "");
      continue;
    }
    const group = groups[upTo(groups.length - 1)] ?? "";
    const cost = 1 + (random() < 0.2 ? upTo(limit - 1) : 0);
    const before = slots.account;
    const most = slots.ask(nowMs, group, 0).remaining;
    const said = slots.acquire(nowMs, group, cost, 1 + upTo(300));
    seenMs.set(group, nowMs);
    if (said.success !== cost <= most) throw new Error(`${most} remain, but ${cost}: ${said.success}`);
    if (slots.most > limit) throw new Error("over the limit");
    if (said.success) {
      leases.push(said.id);
      continue;
    }
    if ([...slots.held(nowMs)].join() !== [...heldOf(slots, before, nowMs)].join())
      throw new Error("a denial took slots");
    // Then the active groups stay the same for a while.
    const isTried = groups.every((each) => nowMs - (seenMs.get(each) ?? -Infinity) < 9_500);
    checkWaits(slots, { nowMs, group, cost, groups, isTried }, said);
  }
}

function heldOf(slots: SharedSlots, account: SharedSlots["account"], nowMs: number) {
  const now = slots.account;
  slots.account = account;
  const held = slots.held(nowMs);
  slots.account = now;
  return held;
}

interface Tried {
  readonly nowMs: number;
  readonly group: string;
  readonly cost: number;
  readonly groups: readonly string[];
  /** Whether the sure wait is tried too. */
  readonly isTried: boolean;
}

function checkWaits(
  slots: SharedSlots,
  { nowMs, group, cost, groups, isTried }: Tried,
  { retryAfterMs, share }: ReturnType<SharedSlots["acquire"]>,
): void {
  const isIn = (ms: number) => slots.ask(nowMs + ms, group, cost).success;
  if (retryAfterMs === null) throw new Error("leases run out, but no wait is named");
  if (!isIn(retryAfterMs)) throw new Error(`denied after ${retryAfterMs} ms, though nobody else asked`);
  if (retryAfterMs > 1 && isIn(retryAfterMs - 1)) throw new Error(`${retryAfterMs} ms is too long`);
  const { sureAfterMs } = share ?? {};
  if (sureAfterMs === undefined) throw new Error("a denial says when the call is sure to pass");
  if (sureAfterMs === null || sureAfterMs > 400 || !isTried) return;
  if (sureAfterMs < retryAfterMs)
    throw new Error(`sure in ${sureAfterMs} ms, but not before ${retryAfterMs}`);
  // The others take all that their parts allow until then, and keep it.
  const { account } = slots;
  for (let ms = 0; ms <= sureAfterMs; ms += 1)
    for (const other of groups)
      if (other !== group)
        while ((slots.ask(nowMs + ms, other, 0).share?.remaining ?? 0) > 0)
          if (!slots.acquire(nowMs + ms, other).success) break;
  if (!isIn(sureAfterMs)) throw new Error(`denied after ${sureAfterMs} ms, which were said to be sure`);
  slots.account = account;
}

// Waits that are said to be sure too early are found in the first 40.
const HISTORIES = depth(25, 1_500);
test(`in ${HISTORIES} histories no limit is passed, and remaining units and waits are exact`, () => {
  for (let seed = SEED; seed < SEED + HISTORIES; seed += 1)
    try {
      history(seed);
    } catch (error) {
      throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
    }
});

test("more than a thousand groups: further ones share one part", () => {
  const slots = new SharedSlots({ limit: 1_100 });
  for (let group = 0; group < 1_000; group += 1) expect(slots.acquire(0, `g${group}`).success).toBe(true);
  // One of the further groups is denied within the part: now others keep to theirs, which is one slot for all of these.
  for (let lease = 0; lease < 101; lease += 1) slots.acquire(1, "late0");
  expect(slots.acquire(2, "g7").success).toBe(false);
  expect(slots.ask(2, "late1", 0).share).toEqual({ group: "late1", limit: 1, remaining: 0 });
});

const FAIR = { algorithm: "concurrency", limit: 20, ttl: 1_000, fair: true };
test.each([
  [{ ...FAIR, order: "relaxed" }, 'order is "relaxed": must be left out with fair, or "strict"'],
  [{ ...FAIR, limit: 0 }, "fair is true: must be left out, or with one of token-bucket"],
  [
    { ...FAIR, reserve: { critical: "20%" } },
    "reserve is an object: must be left out with fair where units are leased",
  ],
  [{ ...FAIR, pool: "redis" }, 'pool is "redis": must be left out with fair'],
  [
    { algorithm: "adaptive-concurrency", limit: 20, fair: true },
    "fair is true: must be left out, or with one of",
  ],
  [
    { rules: { a: FAIR, b: { algorithm: "token-bucket", limit: 10, window: 1_000, fair: true } } },
    "fair is true: must be left out beside a rule that leases units, or in one such rule only",
  ],
])("%j is refused", (fields, said) => {
  expect(() => parsePolicies({ p: fields })).toThrow(said);
});

test("who holds units counts alike, whether memory has seen the group or learns of it from its leases", () => {
  const random = seededRandom(announcedSeed("standings"));
  const terms = { limit: 100, weightOf: (group: string) => 1 + (group.length % 3) };
  for (let draw = 0; draw < 200; draw += 1) {
    const names = Array.from({ length: 1 + whole(random, 30) }, (_, index) =>
      `g${index}`.padEnd(2 + whole(random, 3), "x"),
    );
    const held = new Map(names.filter(() => random() < 0.7).map((name) => [name, 1 + whole(random, 5)]));
    const seen = (name: string) => ({ name, weight: terms.weightOf(name), seenMs: 0 });
    const asked = pick(random, [...names, "new"]);
    const atMs = pick(random, [0, ACTIVE_MS, ACTIVE_MS + 1]);
    const forgotten = names.filter((name) => !held.has(name) || random() < 0.5);
    const [all, some] = [names, forgotten].map((known) => {
      const { others, heldBy: _, unit, part, ...own } = standingOf(terms, known.map(seen), held, asked, atMs);
      const units = others.held.map((each, index) => [each, others.weights[index]].join()).toSorted();
      return { ...own, units, unit: unit.toFixed(9), part: part.toFixed(9) };
    });
    expect(some).toEqual(all);
  }
});
