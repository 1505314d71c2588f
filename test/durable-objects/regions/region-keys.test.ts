/** A region's object and what it hears of a key's home object: other versions of the policy, and its clock. */
import { expect, test } from "vitest";
import type { Time } from "../../../core/clock.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import type { Answer, AskHome, Decided, Reserved } from "../../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall } from "../../../core/protocol/calls.ts";
import { RegionKeys } from "../../../durable-objects/regions/region-keys.ts";

const ASK_HOME: AskHome = { askHome: true };
const WINDOW_MS = 1_000_000;
const BUCKET = { rate: { units: 100_000, windowMs: WINDOW_MS }, most: 100 };
const POLICIES = parsePolicies({
  p: { algorithm: "token-bucket", limit: 1_000, window: "1s" },
  log: { algorithm: "sliding-log", limit: 1_000, window: "1s" },
});
const { terms } = POLICIES.get("p") as Policy;
const RULE = {
  name: "p",
  success: true,
  limit: 1_000,
  remaining: 0,
  resetAfterMs: 100,
  retryAfterMs: 0,
  reason: "ok",
} as const;

/** A bucket, and units for it with the first answer alone. */
const once = (turn: number, more: Pick<Reserved, "ttlMs" | "sentThere">) => ({
  reserved: { isNew: turn === 1, units: { p: turn === 1 ? 100 : 0 }, buckets: { p: BUCKET }, ...more },
});

/** A region's object, and a home object that gives it 100 units a second and at once. */
function regionWith(
  answer: (call: ReserveCall) => Partial<Decided> | Promise<Partial<Decided>> | "lost" = () => ({}),
  policy = "p",
) {
  let nowMs = 1_000_000;
  const asked: ReserveCall[] = [];
  const timers: { readonly ms: number; readonly work: () => void }[] = [];
  const after: Time["after"] = (ms, work) => {
    timers.push({ ms, work });
    return () => undefined;
  };
  const time: Time = { nowMs: () => nowMs, after };
  const reserve = (call: ReserveCall) => {
    asked.push(call);
    const got = { units: { [policy]: 100 }, buckets: { [policy]: BUCKET } };
    const reserved = { ttlMs: 4_000, isNew: asked.length === 1, ...got };
    const more = answer(call);
    if (more === "lost") return new Promise<never>(() => undefined);
    return Promise.resolve(more).then((said) => JSON.stringify({ rules: [RULE], reserved, ...said }));
  };
  const keys = new RegionKeys({
    policies: { get: (name) => POLICIES.get(name), isRemoved: () => false },
    time,
    home: () => ({ reserve }) as unknown as ReturnType<ConstructorParameters<typeof RegionKeys>[0]["home"]>,
  });
  const limit = async (more: Partial<LimitCall> = {}) =>
    (await keys.call({ op: "limit", policy, key: "key", cost: 1, region: "enam", ...more })) as Answer;
  /** Half a second passes, or so long. */
  const wait = (forMs = 500) => {
    nowMs += forMs;
    for (const { ms, work } of timers.splice(0)) if (ms === forMs) work();
  };
  return { limit, asked, keys, wait, set: (ms: number) => (nowMs += ms) };
}

test("decides from its bucket, and says of the limit what the policy says", async () => {
  const { limit, asked } = regionWith();
  expect(await limit()).toMatchObject({ rules: [{ success: true, limit: 1_000 }] });
  expect(await limit({ cost: 50 })).toMatchObject({ rules: [{ success: true }] });
  expect(asked).toHaveLength(1);
  expect(asked[0]).toMatchObject({ cost: 0, takesBucket: true, holders: 2 });
});

// It said 99 of 1,000: a caller that plans by what remains would have waited.
test("what remains is what the home object had left beside its bucket, if that is more: it decides what costs more", async () => {
  const { limit } = regionWith(() => ({ rules: [{ ...RULE, remaining: 900 }] }));
  // The bucket of 100 may have 25 more early, by a clock set forward; it owes them.
  expect(await limit()).toMatchObject({ rules: [{ remaining: 775 }] });
  expect(await limit({ cost: 700 })).toEqual(ASK_HOME);
  const full = regionWith(() => ({ rules: [{ ...RULE, remaining: 50 }] }));
  expect(await full.limit({ cost: 40 })).toMatchObject({ rules: [{ remaining: 35 }] });
});

// It said that nothing was needed, got no bucket, and the first one was nobody's for 12 s.
test("calls of which no holder is known count as needed until a holder has said more", async () => {
  const { limit, asked, keys, set } = regionWith();
  await Promise.all(Array.from({ length: 50 }, () => limit()));
  set(1_100);
  await limit();
  expect(asked.at(-1)?.rules["p"]).toMatchObject({ kept: 100, demand: 50 });
  await holderOf(keys, "isolate", 7)();
  // The home object has answered.
  await new Promise((done) => setImmediate(done));
  set(1_100);
  await limit();
  expect(asked.at(-1)?.rules["p"]).toMatchObject({ kept: 100, demand: 7 });
});

// 300 processes that start at once have isolates that need nothing any more: for 13 s nobody had what regions kept for these.
test("what no call needs any more goes back as soon as no holder has any of it, and a later call begins anew", async () => {
  const { limit, asked, keys, wait } = regionWith();
  await limit();
  await holderOf(keys, "isolate", 50)();
  for (let looks = 0; looks < 20; looks += 1) {
    await new Promise((done) => setImmediate(done));
    wait(250);
  }
  const [first, last] = [asked[0], asked.at(-1)];
  const rules = { p: { kept: 0, wanted: 0, demand: 0, left: 100 } };
  expect(last).toMatchObject({ holder: first?.holder, ttlMs: 0, rules });
  await limit();
  expect(asked.at(-1)?.holder).not.toBe(first?.holder);
});

// For a second the first regions had what others waited for: 1,000 holders that start at once got 0.9 a second later.
test("asks each quarter of a second at first, when all regions learn what calls need, and then each second", async () => {
  const { limit, asked, set } = regionWith();
  const after = async (ms: number) => {
    const before = asked.length;
    set(ms);
    await limit({ cost: 0 });
    await new Promise((done) => setImmediate(done));
    return asked.length - before;
  };
  await after(0);
  expect([await after(240), await after(20), await after(240), await after(20)]).toEqual([0, 1, 0, 1]);
  for (let time = 0; time < 5; time += 1) await after(1_000);
  expect([await after(260), await after(700), await after(60)]).toEqual([0, 0, 1]);
});

test("is over when its bucket ends, and asks again", async () => {
  const { limit, asked, set } = regionWith();
  await limit();
  set(3_800);
  await limit();
  // It has nothing to keep: the home object counts that as ended soon.
  expect(asked.at(-1)?.rules["p"]).toMatchObject({ kept: 0 });
});

test("drops all after its clock was set back, since the home object's has not been", async () => {
  const { limit, asked, set, keys } = regionWith();
  await limit();
  expect(keys.accountsOf("p", "key")).toHaveLength(1);
  set(-10_000);
  await limit();
  expect(asked).toHaveLength(2);
  expect(asked[0]?.holder).not.toBe(asked[1]?.holder);
});

test("a rate in another window is not its own: the home object has another version of the policy", async () => {
  const buckets = { p: { rate: { units: 100_000, windowMs: 60 * WINDOW_MS }, most: 100 } };
  const { limit } = regionWith(() => ({
    reserved: { ttlMs: 4_000, isNew: true, units: { p: 100 }, buckets },
  }));
  expect(await limit()).toEqual(ASK_HOME);
});

test("under another window calls are the home object's, as long as the bucket of the one before lasts", async () => {
  const { limit, set } = regionWith();
  const fields = JSON.stringify({ algorithm: "token-bucket", limit: 1_000, window: "1m" });
  await limit();
  const inForce = { version: 2, sinceMs: 1, fields };
  expect(await limit({ inForce })).toEqual(ASK_HOME);
  expect(await limit()).toMatchObject({ rules: [{ success: true }] });
  set(10_000);
  // Then it begins anew, and this home object still has the first version.
  expect(await limit({ inForce })).toEqual(ASK_HOME);
});

test("a call under a later version is not decided before the home object has cut the bucket by it", async () => {
  // At 10 a second.
  const less = { p: { rate: { units: 10_000, windowMs: WINDOW_MS }, most: 10 } };
  const later = { ttlMs: 4_000, isNew: false, units: { p: 0 }, buckets: less };
  const { limit, asked } = regionWith(({ inForce }) => (inForce === undefined ? {} : { reserved: later }));
  await limit();
  const fields = JSON.stringify({ algorithm: "token-bucket", limit: 10, window: "1s" });
  const calls = Array.from({ length: 20 }, () => limit({ inForce: { version: 2, sinceMs: 1, fields } }));
  const admitted = (await Promise.all(calls)).filter(
    (answer) => "rules" in answer && answer.rules.every(({ success }) => success),
  );
  // And what comes in a quarter of a second: the home object counts that too.
  expect(admitted.length).toBeLessThanOrEqual(13);
  expect(asked.map((each) => each.inForce?.version)).toEqual([undefined, 2]);
});

test("a call under a later version has its limit, and the home object hears of the version at once", async () => {
  const { limit, asked } = regionWith();
  await limit();
  const fields = JSON.stringify({ algorithm: "token-bucket", limit: 500, window: "1s" });
  const inForce = { version: 2, sinceMs: 1, fields };
  expect(await limit({ inForce })).toMatchObject({ rules: [{ success: true, limit: 500 }] });
  // One that has not heard of it sets nothing back.
  expect(await limit()).toMatchObject({ rules: [{ success: true, limit: 500 }] });
  expect(asked.map((each) => each.inForce?.version)).toEqual([undefined, 2]);
});

test("a holder's message that a later one has overtaken, and a look, name no plan to the home object", async () => {
  const { limit, keys, asked, set } = regionWith();
  const plans = { small: { limit: 100 } };
  const fields = JSON.stringify({ algorithm: "token-bucket", limit: 1_000, window: "1s", plans });
  const named = (plan: string) => ({ inForce: { version: 1, sinceMs: 1, fields, plan } });
  const say = async (plan: string, turn: number) => {
    const rules = { p: { used: 0, kept: 0, wanted: 0, demand: 1 } };
    const to = { op: "reserve", policy: "p", key: "key", region: "enam", cost: 0, ttlMs: 2_000 } as const;
    await keys.call({ ...to, holder: "isolate", turn, isShort: false, rules, ...named(plan) });
    set(1_001);
    await limit();
    // The home object has answered.
    await new Promise((done) => setImmediate(done));
    return asked.at(-1)?.inForce?.plan;
  };
  expect([await say("", 1), await say("small", 3), await say("", 2)]).toEqual(["", "small", "small"]);
  await limit({ cost: 0, ...named("") });
  expect(await say("small", 4)).toBe("small");
  expect(await say("", 5)).toBe("");
});

test("while deployments mix, calls of another one are the home object's, which decides by both", async () => {
  const { limit } = regionWith();
  expect(await limit({ terms })).toMatchObject({ rules: [{ success: true }] });
  expect(await limit({ terms: '[["p",{"limit":10}]]' })).toEqual(ASK_HOME);
});

test("without a bucket it leaves calls to the home object for a second, and then asks again", async () => {
  let gives = false;
  const { limit, asked, set } = regionWith(() =>
    gives ? {} : { reserved: { ttlMs: 0, isNew: true, units: { p: 0 } } },
  );
  expect(await limit()).toEqual(ASK_HOME);
  expect(await limit()).toEqual(ASK_HOME);
  expect(asked).toHaveLength(1);
  gives = true;
  set(1_001);
  expect(await limit()).toMatchObject({ rules: [{ success: true }] });
});

/** A holder of a region's object, and the rate that it has. */
function holderOf(keys: RegionKeys, holder: string, demand: number) {
  let [turn, has] = [0, { units: 0, most: 0 }];
  return async () => {
    const bucket = has.units === 0 ? {} : { rate: has.units, level: has.most };
    const rules = { p: { used: 0, kept: has.most, wanted: 0, demand, ...bucket } };
    const to = { op: "reserve", policy: "p", key: "key", region: "enam", cost: 0, ttlMs: 2_000 } as const;
    const message = { ...to, holder, turn: (turn += 1), isShort: false, takesBucket: false, rules };
    const { reserved } = (await keys.call(message)) as Decided;
    const given = reserved?.buckets?.["p"];
    has = { units: given?.rate.units ?? 0, most: given?.most ?? 0 };
    return has.units / 1_000;
  };
}

test("when its bucket becomes smaller, each holder loses a part of its own, and none all of it", async () => {
  let perSecond = 100;
  const { keys, set } = regionWith(() => {
    const buckets = { p: { rate: { units: 1_000 * perSecond, windowMs: WINDOW_MS }, most: 100 } };
    const isFirst = perSecond === 100;
    return { reserved: { ttlMs: 4_000, isNew: isFirst, units: { p: isFirst ? 100 : 0 }, buckets } };
  });
  const holders = ["a", "b", "c"].map((name) => holderOf(keys, name, 20));
  for (const renew of holders) expect(await renew()).toBeCloseTo(30, 0);
  perSecond = 50;
  set(1_000);
  // The first of these makes it ask the home object.
  for (const renew of holders) await renew();
  const after = [];
  for (const renew of holders) after.push(await renew());
  for (const rate of after) expect(rate).toBeCloseTo((0.98 * 50) / 3, 0);
});

test("after its first bucket its holders leave what those need that were sent there and have not come yet", async () => {
  const { keys, set } = regionWith(({ turn }) => once(turn, { ttlMs: 4_000, sentThere: 10 }));
  const holders = ["a", "b", "c"].map((name) => holderOf(keys, name, 20));
  for (const renew of holders) expect(await renew()).toBeCloseTo(30, 0);
  set(1_000);
  // The first of these makes it ask the home object.
  for (const renew of holders) await renew();
  for (const renew of holders) expect(await renew()).toBeCloseTo((0.98 * 100) / 10, 0);
});

test("while the home object answers nothing, calls fail, and do not go there as well", async () => {
  let answers = false;
  const { limit, asked, set } = regionWith(() => {
    if (!answers) throw new Error("it does not answer");
    return {};
  });
  expect(await limit()).toMatchObject({ failed: expect.stringContaining("has not answered") as string });
  expect(asked.length).toBeGreaterThan(1);
  answers = true;
  set(10);
  expect(await limit()).toMatchObject({ rules: [{ success: true }] });
});

test("tells no holder to be quiet while the home object gives all that calls need", async () => {
  const { limit, keys } = regionWith(({ turn }) => once(turn, { ttlMs: 4_000 }));
  for (let holder = 0; holder < 20; holder += 1) await holderOf(keys, `isolate ${holder}`, 1)();
  let denied: Decided | undefined;
  for (let made = 0; made < 20; made += 1) denied = (await limit({ cost: 10 })) as Decided;
  expect(denied?.rules[0]?.success).toBe(false);
  expect(denied?.quietMs).toBeUndefined();
});

test("says what holders need that it has told to be quiet, until they may ask again", async () => {
  const HOLDERS = 400;
  const { keys, asked, set } = regionWith(({ turn }) => once(turn, { ttlMs: 8_000 }));
  const ask = async (holder: number, turn: number) => {
    const rules = { p: { used: 0, kept: 0, wanted: 0, demand: 1 } };
    const to = { op: "reserve", policy: "p", key: "key", region: "enam", cost: 1, ttlMs: 100 } as const;
    const message = { ...to, holder: `isolate ${holder}`, turn, isShort: false, takesBucket: false, rules };
    return (await keys.call(message)) as Decided;
  };
  const demand = () => asked.at(-1)?.rules["p"]?.demand;
  // The second time it knows that the home object has no more.
  const quiet: number[] = [];
  for (const turn of [1, 2]) {
    set(1_000);
    for (let holder = 0; holder < HOLDERS; holder += 1)
      quiet[holder] = (await ask(holder, turn)).quietMs ?? 0;
  }
  // The others were admitted.
  const told = quiet.filter((ms) => ms > 0);
  expect(told.length).toBeGreaterThan(HOLDERS / 2);
  set(Math.min(...told));
  await ask(0, 3);
  expect(demand()).toBeGreaterThanOrEqual(told.length);
  set(20_000);
  await ask(0, 4);
  set(1_000);
  await ask(0, 5);
  expect(demand()).toBeLessThan(10);
});

test("asks the home object again with the same number, as long as it has not answered", async () => {
  let isLost = true;
  const { limit, asked, wait } = regionWith(() => (isLost ? "lost" : {}));
  const decided = limit();
  wait();
  isLost = false;
  wait();
  expect(await decided).toMatchObject({ rules: [{ success: true }] });
  wait();
  const number = asked[0]?.sent?.number;
  expect(number).toBeDefined();
  expect(asked.map(({ turn, sent }) => [turn, sent?.number])).toEqual(
    [1, 1, 1].map((turn) => [turn, number]),
  );
});

test("of a log a first message that says much less than calls need by now is replaced, and its own late answer gives nothing", async () => {
  const answers: ((more: Partial<Decided>) => void)[] = [];
  const { limit, asked, wait, keys } = regionWith(
    () => new Promise<Partial<Decided>>((done) => answers.push(done)),
    "log",
  );
  const decided = Array.from({ length: 5 }, () => limit());
  wait();
  // It is not replaced again while calls need as much.
  wait();
  expect(asked.map(({ turn, rules }) => [turn, rules["log"]?.kept, rules["log"]?.demand])).toEqual([
    [1, 0, 1],
    [2, 0, 5],
    [2, 0, 5],
  ]);
  const [first, second, third] = asked.map(({ sent }) => sent?.number);
  expect(second).not.toBe(first);
  expect(third).toBe(second);
  answers[0]?.({});
  await new Promise((done) => setImmediate(done));
  expect(keys.accountsOf("log", "key")).toEqual([]);
  answers[1]?.({});
  for (const each of decided) expect(await each).toMatchObject({ rules: [{ success: true }] });
});

// Of a log it counted as used for a window; of a bucket, to which time returns it, 1,000 isolates asked three times as often.
test.each([
  ["log", 1_000, 2],
  ["p", undefined, 1],
])(
  "of a log a first message is replaced, and returns what earlier ones may have got, until an answer is taken: %s",
  async (policy, left, second) => {
    const { limit, asked, wait, set } = regionWith(() => (asked.length < 2 ? "lost" : {}), policy);
    const decided = Array.from({ length: 5 }, () => limit());
    wait();
    for (const each of decided) expect(await each).toMatchObject({ rules: [{ success: true }] });
    // Then it may have used it.
    set(5_000);
    void limit();
    const returned = asked.map(({ turn, rules }) => [turn, rules[policy]?.left]);
    expect(returned).toEqual([
      [1, left],
      [second, left],
      [second + 1, undefined],
    ]);
  },
);

test("a message of an object that has a bucket is not replaced: its holders' calls do not wait for it", async () => {
  let isLost = false;
  const { asked, wait, set, keys } = regionWith(() => (isLost ? "lost" : {}));
  await holderOf(keys, "isolate", 1)();
  isLost = true;
  set(1_000);
  for (let holder = 0; holder < 20; holder += 1) await holderOf(keys, `isolate ${holder}`, 10)();
  wait();
  wait();
  expect(asked.map(({ turn }) => turn)).toEqual([1, 2, 2, 2]);
});

test("a call whose caller has left when the home object answers is dropped, and nothing is charged for it", async () => {
  let answer = () => undefined as void;
  const { limit, keys, set } = regionWith(
    () => new Promise<Partial<Decided>>((done) => (answer = () => done({}))),
  );
  const rules = { p: { used: 0, kept: 0, wanted: 0, demand: 1 } };
  const to = { policy: "p", key: "key", region: "enam", cost: 1, ttlMs: 2_000, isShort: false } as const;
  const reserve = (leftMs: number) =>
    keys.call({ op: "reserve", ...to, holder: `left ${leftMs}`, turn: 1, takesBucket: true, rules, leftMs });
  const left = [limit({ cost: 40, leftMs: 499 }), reserve(500)];
  const waiting = [limit({ cost: 30, leftMs: 501 }), limit({ cost: 30 }), limit({ cost: 0, leftMs: 1 })];
  set(500);
  answer();
  for (const each of left) expect(await each).toEqual({ failed: "the caller has stopped waiting" });
  for (const each of waiting) expect(await each).toMatchObject({ rules: [{ success: true }] });
  const [account] = keys.accountsOf("p", "key");
  expect(account?.account.holds).toEqual([]);
  // A quarter of a second's units are owed.
  expect(await limit({ cost: 0 })).toMatchObject({ rules: [{ remaining: 100 - 25 - 60 }] });
});

test("reads an answer of a home object that is behind", async () => {
  const answers = (call: ReserveCall) => ({
    rules: [RULE],
    reserved: {
      ttlMs: 4_000,
      isNew: call.turn === 1,
      units: { p: 9 },
      buckets: { p: { rate: { units: 9_000, windowMs: WINDOW_MS }, most: 9 } },
    },
  });
  const { limit } = regionWith((call) => ({ paceMs: 2_000, answers: answers(call) }) as object);
  const { rules } = (await limit()) as Decided;
  expect(rules[0]?.success).toBe(true);
  expect(rules[0]?.remaining).toBeLessThan(10);
});
