/** Calls that wait at a region's object for the next units of a full log: each finds its unit, and none is taken twice. */
import { describe, expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { Answer, Decided, RuleDecision } from "../../../core/protocol/answers.ts";
import type { ReserveCall } from "../../../core/protocol/calls.ts";
import { MAX_TURN_MS } from "../../../core/reservations/sizing.ts";
import { RegionKeys } from "../../../durable-objects/regions/region-keys.ts";
import { quietPart, UnitTurns } from "../../../durable-objects/regions/unit-turns.ts";

const POLICIES = parsePolicies({
  log: { algorithm: "sliding-log", limit: 2_000, window: "2s" },
  bucket: { algorithm: "token-bucket", limit: 1_000, window: "1s" },
});
const ruleOf = (name: string) => (POLICIES.get(name) as Policy).rules[0];
/** In the window of rates, 1,000 windows of 2 s. */
const WINDOW_MS = 2_000_000;
const PER_SECOND = 100;
const RATE = { rule: ruleOf("log"), rate: 2_000 * PER_SECOND };
const UNIT_MS = 1_000 / PER_SECOND;
const HOLDERS = 30;

const decision = (retryAfterMs: number): RuleDecision => ({
  name: "log",
  success: retryAfterMs === 0,
  limit: 2_000,
  remaining: 0,
  resetAfterMs: 100,
  retryAfterMs,
  reason: retryAfterMs === 0 ? "ok" : "quota",
});

describe("a turn", () => {
  const take = (turns: UnitTurns, nextMs: number, nowMs: number) =>
    turns.take([RATE], [decision(nextMs)], nowMs);

  test("is that of the next unit that no call waits for, and no call waits for longer than it may", () => {
    const turns = new UnitTurns();
    const waits = Array.from({ length: 6 }, () => take(turns, 4, 0));
    expect(waits).toEqual([4, 14, 24, 34, 0, 0]);
    expect(Math.max(...waits)).toBeLessThanOrEqual(MAX_TURN_MS);
  });

  test("is behind those that wait, also if a unit is there by now", () => {
    const turns = new UnitTurns();
    take(turns, 4, 0);
    take(turns, 4, 0);
    expect(take(turns, 0, 5)).toBe(14 + UNIT_MS - 5);
  });

  test("is now if a unit is there and nobody waits, and after the clock was set back", () => {
    const turns = new UnitTurns();
    expect(take(turns, 0, 1_000)).toBe(0);
    take(turns, 4, 1_000);
    expect(take(turns, 0, 1_004)).toBe(0);
    expect(take(turns, 4, 500)).toBe(0);
  });
});

test("holders of a full log are quiet for less, the sooner their next calls come; those of a bucket as before", () => {
  const quiet = (load: number) => quietPart([RATE], [load * PER_SECOND], HOLDERS);
  expect([quiet(20), quiet(5), quiet(2), quiet(1)].map((part) => Number(part.toFixed(2)))).toEqual([
    0.55, 0.4, 0.1, 0.1,
  ]);
  // These have messages enough for all units, and take several with one.
  expect(quietPart([RATE], [2 * PER_SECOND], 10)).toBe(0.6);
  expect(quietPart([{ rule: ruleOf("bucket"), rate: 2_000 }], [1], HOLDERS)).toBe(1);
});

/** A region's object whose home object gives it 100 units a second of a log, and two at once. */
function regionWith(answer: (call: ReserveCall) => Partial<Decided> = () => ({})) {
  // Timers run by the time that has passed, also after the clock was set.
  let [nowMs, passedMs] = [1_000_000, 0];
  let due: { readonly atMs: number; readonly work: () => void }[] = [];
  const reserve = (call: ReserveCall) => {
    const buckets = { log: { rate: { units: RATE.rate, windowMs: WINDOW_MS }, most: 2 } };
    const isNew = call.rules["log"]?.kept === 0;
    const reserved = { ttlMs: 4_000, isNew, units: { log: isNew ? 2 : 0 }, buckets };
    return Promise.resolve(JSON.stringify({ rules: [decision(0)], reserved, ...answer(call) }));
  };
  const keys = new RegionKeys({
    policies: { get: (name) => POLICIES.get(name), isRemoved: () => false },
    time: {
      nowMs: () => nowMs,
      after: (ms, work) => {
        due.push({ atMs: passedMs + ms, work });
        return () => undefined;
      },
    },
    home: () => ({ reserve }) as unknown as ReturnType<ConstructorParameters<typeof RegionKeys>[0]["home"]>,
  });
  const settle = () => new Promise<void>((done) => setImmediate(done));
  /** So many milliseconds pass, one after the other. */
  const pass = async (ms: number) => {
    for (const untilMs = passedMs + ms; passedMs < untilMs;) {
      [nowMs, passedMs] = [nowMs + 1, passedMs + 1];
      const now = due.filter(({ atMs }) => atMs <= passedMs);
      due = due.filter((each) => !now.includes(each));
      for (const { work } of now) work();
      await settle();
    }
  };
  const to = { policy: "log", key: "key", region: "enam" } as const;
  const limit = (cost = 1) => Promise.resolve(keys.call({ op: "limit", ...to, cost }) as Answer);
  /** Its holders need ten times what it has, and all that it has now is used. */
  const fill = async (holders = HOLDERS) => {
    for (const turn of [1, 2, 3]) {
      for (let holder = 0; holder < holders; holder += 1) {
        const rules = { log: { used: 0, kept: 0, wanted: 0, demand: (10 * PER_SECOND) / holders } };
        const about = { holder: `isolate ${holder}`, turn, ttlMs: 8_000, isShort: false, rules };
        void keys.call({ op: "reserve", ...to, cost: 0, ...about });
      }
      await settle();
      await pass(300);
    }
    for (let made = 0; made < 20; made += 1) void limit();
    await pass(MAX_TURN_MS + 1);
  };
  const set = (ms: number) => (nowMs += ms);
  return { keys, limit, fill, pass, set };
}

/** What each call was told, and after how many milliseconds; those that are not decided within 100 ms are left out. */
async function madeIn({ limit, pass }: ReturnType<typeof regionWith>, calls: number) {
  const told: { readonly afterMs: number; readonly isAdmitted: boolean }[] = [];
  let afterMs = 0;
  for (let made = 0; made < calls; made += 1)
    void limit().then((answer) =>
      told.push({ afterMs, isAdmitted: "rules" in answer && answer.rules.every(({ success }) => success) }),
    );
  await pass(0);
  await new Promise((done) => setImmediate(done));
  for (; afterMs < 100;) {
    afterMs += 1;
    await pass(1);
  }
  return told;
}

describe("at a region's object", () => {
  test("calls of a full log wait for their units and find them, and the others are denied at once", async () => {
    const region = regionWith();
    await region.fill();
    const told = await madeIn(region, 20);
    expect(told).toHaveLength(20);
    const later = told.filter(({ afterMs }) => afterMs > 1);
    expect(later.length).toBeGreaterThanOrEqual(3);
    expect(later.every(({ isAdmitted, afterMs }) => isAdmitted && afterMs <= MAX_TURN_MS + 1)).toBe(true);
    // What there was, and what came in 40 ms.
    expect(told.filter(({ isAdmitted }) => isAdmitted).length).toBeLessThanOrEqual(2 + 4 + 1);
  });

  test("no call of a larger cost waits, nor one of few holders", async () => {
    const region = regionWith();
    await region.fill();
    void region.limit();
    void region.limit();
    expect(((await region.limit(2)) as Decided).rules[0]?.success).toBe(false);
    const withFew = regionWith();
    await withFew.fill(5);
    const told = await madeIn(withFew, 20);
    expect(told.filter(({ afterMs }) => afterMs > 1)).toEqual([]);
  });

  // Its holders' units, and what it has itself, are nobody's by then.
  test("a call that waits while the clock is set back is not decided by a bucket that is dropped", async () => {
    const region = regionWith();
    await region.fill();
    const calls = [1, 2, 3, 4, 5].map(() => region.limit());
    region.set(-10_000);
    await region.pass(MAX_TURN_MS + 1);
    expect((await Promise.all(calls)).filter((answer) => "askHome" in answer).length).toBeGreaterThan(0);
    expect(region.keys.accountsOf("log", "key")).toEqual([]);
  });
});
