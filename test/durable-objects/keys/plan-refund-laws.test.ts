/** Laws of refunds on a key whose calls name one plan after another, for each algorithm whose units time returns at a rate. */
import { describe, expect, test } from "vitest";
import type { Rule } from "../../../core/policies/policy.ts";
import { planOf } from "../../../core/policies/seen-policy.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { returnedOf } from "../../../durable-objects/keys/idempotency.ts";
import { depth } from "../../support/depth.ts";
import { Key } from "../../support/planned-keys.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

const window = 1_000;
const bucket = { limit: 10, window, plans: { quick: { limit: 100, burst: 10 }, large: { limit: 20 } } };
const TABLES = {
  "token-bucket": { algorithm: "token-bucket", ...bucket },
  "token-bucket, other windows": {
    algorithm: "token-bucket",
    limit: 10,
    window,
    plans: { quick: { limit: 30, window: 330, burst: 10 }, large: { limit: 40, window: 7_000 } },
  },
  gcra: { algorithm: "gcra", ...bucket },
  "token-bucket with blocks": { algorithm: "token-bucket", blockFor: 1, ...bucket },
  "leaky-bucket": {
    algorithm: "leaky-bucket",
    nodelay: true,
    burst: 9,
    ...bucket,
    plans: { quick: { limit: 100, burst: 9 }, large: { limit: 20, burst: 19 } },
  },
  "permits-per-cycle": {
    algorithm: "permits-per-cycle",
    limit: 10,
    window,
    plans: { quick: { window: 100 }, large: { limit: 20 } },
  },
  "smooth-bursty": {
    algorithm: "smooth-bursty",
    limit: 10,
    window,
    maxDelay: 1,
    plans: { quick: { limit: 100, maxBurst: 100 }, large: { limit: 20 } },
  },
  "smooth-warming-up": {
    algorithm: "smooth-warming-up",
    limit: 10,
    window,
    warmup: 100,
    plans: { quick: { limit: 100, maxDelay: 150 }, large: { limit: 20 } },
  },
} as const;
const PLANS = ["", "quick", "large"] as const;

interface Charge {
  readonly atMs: number;
  readonly id: string;
  units: number;
}

let backs = 0;

/** @param plan absent: the refund names none */
function giveBack(key: Key, units: number, charge: string, plan?: string): unknown {
  return key.call(plan, { op: "refund", units, idempotencyKey: `back ${(backs += 1)}`, charge });
}

/**
 * The most that plans admit in an interval: the largest capacity of them, at once, and the highest rate. Where units come
 * in cycles, and not with time, the cycles of each plan that end in it: two may end one after the other.
 */
function mostOf(key: Key, plans: readonly string[], ms: number): number {
  let [capacity, rate, inCycles] = [0, 0, 0];
  for (const plan of new Set(plans)) {
    const [rule] = (plan === "" ? key.policy : key.policy.plans?.get(plan))?.rules ?? [];
    const { units = 0, windowMs = 1 } = rule?.quota ?? {};
    if (rule?.algorithm.name === "permits-per-cycle") inCycles += units * Math.ceil(ms / windowMs);
    else rate = Math.max(rate, (units * ms) / windowMs);
    capacity = Math.max(capacity, rule?.capacity ?? 0);
  }
  return capacity + rate + inCycles;
}

describe.each(Object.entries(TABLES))("%s", (_, table) => {
  test("in any interval no more is admitted, and not given back, than the loosest plan named in it allows", () => {
    const random = seededRandom(announcedSeed("refunds under several plans"));
    const any = <Value>(values: readonly Value[]) => values[whole(random, values.length)] as Value;
    for (let round = 0; round < depth(5, 300); round += 1) {
      const key = new Key(table);
      const charges: Charge[] = [];
      const named: { readonly atMs: number; readonly plan: string }[] = [];
      const name = (plan: string) => named.push({ atMs: key.nowMs, plan });
      for (let step = 0; step < 60; step += 1) {
        key.nowMs += any([0, 0, 10, 40, 100, 300]);
        if (random() < 0.05) key.crash();
        const charge = any(charges.length === 0 ? [undefined] : charges);
        if (charge !== undefined && random() < 0.25) {
          const units = 1 + whole(random, charge.units);
          const answer = giveBack(key, units, charge.id);
          if ("rules" in (answer as object)) charge.units -= units;
          charges.splice(
            charges.indexOf(charge),
            charge.units === 0 || "missing" in (answer as object) ? 1 : 0,
          );
          continue;
        }
        const [plan, cost] = [any(PLANS), 1 + whole(random, 10)];
        name(plan);
        const limit = { op: "limit", cost, idempotencyKey: `${step}` };
        const { rules } = key.call(plan, limit) as Decided;
        if (!rules.every(({ success }) => success)) continue;
        charges.push({ atMs: key.nowMs, id: `${step}`, units: cost });
        let taken = 0;
        for (const { atMs, units } of charges.toReversed()) {
          taken += units;
          const plans = named.filter((each) => each.atMs >= atMs).map((each) => each.plan);
          const most = mostOf(key, plans, key.nowMs - atMs);
          expect({ round, step, atMs, taken: Math.min(taken, most) }).toEqual({ round, step, atMs, taken });
        }
      }
    }
  });

  test("naming another plan brings back nothing that time has not", () => {
    const random = seededRandom(announcedSeed("other plans in time"));
    const key = new Key(table);
    let named = 0;
    for (let step = 0; step < depth(120, 1_000); step += 1) {
      key.takes("", 1 + whole(random, 9));
      key.nowMs += whole(random, 2 * window);
      if (random() < 0.2) key.crash();
      const left = key.remaining("");
      named += key.takes("quick", 1) ? 1 : 0;
      key.takes("", 1_000);
      expect({ step, left: Math.max(left, key.remaining("")) }).toEqual({ step, left });
    }
    expect(named).toBeGreaterThan(100);
  });

  // Of a unit that becomes other parts in another window, less than a part may be lost.
  const lost =
    new Set(Object.values({ "": table, ...table.plans }).map((plan) => "window" in plan && plan.window))
      .size > 1
      ? 1
      : 0;
  test("a refund right after its charge gives all back, whatever was named and given back before", () => {
    const random = seededRandom(announcedSeed("refunds at once"));
    const any = <Value>(values: readonly Value[]) => values[whole(random, values.length)] as Value;
    const key = new Key(table);
    for (let step = 0; step < depth(25, 1_000); step += 1) {
      key.nowMs += any([0, 1, 10, 100, 300]);
      const [plan, cost] = [any(PLANS), 1 + whole(random, 9)];
      // Until now time has returned units at the rate of the plan that is named now.
      if (!key.takes(plan, 1)) continue;
      // What a plan between has made larger does not become smaller again as it was.
      const between = any([undefined, ...PLANS]);
      const seenBy = between === undefined ? plan : "large";
      const before = key.remaining(seenBy);
      const { rules } = key.call(plan, { op: "limit", cost, idempotencyKey: `${step}` }) as Decided;
      if (!rules.every(({ success }) => success) || random() < 0.3) continue;
      if (between !== undefined) key.call(between, { op: "limit", cost: 1_000 });
      giveBack(key, cost, `${step}`);
      const seen = { step, plan, between, cost };
      const remaining = key.remaining(seenBy);
      const expected = before - lost <= remaining && remaining <= before ? remaining : before;
      expect({ ...seen, remaining }).toEqual({ ...seen, remaining: expected });
    }
  });
});

test("a state and a charge of a version that counted nothing give back what they did, and nothing under another plan", () => {
  const { policy } = new Key(TABLES["token-bucket"]);
  const [own, quick] = ["", "quick"].map((plan) => planOf(policy, plan).rules[0]) as [Rule, Rule];
  const state = { spentParts: 10_000, windowMs: window, burst: 10, atMs: 0 };
  const after = own.algorithm.decide(own.config, state, 100, 1, 0);
  expect(after).toMatchObject({ allowed: true, state: { spentParts: 10_000, atMs: 100, sinceMs: 100 } });
  const taken = (rule: Rule) => ({ units: 10, terms: `${rule.algorithm.name} ${rule.capacity} 10/1000` });
  const standing = { charge: { api: taken(own) }, atMs: 0, rules: [own] };
  const account = { state, holds: [] };
  expect(returnedOf({ rule: own, account }, standing, 10, 100)).toEqual([10, 0, 10]);
  expect(returnedOf({ rule: quick, account }, standing, 10, 100)).toEqual([0, 0]);
});

test("what a third, faster plan refilled does not come back once more", () => {
  const key = new Key(TABLES["token-bucket"]);
  key.call("", { op: "limit", cost: 10, idempotencyKey: "order" });
  key.takes("quick", 10);
  key.nowMs += 100;
  expect(key.takes("quick", 10)).toBe(true);
  giveBack(key, 10, "order");
  expect(key.remaining("")).toBe(0);
});
