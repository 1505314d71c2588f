/** Laws of a pool's bucket whose calls name plans, through the script on a real server. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { PoolRule } from "../../../../durable-objects/pool/protocol.ts";
import { depth } from "../../../support/depth.ts";
import { holdingOf, startPools, type PartOfCall, type Pool, type Pools } from "../../../support/pools.ts";
import { announcedSeed, pick, seededRandom, whole } from "../../../support/random.ts";

let pools: Pools;
beforeAll(async () => {
  pools = await startPools();
});
afterAll(() => pools.stop());

const T = 1_760_000_000_000;
const [OWN, FASTER] = [
  { limit: 10, windowMs: 1_000, burst: 10 },
  { limit: 100, windowMs: 1_000, burst: 10 },
] as const;
/** The policy's own figures, a larger bucket and a faster one; and the same of other windows. */
const TABLES = {
  "one window": { "": OWN, large: { ...OWN, limit: 20, burst: 20 }, quick: FASTER },
  "several windows": {
    "": OWN,
    large: { limit: 40, windowMs: 7_000, burst: 40 },
    quick: { limit: 30, windowMs: 330, burst: 10 },
  },
} as const;
const PLANS = ["", "large", "quick"] as const;
type Plan = (typeof PLANS)[number];

const ruled = (figures: object) => [{ name: "rate", algorithm: "gcra", ...figures } as PoolRule];

class Key {
  nowMs = T;
  readonly plans: Readonly<Record<string, readonly PoolRule[]>>;
  readonly pool: Pool;
  #named = 0;

  constructor(table: Readonly<Record<Plan, object>>) {
    this.plans = Object.fromEntries(PLANS.map((plan) => [plan, ruled(table[plan])]));
    this.pool = pools.create([]);
  }

  call(plan: Plan, part: PartOfCall) {
    return this.pool.call({ rules: this.plans[plan] ?? [], cost: [0], ...part }, this.nowMs);
  }

  /** A call under an idempotency key: its charge may be given back. */
  async takes(plan: Plan, cost: number, name?: string): Promise<boolean> {
    const charge = name === undefined ? {} : { request: `limit of ${cost}`, answerName: name, plan };
    const { rules } = await this.call(plan, { op: "limit", cost: [cost], ...charge });
    return rules?.[0]?.success === true;
  }

  /** Returns whether the charge was known. */
  async giveBack(plan: Plan, cost: number, chargeName: string): Promise<boolean> {
    this.#named += 1;
    const text = `back ${this.#named}`;
    const named = { isNamed: true, chargeName, request: text, answerName: text, plans: this.plans } as const;
    return !("missing" in (await this.call(plan, { op: "refund", cost: [cost], ...named })));
  }

  async remaining(plan: Plan): Promise<number> {
    return (await this.call(plan, { op: "peek" })).rules?.[0]?.remaining ?? NaN;
  }

  /** The state as a script writes it that notes no terms: after a call of the plan. */
  async asOlder(plan: Plan, cost: number): Promise<void> {
    const { client, name } = this.pool;
    const noted = await client.hGet(name, "p:rate");
    await this.takes(plan, cost);
    const state = await client.hGet(name, "s:rate");
    if (state !== null) await client.hSet(name, "s:rate", state.replace("bucket 0", "bucket "));
    if (noted !== null) await client.hSet(name, "p:rate", noted);
  }

  /** The most that plans admit in an interval: the largest bucket of them at once, and the highest rate. */
  most(plans: readonly Plan[], ms: number): number {
    let [capacity, rate] = [0, 0];
    for (const plan of plans) {
      const { limit = 0, windowMs = 1, burst = 0 } = this.plans[plan]?.[0] ?? {};
      [capacity, rate] = [Math.max(capacity, burst), Math.max(rate, (limit * ms) / windowMs)];
    }
    return capacity + rate;
  }
}

// A stray call of a larger plan minted units, and a stray call by the policy's own figures cost a customer some.
describe.each(Object.entries(TABLES))("%s", (_, table) => {
  const lost = table === TABLES["one window"] ? 0 : 1;

  test("calls of other plans change nothing that time has returned until then", async () => {
    const random = seededRandom(announcedSeed("plans of a pool in time"));
    for (let round = 0; round < depth(3, 120); round += 1) {
      const key = new Key(table);
      for (let step = 0; step < 10; step += 1) {
        await key.takes(pick(random, PLANS), 1 + whole(random, 20));
        key.nowMs += whole(random, 900);
        const left: number[] = [];
        for (const plan of PLANS) left.push(await key.remaining(plan));
        for (const plan of PLANS) await key.takes(plan, 1_000);
        for (const [index, plan] of PLANS.entries()) {
          const [seen, now, before = 0] = [{ round, step, plan }, await key.remaining(plan), left[index]];
          // A smaller bucket begins empty again. Less than a part may be lost where a unit has other parts.
          const least = plan === "large" ? before - lost : 0;
          expect({ ...seen, now }).toEqual({ ...seen, now: Math.max(least, Math.min(now, before)) });
        }
      }
    }
  });

  test("in any interval no more is admitted, and not given back, than the loosest plan named in it allows", async () => {
    const random = seededRandom(announcedSeed("refunds of a pool under several plans"));
    for (let round = 0; round < depth(2, 120); round += 1) {
      const key = new Key(table);
      const charges: { readonly atMs: number; readonly name: string; units: number }[] = [];
      const named: { readonly atMs: number; readonly plan: Plan }[] = [];
      for (let step = 0; step < 50; step += 1) {
        key.nowMs += pick(random, [0, 0, 10, 40, 100, 300]);
        const charge = charges[whole(random, 3 * charges.length + 1)];
        if (charge !== undefined) {
          // A refund names no plan: the region's is another one.
          const units = 1 + whole(random, charge.units);
          if (await key.giveBack(pick(random, PLANS), units, charge.name)) charge.units -= units;
          continue;
        }
        const [plan, cost, name] = [pick(random, PLANS), 1 + whole(random, 10), `${step}`];
        named.push({ atMs: key.nowMs, plan });
        if (!(await key.takes(plan, cost, name))) continue;
        charges.push({ atMs: key.nowMs, name, units: cost });
        let taken = 0;
        for (const { atMs, units } of charges.toReversed()) {
          taken += units;
          const plans = named.filter((each) => each.atMs >= atMs).map((each) => each.plan);
          const most = key.most(plans, key.nowMs - atMs);
          expect({ round, step, atMs, taken: Math.min(taken, most) }).toEqual({ round, step, atMs, taken });
        }
      }
    }
  });

  test("a refund right after its charge gives all back, whatever was named before", async () => {
    const random = seededRandom(announcedSeed("refunds of a pool at once"));
    const key = new Key(table);
    for (let step = 0; step < depth(16, 600); step += 1) {
      key.nowMs += pick(random, [0, 1, 10, 100, 300]);
      const [plan, between, cost] = [pick(random, PLANS), pick(random, PLANS), 1 + whole(random, 9)];
      if (!(await key.takes(plan, 1))) continue;
      const before = await key.remaining("large");
      if (!(await key.takes(plan, cost, `${step}`)) || random() < 0.3) continue;
      await key.takes(between, 1_000);
      await key.giveBack(pick(random, PLANS), cost, `${step}`);
      const after = await key.remaining("large");
      const seen = { step, plan, between, cost };
      const least = Math.max(before - lost, Math.min(before, after));
      expect({ ...seen, after }).toEqual({ ...seen, after: least });
    }
  });

  test("a denied call passes after its wait, and not before, whatever plan was in force", async () => {
    const random = seededRandom(announcedSeed("waits of a pool under several plans"));
    for (let round = 0; round < depth(6, 240); round += 1) {
      const key = new Key(table);
      await key.takes("large", 10 + whole(random, 31));
      key.nowMs += whole(random, 500);
      const held = { op: "hold", cost: [whole(random, 4)], id: "other", ttlMs: 300 } as const;
      await key.call(pick(random, PLANS), held);
      key.nowMs += whole(random, 500);
      const [plan, cost] = [pick(random, PLANS), 1 + whole(random, 10)];
      const { rules } = await key.call(plan, { op: "limit", cost: [cost] });
      const waitMs = rules?.[0]?.retryAfterMs ?? 0;
      if (waitMs === 0) continue;
      // Who only looks puts nothing in force.
      await key.call(pick(random, PLANS), { op: "peek" });
      key.nowMs += waitMs - 1;
      expect(await key.takes(plan, cost)).toBe(false);
      key.nowMs += 1;
      expect(await key.takes(plan, cost)).toBe(true);
    }
  });
});

test("what a third, faster plan refilled does not come back once more", async () => {
  const key = new Key(TABLES["one window"]);
  await key.takes("", 10, "order");
  await key.takes("quick", 1_000);
  key.nowMs += 100;
  expect(await key.takes("quick", 10)).toBe(true);
  await key.giveBack("", 10, "order");
  expect(await key.remaining("")).toBe(0);
});

test("a region's message puts its plan in force if it wants units, and else it only counts what was used", async () => {
  for (const wanted of [0, 5]) {
    const key = new Key(TABLES["one window"]);
    await key.takes("", 10);
    key.nowMs += 100;
    const holding = holdingOf({ holder: "eu", turn: 1, wanted: [wanted] });
    await key.call("quick", { op: "limit", holding });
    key.nowMs += 400;
    expect(await key.remaining("")).toBe(wanted === 0 ? 5 : 10);
  }
});

test("a state is kept as long as it counts by the plan in force, whatever plan a release names", async () => {
  const key = new Key({ ...TABLES["one window"], "": { limit: 1, windowMs: 600_000, burst: 10 } });
  const holding = holdingOf({ holder: "eu", turn: 1 });
  await key.takes("", 10);
  await key.call("quick", { op: "refund", cost: [1], request: "a", answerName: "a" });
  key.nowMs += 300_000;
  expect(await key.remaining("")).toBe(1);
  const { granted } = await key.call("quick", { op: "limit", holding });
  key.nowMs += 300_000;
  expect(await key.remaining("")).toBe(2);
  expect(granted?.mark.wholeMs).toBeGreaterThan(key.nowMs);
});

describe("an older script, which notes no rate,", () => {
  test("reads the state, and what it writes is brought forward by the plan of the next call", async () => {
    const key = new Key(TABLES["one window"]);
    await key.takes("quick", 10);
    expect(await key.pool.client.hGet(key.pool.name, "s:rate")).toMatch(/^token-bucket \d+ 1000 10 \d+$/);
    await key.asOlder("", 1_000);
    key.nowMs += 100;
    expect(await key.remaining("")).toBe(1);
    expect(await key.takes("", 1)).toBe(true);
    key.nowMs += 100;
    expect([await key.remaining("quick"), await key.remaining("")]).toEqual([1, 1]);
  });

  test("lets a refund give back no more than the faster plan that this script knows has left", async () => {
    const key = new Key(TABLES["one window"]);
    await key.takes("", 10, "order");
    await key.asOlder("quick", 1_000);
    key.nowMs += 50;
    await key.asOlder("quick", 5);
    await key.giveBack("quick", 10, "order");
    expect(await key.remaining("")).toBe(5);
  });
});
