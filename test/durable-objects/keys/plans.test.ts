/** Laws of a key whose calls name plans: the object, with each algorithm. */
import { describe, expect, test } from "vitest";
import { planOf } from "../../../core/policies/seen-policy.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { depth } from "../../support/depth.ts";
import { HIGH, Key, LOW, TABLES, window } from "../../support/planned-keys.ts";
import { announcedSeed, pick, seededRandom, whole } from "../../support/random.ts";

describe.each(Object.entries(TABLES))("%s", (_, table) => {
  test("from plan to plan nothing is forgotten, and nothing is minted", () => {
    const random = seededRandom(announcedSeed("plans"));
    for (let round = 0; round < depth(4, 200); round += 1) {
      const key = new Key(table);
      const before = 1 + whole(random, HIGH);
      for (let unit = 0; unit < before; unit += 1) key.takes("pro", 1);
      const left = key.remaining("pro");
      for (let step = 1 + whole(random, 6); step > 0; step -= 1) {
        const plan = random() < 0.5 ? "pro" : "";
        expect(key.remaining(plan)).toBeLessThanOrEqual(
          plan === "pro" ? left : Math.max(0, LOW - (HIGH - left)),
        );
        if (random() < 0.3) key.crash();
      }
      expect(key.remaining("pro")).toBe(left);
    }
  });

  // Who was suspended by a plan of 0 had a whole month again when he was let in.
  test("under a plan of 0 nothing passes, and nothing is forgotten", () => {
    const random = seededRandom(announcedSeed("plans of 0"));
    for (let round = 0; round < depth(4, 200); round += 1) {
      const key = new Key(table);
      const plan = pick(random, ["pro", ""]);
      for (let unit = whole(random, LOW); unit > 0; unit -= 1) key.takes(plan, 1);
      const held = { op: "hold", cost: 1 + whole(random, 3), id: "held", ttlMs: 90_000 };
      key.call(plan, held);
      const left = key.remaining(plan);
      for (let step = 1 + whole(random, 4); step > 0; step -= 1) {
        const denied = pick(random, [
          { op: "limit", cost: 1, idempotencyKey: `${step}` },
          { op: "hold", cost: 1, id: `${step}`, ttlMs: 1_000 },
        ]);
        expect(key.call("off", denied)).toMatchObject({
          rules: [{ success: false, limit: 0, remaining: 0 }],
        });
        if (random() < 0.3) key.crash();
      }
      if (random() < 0.5)
        key.call(pick(random, ["off", undefined]), { op: "settle", id: "held", used: held.cost });
      expect({ round, plan, left: key.remaining(plan) }).toEqual({ round, plan, left });
      expect(key.takes("off", 1)).toBe(false);
    }
  });

  // README's own example gave 5,800 units in a month instead of 1,960 to who named a larger plan once a day.
  test("naming other plans changes nothing that time has returned until then", () => {
    const random = seededRandom(announcedSeed("plans in time"));
    for (let round = 0; round < depth(4, 200); round += 1) {
      const key = new Key(table);
      for (let step = 0; step < 12; step += 1) {
        const plan = random() < 0.5 ? "pro" : "";
        for (let unit = whole(random, HIGH); unit > 0; unit -= 1) key.takes(plan, 1);
        key.nowMs += whole(random, window / 2);
        if (random() < 0.3) key.crash();
        const left = ["pro", ""].map((each) => key.remaining(each));
        const taken = (plan === "pro" ? ["", "pro"] : ["pro", ""]).filter((other) =>
          key.takes(other, 1),
        ).length;
        const [pro = 0, base = 0] = left.map((each) => Math.max(0, each - taken));
        const seen = { round, step, plan, taken };
        // The smaller plan begins empty, not with a debt, and is as empty again when it is named again.
        const leftOfBase = Math.min(base, key.remaining(""));
        expect({ ...seen, pro: key.remaining("pro"), base: key.remaining("") }).toEqual({
          ...seen,
          pro,
          base: leftOfBase,
        });
      }
    }
  });

  test("in no window more is admitted than the loosest plan named in it allows", () => {
    const random = seededRandom(announcedSeed("plans in windows"));
    for (let round = 0; round < depth(2, 60); round += 1) {
      const key = new Key(table);
      const admitted: { readonly atMs: number; readonly plan: string }[] = [];
      const named: { readonly atMs: number; readonly plan: string }[] = [];
      for (let step = 0; step < 120; step += 1) {
        key.nowMs += whole(random, 3_000);
        const plan = random() < 0.2 ? pick(random, ["pro", "off"]) : "";
        named.push({ atMs: key.nowMs, plan });
        if (key.takes(plan, 1)) admitted.push({ atMs: key.nowMs, plan });
        if (random() < 0.05) key.crash();
      }
      for (const { atMs } of admitted) {
        const within = ({ atMs: otherMs }: { readonly atMs: number }) =>
          otherMs >= atMs && otherMs < atMs + window;
        const isPro = named.some((call) => within(call) && call.plan === "pro");
        const count = admitted.filter(within).length;
        // What refills, or begins anew, in a window comes on top of what there was.
        if (!isPro) expect(count).toBeLessThanOrEqual(2 * LOW);
        expect(count).toBeLessThanOrEqual(4 * HIGH);
      }
    }
  });

  test("a call that names no plan changes none, and a peek says which the key has", () => {
    const key = new Key(table);
    const limitOf = (plan: string) => planOf(key.policy, plan).rules[0].capacity;
    key.takes("pro", 3);
    const left = key.remaining("pro");
    expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: limitOf("pro"), remaining: left }] });
    key.crash();
    expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: limitOf("pro"), remaining: left }] });
    key.takes("", 1);
    expect(key.peek()).toMatchObject({ rules: [{ limit: limitOf("") }] });
    expect(key.peek().plan).toBeUndefined();
  });
});

test.each(Object.entries(TABLES))(
  "%s: a change of the plan writes one row, also of a key not in memory",
  (_, table) => {
    const key = new Key(table);
    key.takes("", 3);
    for (const plan of ["pro", "", "pro"]) {
      if (plan === "pro") key.crash();
      const before = key.rowsWritten;
      expect(key.takes(plan, 1_000)).toBe(false);
      expect(key.rowsWritten - before).toBe(1);
      expect(key.peek().plan).toBe(plan === "" ? undefined : plan);
    }
  },
);

// The network brought it seconds late, and the key had the plan of before until the holder's next message.
test("a holder's message that a later one has overtaken leaves the key its plan, and its call is decided by its own", () => {
  const key = new Key(TABLES["token-bucket"]);
  const rules = { api: { used: 0, kept: 0, wanted: 0 } };
  const say = (plan: string, turn: number, cost: number) => {
    const message = { op: "reserve", holder: "isolate", turn, cost, ttlMs: 1_000, isShort: false, rules };
    return (key.call(plan, message) as Decided).rules[0];
  };
  say("", 1, 0);
  say("pro", 3, LOW);
  expect(say("", 2, 0)).toMatchObject({ limit: LOW, remaining: 0 });
  expect(say("", 2, 1)).toMatchObject({ success: false, limit: LOW });
  expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: HIGH, remaining: HIGH - LOW }] });
  say("", 4, 0);
  expect(key.peek().plan).toBeUndefined();
});

test("a look under a later version of the policy leaves the key its plan", () => {
  const key = new Key(TABLES["token-bucket"]);
  key.takes("pro", 3);
  const table = { algorithm: "token-bucket", limit: 12, window: "60s", plans: { pro: { limit: 50 } } };
  key.call("pro", { op: "peek", inForce: { version: 2, sinceMs: 1, fields: JSON.stringify(table) } });
  expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: 50, remaining: 47 }] });
});

const LONG = 60_000;
const SHORT = 2_000;
/** Of a policy of 20 in a minute: a plan of few in a short window. */
const shorter = (algorithm: string, fields: object = {}) => ({
  algorithm,
  limit: 20,
  window: LONG,
  ...fields,
  plans: { small: { limit: 1, window: SHORT } },
});
const SHORTER = {
  "sliding-log": shorter("sliding-log"),
  "fixed-window": shorter("fixed-window", { align: "first" }),
  "sliding-window-counter": shorter("sliding-window-counter"),
  "a log with minInterval": shorter("sliding-log", { minInterval: 5 }),
  "a log that counts denied calls": shorter("sliding-log", { countDenied: true }),
};

// The key's object forgot what its longer window held: two looks at it gave all of a month's units again.
describe.each(Object.entries(SHORTER))("%s, with a plan of a shorter window", (_, table) => {
  test("what a longer window holds stays used, whatever is named meanwhile", () => {
    for (const looks of [false, true]) {
      const key = new Key(table);
      while (key.takes("", 1)) key.nowMs += 6;
      const fullMs = key.nowMs;
      let admitted = 0;
      for (; key.nowMs < fullMs + LONG / 3; key.nowMs += 700) {
        if (looks) key.peek("small");
        else admitted += key.takes("small", 1) ? 1 : 0;
        if (key.nowMs % 3 === 0) key.crash();
      }
      for (let call = 0; call < 20; call += 1) admitted += key.takes("", 1) ? 1 : 0;
      // The smaller plan alone admits one each two seconds: 31 in a minute.
      expect(admitted).toBeLessThanOrEqual(looks ? 0 : 31 - 20 + 1);
    }
  });

  test("alone the smaller plan admits what it says", () => {
    const key = new Key(table);
    let admitted = 0;
    // A counter of two windows looks at the one before too.
    const everyMs = (_ === "sliding-window-counter" ? 2 : 1) * SHORT + 20;
    for (let ms = 0; ms < 2 * LONG; ms += everyMs) {
      key.nowMs += everyMs;
      admitted += key.takes("small", 1) ? 1 : 0;
    }
    expect(admitted).toBe(Math.ceil((2 * LONG) / everyMs));
  });
});

test.each([
  ["sliding-log", 0],
  ["sliding-log", 0.02],
  ["sliding-window-counter", 0],
])(
  "%s with three windows, crashes at %d of the calls: whatever is named in turn, none admits more than its limit",
  (algorithm, crashes) => {
    const random = seededRandom(announcedSeed("three windows"));
    const windows = { "": [20, LONG], mid: [10, 10_000], small: [2, SHORT] } as const;
    const plans = { mid: { limit: 10, window: 10_000 }, small: { limit: 2, window: SHORT } };
    const key = new Key({ algorithm, limit: 20, window: LONG, plans });
    const admitted: { readonly atMs: number; readonly plan: string }[] = [];
    for (let step = 0; step < 3_000; step += 1) {
      key.nowMs += whole(random, 300);
      const plan = pick(random, ["", "mid", "small"] as const);
      if (random() < 0.3) key.peek(pick(random, ["", "mid", "small"]));
      const isIn = key.takes(plan, 1);
      if (isIn) admitted.push({ atMs: key.nowMs, plan });
      if (random() < crashes) key.crash();
      const [limit, ms] = windows[plan];
      const lately = admitted.filter(({ atMs }) => atMs > key.nowMs - ms).length;
      // The counter estimates, and memory may be two units ahead of storage.
      const most = (algorithm === "sliding-log" ? limit : 2 * limit) + (crashes > 0 ? 2 : 0);
      if (isIn) expect(lately).toBeLessThanOrEqual(most);
    }
    expect(admitted.length).toBeGreaterThan(100);
  },
);

test("a plan with a shorter window is refused where the longer one cannot be counted beside it", () => {
  const refused = (fields: object) => {
    const table = { ...shorter("sliding-log"), ...fields };
    expect(() => new Key(table)).toThrow(/plans\.small: window is "[^"]+": must be/);
  };
  refused({ fair: true, limit: 100, plans: { small: { limit: 60, window: SHORT } } });
  refused({ blockFor: 10 });
  refused({ limit: 1_000, window: 30 * 86_400_000, plans: { small: { limit: 5_000, window: 1_000 } } });
});
