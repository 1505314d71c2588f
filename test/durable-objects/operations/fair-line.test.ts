/** Groups that wait for slots of a key, in virtual time: whose turn it is. */
import { beforeEach, expect, test } from "vitest";
import type { Decided } from "../../../core/protocol/answers.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom } from "../../support/random.ts";
import { jain } from "../../support/slot-simulation.ts";

const database = new Database();
const SEED = announcedSeed("fair line");
const START_MS = 1_760_000_000_000;
const LONG_MS = 3_600_000;
beforeEach(() => database.clear());

/** An object whose callers wait. */
class Slots {
  readonly time = new VirtualTime();
  readonly object: SimulatedObject;
  readonly limit: number;
  /** Who was answered, in order: a group, with "!" if it was denied. */
  readonly answered: string[] = [];
  #ids = 0;
  #held = new Map<string, number>();
  #area = new Map<string, number>();
  #atMs = 0;

  constructor(fields: { readonly limit: number } & Readonly<Record<string, unknown>>) {
    this.limit = fields.limit;
    const waiting = { ttl: LONG_MS, maxWait: 600_000, fair: true };
    const policies = parsePolicies({ slots: { algorithm: "concurrency", ...waiting, ...fields } });
    const clock = this.time.clock({ ms: START_MS });
    this.object = new SimulatedObject(database, policies, () => clock.nowMs(), clock);
  }

  /** @returns the id of its lease; `undefined`: denied */
  async acquire(
    group: string,
    {
      waitMs = 600_000,
      cost = 1,
      ttlMs = LONG_MS,
      name = group,
      signal = undefined as AbortSignal | undefined,
    } = {},
  ): Promise<string | undefined> {
    const id = `lease ${(this.#ids += 1)}`;
    const call = { id, cost, ttlMs, waitMs, group, ...(signal && { signal }) };
    const answer = (await this.object.ask("slots", "key", (operations, keyState, nowMs) =>
      operations.acquire(keyState, call, nowMs),
    )) as Decided;
    this.answered.push(answer.lease === undefined ? `${name}!` : name);
    if (answer.lease === undefined) return undefined;
    // What expires is not noted.
    if (ttlMs === LONG_MS) this.#note(group, cost);
    return id;
  }

  release(group: string, id: string | undefined, cost = 1): void {
    if (id === undefined) return;
    this.#note(group, -cost);
    void this.object.ask("slots", "key", (operations, keyState, nowMs) =>
      operations.release(keyState, { id }, nowMs),
    );
  }

  peek() {
    return this.object.ask("slots", "key", (operations, keyState, nowMs) =>
      operations.peek(keyState, nowMs),
    ) as {
      readonly queueLength: number;
      readonly leases: number;
    };
  }

  #note(group: string, units: number): void {
    const { nowMs } = this.time;
    for (const [name, held] of this.#held)
      this.#area.set(name, (this.#area.get(name) ?? 0) + held * (nowMs - this.#atMs));
    this.#atMs = nowMs;
    this.#held.set(group, (this.#held.get(group) ?? 0) + units);
    const all = [...this.#held.values()].reduce((sum, held) => sum + held, 0);
    if (all > this.limit) throw new Error(`${all} of ${this.limit} slots are held`);
  }

  /** The slots that each group held on average since `fromMs`, if `forget` was called then. */
  means(groups: readonly string[], fromMs: number): number[] {
    this.#note("", 0);
    return groups.map((group) => (this.#area.get(group) ?? 0) / (this.time.nowMs - fromMs));
  }

  forget(): void {
    this.#note("", 0);
    this.#area.clear();
  }
}

interface Load {
  readonly group: string;
  /** Callers that come again as soon as they have released. */
  readonly callers: number;
  readonly meanMs?: number;
}

/** What groups hold on average that always wait, for a while after the start. */
async function play(slots: Slots, loads: readonly Load[], turns: number, seed: number): Promise<number[]> {
  const random = seededRandom(seed);
  const call = async ({ group, meanMs = 100 }: Load): Promise<void> => {
    const id = await slots.acquire(group);
    slots.time.at(slots.time.nowMs - Math.log(1 - random()) * meanMs, () => {
      slots.release(group, id);
      void call(load(group));
    });
  };
  const load = (of: string) => loads.find(({ group }) => group === of) as Load;
  for (const each of loads) for (let caller = 0; caller < each.callers; caller += 1) void call(each);
  const longest = Math.max(...loads.map(({ meanMs = 100 }) => meanMs));
  const fromMs = 5 * longest;
  await settled(slots);
  await slots.time.run(fromMs, () => undefined);
  slots.forget();
  await slots.time.run(fromMs + turns * longest, () => undefined);
  return slots.means(
    loads.map(({ group }) => group),
    fromMs,
  );
}

const of = (group: string, callers: number, meanMs?: number): Load => ({
  group,
  callers,
  ...(meanMs !== undefined && { meanMs }),
});
const TURNS = depth(20, 150);

test("groups that always wait hold the same on average, and all slots are used", async () => {
  const loads = Array.from({ length: 5 }, (_, group) => of(`g${group}`, group === 0 ? 60 : 15));
  const means = await play(new Slots({ limit: 50 }), loads, TURNS, SEED);
  expect(jain(means)).toBeGreaterThan(0.99);
  expect(means.reduce((sum, each) => sum + each, 0)).toBeGreaterThan(49.9);
});

test("with fewer slots than groups each has its turn", async () => {
  const loads = Array.from({ length: 10 }, (_, group) => of(`g${group}`, group === 0 ? 20 : 2));
  expect(jain(await play(new Slots({ limit: 2 }), loads, depth(12, 4) * TURNS, SEED))).toBeGreaterThan(0.99);
});

test("a group with long leases holds no more on average than one with short ones", async () => {
  const loads = [of("short", 9), of("long", 9, 3_000)];
  expect(jain(await play(new Slots({ limit: 3 }), loads, 2 * TURNS, SEED))).toBeGreaterThan(0.99);
});

test("what groups hold is by weight, and what one leaves the others share", async () => {
  const weights = { g0: 1, g1: 2, g2: 7 };
  const loads = ["g0", "g1", "g2"].map((group) => of(group, 60));
  const means = await play(new Slots({ limit: 50, weights }), loads, TURNS, SEED);
  for (const [group, share] of [5, 10, 35].entries())
    expect(Math.abs((means[group] ?? 0) - share)).toBeLessThan(1);
  database.clear();
  // Parts of 10, of which two leave 8: the others have 12 2/3 each.
  const some = [of("a", 4), of("b", 8), of("c", 50), of("d", 50), of("e", 200)];
  const shared = await play(new Slots({ limit: 50 }), some, TURNS, SEED);
  for (const [group, share] of [4, 8, 12.67, 12.67, 12.67].entries())
    expect(Math.abs((shared[group] ?? 0) - share)).toBeLessThan(0.8);
  database.clear();
  const few = await play(
    new Slots({ limit: 2, weights: { g0: 7 } }),
    ["g0", "g1", "g2", "g3"].map((group) => of(group, 4)),
    4 * TURNS,
    SEED,
  );
  for (const [group, share] of [1.4, 0.2, 0.2, 0.2].entries())
    expect(Math.abs((few[group] ?? 0) - share)).toBeLessThan(0.1);
});

/** Takes all slots, and lets so many calls wait. */
async function flooded(slots: Slots, group: string, waiters: number): Promise<(string | undefined)[]> {
  const ids = await Promise.all(Array.from({ length: slots.limit }, () => slots.acquire(group)));
  for (let waiter = 0; waiter < waiters; waiter += 1)
    void slots.acquire(group, { name: `${group}${waiter}` });
  slots.answered.length = 0;
  return ids;
}

async function settled(slots: Slots): Promise<void> {
  await slots.time.run(slots.time.nowMs, () => undefined);
  for (let turn = 0; turn < 50; turn += 1) await Promise.resolve();
}

test("a hundred waiting calls of one group keep another within its part waiting for one release only", async () => {
  const slots = new Slots({ limit: 10 });
  const ids = await flooded(slots, "flood", 100);
  for (let call = 0; call < 5; call += 1) {
    void slots.acquire("small", { name: `small${call}` });
    slots.release("flood", ids.pop());
    await settled(slots);
  }
  expect(slots.answered).toEqual(["small0", "small1", "small2", "small3", "small4"]);
  // From here on the flood is within its part, and it has waited.
  void slots.acquire("small", { name: "beyond" });
  slots.release("flood", ids.pop());
  await settled(slots);
  expect(slots.answered.at(-1)).toBe("flood0");
});

test("in the line a group's part is by weight", async () => {
  const slots = new Slots({ limit: 4, weights: { gold: 3 } });
  const ids = await Promise.all(["a", "a", "gold", "gold"].map((group) => slots.acquire(group)));
  slots.answered.length = 0;
  void slots.acquire("a");
  void slots.acquire("gold");
  slots.release("a", ids[0]);
  await settled(slots);
  expect(slots.answered).toEqual(["gold"]);
});

test("a lease of a group writes what any lease writes, and a denial nothing", async () => {
  const slots = new Slots({ limit: 1 });
  const plain = new Slots({ limit: 1, fair: undefined });
  const rows = async (work: () => Promise<unknown>) => {
    const before = database.rowsWritten;
    await work();
    return database.rowsWritten - before;
  };
  const ofPlain = await rows(() => plain.acquire("a"));
  database.clear();
  expect(await rows(() => slots.acquire("a"))).toBe(ofPlain);
  expect(await rows(() => slots.acquire("b", { waitMs: 0 }))).toBe(0);
  expect(slots.answered).toEqual(["a", "b!"]);
});

test("a group that begins to wait is owed nothing for the time before", async () => {
  const slots = new Slots({ limit: 1 });
  const groups = ["a", "b", "c"];
  const wait = async (group: string) => {
    const id = await slots.acquire(group);
    slots.time.at(slots.time.nowMs + 100, () => slots.release(group, id));
  };
  for (let call = 0; call < 20; call += 1) for (const group of ["a", "b"]) void wait(group);
  slots.time.at(1_050, () => {
    slots.answered.length = 0;
    for (let call = 0; call < 20; call += 1) void wait("c");
  });
  await settled(slots);
  await slots.time.run(1_950, () => undefined);
  expect(slots.answered).toHaveLength(9);
  for (const group of groups) expect(slots.answered.filter((name) => name === group)).toHaveLength(3);
});

test("within a group the first that comes is the first that is served", async () => {
  const slots = new Slots({ limit: 4 });
  const held = await flooded(slots, "a", 6);
  for (let call = 0; call < 6; call += 1) void slots.acquire("b", { name: `b${call}` });
  for (const id of held) slots.release("a", id);
  slots.time.at(10, () => undefined);
  await settled(slots);
  const [ofA, ofB] = ["a", "b"].map((group) => slots.answered.filter((name) => name.startsWith(group)));
  expect(ofA).toEqual(["a0", "a1"]);
  expect(ofB).toEqual(["b0", "b1"]);
});

test("a call that needs more slots than are free waits for them, and smaller ones do not pass it for ever", async () => {
  const slots = new Slots({ limit: 6 });
  const ids = await flooded(slots, "small", 20);
  void slots.acquire("large", { cost: 3 });
  for (let release = 0; release < 3; release += 1) {
    slots.release("small", ids.pop());
    await settled(slots);
  }
  expect(slots.answered).toEqual(["large"]);
});

test("who leaves the line, or whose time is over, keeps no slot", async () => {
  const slots = new Slots({ limit: 1 });
  const [id] = await flooded(slots, "a", 0);
  const leave = new AbortController();
  void slots.acquire("b", { name: "left", signal: leave.signal });
  void slots.acquire("c", { name: "brief", waitMs: 5 });
  void slots.acquire("d");
  leave.abort();
  slots.time.at(6, () => slots.release("a", id));
  await slots.time.run(6, () => undefined);
  await settled(slots);
  expect(slots.answered).toEqual(["left!", "brief!", "d"]);
  expect(slots.peek()).toMatchObject({ queueLength: 0, leases: 1 });
});

test("a lease that expires frees the slot, and counts for its group no more", async () => {
  const slots = new Slots({ limit: 2 });
  for (let lease = 0; lease < 2; lease += 1) await slots.acquire("crashed", { ttlMs: 50 });
  void slots.acquire("other");
  void slots.acquire("crashed", { name: "back" });
  slots.answered.length = 0;
  await slots.time.run(51, () => undefined);
  expect(slots.answered).toEqual(["other", "back"]);
});

test("what groups hold outlasts the object", async () => {
  const slots = new Slots({ limit: 4 });
  const ids = await flooded(slots, "flood", 0);
  slots.object.crash();
  void slots.acquire("flood", { name: "flood0" });
  void slots.acquire("small");
  slots.release("flood", ids.pop());
  await settled(slots);
  expect(slots.answered).toEqual(["small"]);
});

test("a full line sends away the last call of the group with the most, for one of a group with fewer", async () => {
  const slots = new Slots({ limit: 1, maxWaiters: 3 });
  await flooded(slots, "flood", 3);
  void slots.acquire("small");
  void slots.acquire("flood", { name: "more" });
  void slots.acquire("small", { name: "second" });
  await settled(slots);
  expect(slots.answered).toEqual(["flood2!", "more!", "second!"]);
  expect(slots.peek()).toMatchObject({ queueLength: 3 });
});

test("a call that does not wait passes callers in line only if its group comes first", async () => {
  const slots = new Slots({ limit: 4 });
  const ids = await flooded(slots, "flood", 0);
  // Needs more than is free, and is beyond its part.
  void slots.acquire("flood", { name: "large", cost: 3 });
  slots.release("flood", ids.pop());
  await settled(slots);
  expect(await slots.acquire("flood", { waitMs: 0 })).toBeUndefined();
  expect(await slots.acquire("small", { waitMs: 0 })).toBeDefined();
  expect(slots.peek()).toMatchObject({ queueLength: 1, leases: 4 });
});
