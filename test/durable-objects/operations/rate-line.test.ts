/** Groups that wait for units of a rate that they share, in virtual time: who is served when, and that nobody passes. */
import { beforeEach, expect, test } from "vitest";
import { admitsTogether, decideTogether, refund, UNTOUCHED } from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import type { Policies, Rule } from "../../../core/policies/policy.ts";
import type { Answer, Decided } from "../../../core/protocol/answers.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, pick, seededRandom } from "../../support/random.ts";
import { ruleOf } from "../../support/rules.ts";
import { jain } from "../../support/slot-simulation.ts";

type Fields = Readonly<Record<string, unknown>>;

const database = new Database();
const SEED = announcedSeed("rate line");
const START_MS = 1_760_000_000_000;
const BUCKET = { algorithm: "token-bucket", limit: 100, window: 1_000 };
const LONG_MS = 600_000;
beforeEach(() => database.clear());

interface Asked {
  readonly number: number;
  readonly group: string;
  readonly cost: number;
  readonly waitMs: number | undefined;
  readonly atMs: number;
  answer?: Decided;
  answeredMs?: number;
}

/** An object whose groups call, and the same rate without groups, which is asked of everything that is admitted. */
class Rates {
  readonly time = new VirtualTime();
  readonly object: SimulatedObject;
  readonly calls: Asked[] = [];
  readonly waiting = new Set<Asked>();
  readonly plain: Rule;
  #plainAccount: Account = UNTOUCHED;
  #answered: Asked[] = [];
  #refunds = 0;

  constructor(fields: Fields, line: Fields = {}) {
    const { fair: _, weights: __, ...plain } = fields;
    this.plain = ruleOf(plain);
    const policies: Policies = parsePolicies({ rate: { maxWait: LONG_MS, ...fields, ...line, fair: true } });
    const clock = this.time.clock({ ms: START_MS });
    this.object = new SimulatedObject(database, policies, () => clock.nowMs(), clock);
  }

  ask(
    group: string,
    {
      cost = 1,
      waitMs = undefined as number | undefined,
      named = "",
      signal = undefined as AbortSignal | undefined,
      onAnswer = (): unknown => undefined,
    } = {},
  ): Asked {
    const asked: Asked = { number: this.calls.length, group, cost, waitMs, atMs: this.time.nowMs };
    this.calls.push(asked);
    const call = {
      cost,
      group,
      ...(waitMs !== undefined && { waitMs }),
      ...(named !== "" && { idempotencyKey: named }),
      ...(signal && { signal }),
    };
    const told = (answer: Answer) => {
      if (asked.answer !== undefined) throw new Error("answered twice");
      asked.answer = answer as Decided;
      asked.answeredMs = Math.floor(this.time.nowMs);
      this.waiting.delete(asked);
      this.#answered.push(asked);
      onAnswer();
    };
    const answer = this.object.ask("rate", "key", (operations, keyState, nowMs) =>
      operations.limit(keyState, call, nowMs),
    );
    if (answer instanceof Promise) {
      this.waiting.add(asked);
      void answer.then(told);
    } else told(answer);
    return asked;
  }

  refund(units: number): void {
    const call = { units, idempotencyKey: `refund ${(this.#refunds += 1)}` };
    void this.object.ask("rate", "key", (operations, keyState, nowMs) =>
      operations.refund(keyState, call, nowMs),
    );
    this.#plainAccount = refund(this.plain, this.#plainAccount, START_MS + this.time.nowMs, units);
  }

  line() {
    const keyState = this.object.open({ name: "rate" }, "key");
    return { keyState, waiters: this.object.memory.queue.waitersOf(keyState) };
  }

  async run(untilMs: number): Promise<void> {
    for (let ms = Math.floor(this.time.nowMs); ms <= untilMs; ms += 1) {
      this.time.at(ms, () => undefined);
      await this.time.run(ms, () => this.#checkAnswers());
      this.#checkAnswers();
      this.#checkNoneIdle();
      const [left, plain] = this.remaining();
      if (left !== plain) expect(left, "units are taken that no answer has").toBe(plain);
    }
  }

  /** The laws that hold after each event. */
  #checkAnswers(): void {
    const answered = this.#answered;
    this.#answered = [];
    for (const asked of answered) {
      const { group, cost, waitMs, atMs, answeredMs = 0, number } = asked;
      if (asked.answer?.rules.length === 0) continue;
      if (waitMs !== undefined) {
        expect(asked.answer?.waitedMs, "waitedMs").toBe(answeredMs - atMs);
        expect(answeredMs - atMs, "the deadline").toBeLessThanOrEqual(waitMs);
      }
      if (!isAdmitted(asked)) continue;
      const first = [...this.waiting].find((each) => each.group === group && each.number < number);
      expect(first, "a call of the group that waits is passed").toBe(undefined);
      const ruleAccounts = [{ rule: this.plain, account: this.#plainAccount }];
      const { accounts } = decideTogether(ruleAccounts, START_MS + answeredMs, cost);
      expect(accounts, "more than the rate is admitted").toBeDefined();
      this.#plainAccount = accounts?.[0] ?? this.#plainAccount;
    }
  }

  /** No first call of a group waits that may pass, unless units are short for another one. */
  #checkNoneIdle(): void {
    const { keyState, waiters } = this.line();
    const heads = [...new Map(waiters.toReversed().map((waiter) => [waiter.group, waiter])).values()];
    const atMs = START_MS + this.time.nowMs;
    const isShort = heads.some(({ cost }) => !admitsTogether(keyState.ruleStates, atMs, cost));
    const idle = heads.filter((head) => admitsTogether(keyState.seenBy(head), atMs, head.cost));
    // Vitest's `expect` takes longer than the rest of a step.
    if (!isShort && idle.length > 0) expect.fail("a call waits that may pass");
    if (waiters.some(({ untilMs }) => untilMs <= atMs)) expect.fail("a call waits beyond its deadline");
  }

  /** What is left of the rate, at the object and without groups. */
  remaining(): readonly (number | undefined)[] {
    const atMs = START_MS + this.time.nowMs;
    const { keyState } = this.line();
    const plain = [{ rule: this.plain, account: this.#plainAccount }];
    return [keyState.ruleStates, plain].map((of) => decideTogether(of, atMs, 0).rules[0]?.remaining);
  }
}

function isAdmitted({ answer }: Asked): boolean {
  return answer !== undefined && answer.rules.length > 0 && answer.rules.every(({ success }) => success);
}

const ALGORITHMS: readonly Fields[] = [
  { ...BUCKET, burst: 40 },
  { ...BUCKET, algorithm: "gcra", limit: 30 },
  { algorithm: "sliding-log", limit: 60, window: 1_400 },
  { algorithm: "sliding-log", limit: 60, window: 1_400, minInterval: 10 },
  { algorithm: "fixed-window", limit: 60, window: 1_200 },
  { algorithm: "sliding-window-counter", limit: 60, window: 1_200 },
];

test.each(ALGORITHMS)(
  "with %j histories admit no more than the rate, in turn, at once and once",
  async (fields) => {
    for (let history = 0; history < depth(1, 20); history += 1) {
      database.clear();
      const seed = SEED + history;
      const random = seededRandom(seed);
      const weights = pick(random, [undefined, { a: 4 }]);
      const rates = new Rates(
        { ...fields, ...(weights && { weights }) },
        { maxWaiters: pick(random, [5, 40]) },
      );
      const costs = pick(random, [[1], [1, 2, 3], [1, 1, 9, 25]]);
      const leaving: AbortController[] = [];
      const turn = (): void => {
        const group = pick(random, ["a", "a", "b", "b", "b", "b", "c", "d"]);
        const waitMs = pick(random, [undefined, 0, 20, 150, 400, 2_000]);
        const leave = new AbortController();
        leaving.push(leave);
        rates.ask(group, { cost: pick(random, costs), waitMs, signal: leave.signal });
        if (random() < 0.05) pick(random, leaving).abort();
        const units = 1 + Math.floor(4 * random());
        if (random() < 0.03) rates.time.at(rates.time.nowMs, () => rates.refund(units));
      };
      let atMs = 0;
      while (atMs < 3_000) {
        rates.time.at(atMs, turn);
        atMs += random() < 0.4 ? 0 : Math.floor(30 * random());
      }
      await rates.run(10_000).catch((error: unknown) => {
        throw new Error(`history of the seed ${seed}`, { cause: error });
      });
      expect(rates.waiting.size).toBe(0);
      expect(
        rates.calls.filter(({ answer }) => answer?.waitedMs !== undefined && answer.waitedMs > 0),
      ).not.toEqual([]);
      const [left, plain] = rates.remaining();
      expect(left, `of the seed ${seed}`).toBe(plain);
    }
  },
);

/** Callers that call again as soon as they are answered, so that so many always wait. */
function flood(rates: Rates, group: string, callers: number, cost = 1): void {
  const again = (): void => {
    const onAnswer = () => rates.time.at(rates.time.nowMs + 1, again);
    rates.ask(group, { cost, waitMs: LONG_MS, onAnswer });
  };
  for (let caller = 0; caller < callers; caller += 1) again();
}

test.each(["token-bucket", "gcra"])(
  "with %s a group within its part never waits and is never denied, however many of other groups wait",
  async (algorithm) => {
    for (let history = 0; history < depth(1, 8); history += 1) {
      database.clear();
      const random = seededRandom(SEED + history);
      const rates = new Rates({ ...BUCKET, algorithm, weights: { small: 2 } });
      rates.ask("small");
      for (const group of ["b", "c"]) flood(rates, group, 30);
      // Its part: 2 of 4, of the rate and of half of the burst.
      const part = { rate: 0.05, burst: 25 };
      let [has, sinceMs] = [part.burst - 1, 0];
      const small: Asked[] = [];
      for (let atMs = 1; atMs < 3_000; atMs += 1 + Math.floor(random() * random() * 200))
        rates.time.at(atMs, () => {
          has = Math.min(part.burst, has + (atMs - sinceMs) * part.rate);
          sinceMs = atMs;
          const cost = 1 + Math.floor(random() * 8);
          if (cost > has) return;
          has -= cost;
          small.push(rates.ask("small", { cost, waitMs: pick(random, [undefined, LONG_MS]) }));
        });
      await rates.run(3_000);
      expect(small.length).toBeGreaterThan(10);
      for (const asked of small) {
        expect(isAdmitted(asked)).toBe(true);
        expect(asked.answer?.waitedMs ?? 0).toBe(0);
      }
    }
  },
);

test("groups that always wait get their parts by weight, and nothing of the rate is lost", async () => {
  const rates = new Rates({ ...BUCKET, weights: { gold: 3 } });
  for (const [group, callers] of [
    ["gold", 20],
    ["b", 60],
    ["c", 8],
  ] as const)
    flood(rates, group, callers);
  await rates.run(2_000);
  const from = rates.calls.filter(isAdmitted).length;
  const before = rates.calls.length;
  await rates.run(5_000);
  const admitted = rates.calls.filter(isAdmitted);
  expect(admitted.length - from).toBeGreaterThanOrEqual(299);
  expect(before).toBeGreaterThan(100);
  const of = (group: string) =>
    admitted.filter((asked) => asked.group === group && (asked.answeredMs ?? 0) > 2_000).length;
  expect(jain([of("gold") / 3, of("b"), of("c")])).toBeGreaterThan(0.99);
});

test("a call larger than its part gets the units that it waits for, while small ones of a flood keep coming", async () => {
  const rates = new Rates(BUCKET);
  flood(rates, "flood", 30);
  await rates.run(2_000);
  const large = rates.ask("large", { cost: 80, waitMs: LONG_MS });
  await rates.run(2_100);
  expect(large.answer).toBe(undefined);
  // 80 units take 1.6 s at the rate of its half, and then at most 0.8 s at the whole one.
  await rates.run(2_000 + 2_400);
  expect(isAdmitted(large)).toBe(true);
  expect(
    rates.calls.some((asked) => asked.group === "flood" && isAdmitted(asked) && asked.atMs > 2_200),
  ).toBe(true);
});

test("while units are short, calls beyond their parts wait behind the one that they are short for", async () => {
  const rates = new Rates({ algorithm: "sliding-log", limit: 60, window: 1_000, weights: { c: 9 } });
  // Alone, the first group may have all of it.
  rates.ask("a", { cost: 58 });
  rates.ask("c");
  await rates.run(10);
  const within = rates.ask("b", { cost: 2, waitMs: LONG_MS });
  const beyond = rates.ask("a", { waitMs: LONG_MS });
  await rates.run(rates.time.nowMs);
  // One unit is left.
  expect([within, beyond].map(({ answer }) => answer)).toEqual([undefined, undefined]);
  expect(isAdmitted(rates.ask("a"))).toBe(false);
  expect(isAdmitted(rates.ask("b"))).toBe(false);
  expect(isAdmitted(rates.ask("c"))).toBe(true);
  await rates.run(1_000);
  expect(isAdmitted(within)).toBe(true);
});

test("units that are short go to calls within their parts first, and of several to the group that owes least", async () => {
  const rates = new Rates({ algorithm: "sliding-log", limit: 90, window: 1_000 });
  rates.ask("a", { cost: 88 });
  for (const group of ["b", "c"]) rates.ask(group);
  await rates.run(10);
  // Half of it counts at once, which is more than a quarter of 90.
  const large = rates.ask("large", { cost: 50, waitMs: LONG_MS });
  const owing = rates.ask("b", { waitMs: LONG_MS });
  const fresh = rates.ask("d", { waitMs: LONG_MS });
  await rates.run(11);
  rates.refund(1);
  await rates.run(12);
  expect([large, owing, fresh].map(isAdmitted)).toEqual([false, false, true]);
  rates.refund(5);
  await rates.run(13);
  expect([large, owing].map(isAdmitted)).toEqual([false, true]);
  rates.refund(46);
  await rates.run(14);
  expect(isAdmitted(large)).toBe(true);
});

test("a call behind one whose wait ends is served at once, also if that one waited for units that are short", async () => {
  const rates = new Rates({ algorithm: "sliding-log", limit: 90, window: 1_000 });
  rates.ask("c", { cost: 20 });
  rates.ask("d", { cost: 17 });
  // For a group that has used most then, all together are too fast.
  const large = rates.ask("d", { cost: 30, waitMs: 100 });
  // Units are taken without a decision: one is left.
  const { keyState } = rates.line();
  const accounts = keyState.ruleStates.map(({ rule: { algorithm, config }, account: { state, holds } }) => ({
    state: algorithm.debit(config, state, START_MS, 52),
    holds,
  }));
  rates.object.memory.store.commit(keyState, { accounts }, START_MS);
  const behind = rates.ask("d", { waitMs: LONG_MS });
  rates.time.at(90, () => undefined);
  await rates.time.run(90, () => undefined);
  const within = rates.ask("b", { cost: 2, waitMs: LONG_MS });
  await rates.time.run(110, () => undefined);
  expect([within, large, behind].map(isAdmitted)).toEqual([false, false, true]);
  expect(large.answer).toMatchObject({ reason: "wait-timeout", waitedMs: 100 });
  expect(behind.answer?.waitedMs).toBe(100);
});

test("a full line sends away the last call of the group with the most, for one of a group with fewer", async () => {
  const rates = new Rates(BUCKET, { maxWaiters: 3 });
  rates.ask("small", { cost: 25 });
  for (let call = 0; call < 75; call += 1) rates.ask("flood");
  const waiting = [0, 1, 2].map(() => rates.ask("flood", { waitMs: LONG_MS }));
  const small = rates.ask("small", { cost: 5, waitMs: LONG_MS });
  const more = rates.ask("flood", { waitMs: LONG_MS });
  await rates.run(rates.time.nowMs);
  const reasons = [...waiting, small, more].map(({ answer }) => answer?.reason ?? (answer && "answered"));
  expect(reasons).toEqual([undefined, undefined, "queue-full", undefined, "queue-full"]);
  expect(rates.waiting.size).toBe(3);
  await rates.run(1_000);
  expect([...waiting.slice(0, 2), small].map(isAdmitted)).toEqual([true, true, true]);
});

test("a denied call passes after the wait that it is told if no other group asks, and surely after the longer one", async () => {
  for (let history = 0; history < depth(2, 80); history += 1) {
    database.clear();
    const random = seededRandom(SEED + history);
    const rates = new Rates({ ...BUCKET, burst: 60 });
    const others = random() < 0.5;
    for (const group of ["a", "b"]) rates.ask(group, { cost: 1 + Math.floor(25 * random()) });
    if (others) flood(rates, "b", 5);
    await rates.run(Math.floor(200 * random()));
    const ahead: Asked[] = [];
    for (let call = 0; call < 30; call += 1)
      ahead.push(rates.ask("a", { cost: 1 + Math.floor(3 * random()), waitMs: LONG_MS }));
    const cost = 1 + Math.floor(3 * random());
    const { rules = [], waitedMs } = rates.ask("a", { cost, waitMs: 5 }).answer ?? {};
    const [{ retryAfterMs, share } = { retryAfterMs: 0 }] = rules;
    const sureAfterMs = share?.sureAfterMs ?? Infinity;
    expect([waitedMs, rates.waiting.size > 0]).toEqual([0, true]);
    expect(retryAfterMs).toBeGreaterThan(5);
    expect(sureAfterMs).toBeGreaterThanOrEqual(retryAfterMs ?? Infinity);
    const last = rates.ask("a", { cost, waitMs: LONG_MS });
    await rates.run(rates.time.nowMs + sureAfterMs);
    expect(isAdmitted(last)).toBe(true);
    if (others) expect(last.answer?.waitedMs).toBeLessThanOrEqual(sureAfterMs);
    else expect(last.answer?.waitedMs).toBe(retryAfterMs);
  }
});

test("a wait that cannot end in time is refused at once, and one that ends in vain takes nothing", async () => {
  const rates = new Rates(BUCKET);
  for (const group of ["a", "b"]) rates.ask(group, { cost: 25 });
  for (let call = 0; call < 60; call += 1) rates.ask("a");
  const [before] = rates.remaining();
  const refused = rates.ask("a", { cost: 20, waitMs: 5 });
  expect(refused.answer).toMatchObject({ waitedMs: 0, rules: [{ success: false, reason: "quota" }] });
  expect(refused.answer?.reason).toBe(undefined);
  // Its own part alone would be in time, but the other group pays its debt too.
  flood(rates, "b", 40);
  const [{ retryAfterMs: leastMs } = { retryAfterMs: null }] =
    rates.ask("a", { cost: 9 }).answer?.rules ?? [];
  const vain = rates.ask("a", { cost: 9, waitMs: leastMs ?? 0 });
  const left = rates.ask("a", { cost: 4, waitMs: 1_000 });
  await rates.run(leastMs ?? 0);
  if (!isAdmitted(vain)) expect(vain.answer).toMatchObject({ reason: "wait-timeout", waitedMs: leastMs });
  expect(before).toBeDefined();
  await rates.run(1_000);
  expect(isAdmitted(left)).toBe(true);
  expect(rates.remaining()[0]).toBe(rates.remaining()[1]);
});

test("a call that is made twice is charged once, also while both wait", async () => {
  const rates = new Rates(BUCKET);
  rates.ask("b");
  for (let call = 0; call < 80; call += 1) rates.ask("a");
  const twice = [1, 2].map(() => rates.ask("a", { cost: 5, waitMs: LONG_MS, named: "order" }));
  const [before] = rates.remaining();
  // The rate without groups is not asked for the second one.
  await rates.time.run(2_000, () => undefined);
  expect(twice.map(isAdmitted)).toEqual([true, true]);
  expect(twice[1]?.answer).toEqual(twice[0]?.answer);
  expect(before).toBeDefined();
});
