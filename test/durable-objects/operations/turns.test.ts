/** Callers that wait for units of rates, against a model: who is served when, and what the others are told. */
import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Answer, Decided } from "../../../core/protocol/answers.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { TurnsModel, type ModelRule, type Outcome } from "../../support/turns-model.ts";

const HISTORIES = depth(25, 2_500);
const START_MS = 1_000_000;
const MAX_WAITERS = 4;
const KEY = "key";
const database = new Database();

beforeEach(() => void vi.useFakeTimers({ now: START_MS }));
afterEach(() => void vi.useRealTimers());

const rule: fc.Arbitrary<ModelRule> = fc.oneof(
  fc.record({
    kind: fc.constant("bucket" as const),
    limit: fc.integer({ min: 1, max: 6 }),
    windowMs: fc.integer({ min: 1, max: 80 }),
  }),
  fc.record({
    kind: fc.constant("log" as const),
    limit: fc.integer({ min: 1, max: 6 }),
    windowMs: fc.integer({ min: 1, max: 80 }),
    minIntervalMs: fc.constantFrom(0, 0, 7),
  }),
);

const step = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constant("limit" as const),
      cost: fc.integer({ min: 1, max: 4 }),
      waitMs: fc.constantFrom(undefined, 0, 5, 40, 200, 200),
      isNamed: fc.boolean(),
    }),
  },
  { weight: 4, arbitrary: fc.record({ do: fc.constant("pass" as const), ms: fc.nat(60) }) },
  fc.record({ do: fc.constant("leave" as const), index: fc.nat(4) }),
  fc.record({
    do: fc.constant("hold" as const),
    units: fc.integer({ min: 1, max: 4 }),
    ttlMs: fc.integer({ min: 1, max: 90 }),
  }),
  fc.record({ do: fc.constant("settle" as const), index: fc.nat(4), used: fc.nat(5) }),
  fc.record({ do: fc.constant("refund" as const), units: fc.integer({ min: 1, max: 3 }) }),
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom("reset" as const, "endWaits" as const) }) },
);
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

function fieldsOf(rules: readonly ModelRule[]): object {
  const tables = rules.map((each) =>
    each.kind === "bucket"
      ? { algorithm: "token-bucket", limit: each.limit, window: each.windowMs }
      : {
          algorithm: "sliding-log",
          limit: each.limit,
          window: each.windowMs,
          ...(each.minIntervalMs > 0 && { minInterval: each.minIntervalMs }),
        },
  );
  return { rules: Object.fromEntries(tables.map((table, index) => [`r${index}`, table])) };
}

function outcomeOf(answer: Answer): Outcome {
  if (!("rules" in answer)) throw new Error(`not a decision: ${JSON.stringify(answer)}`);
  if (answer.rules.every(({ success }) => success)) return "admitted";
  if (answer.reason === undefined) return "denied";
  return answer.reason === "queue-full" ? "full" : "timeout";
}

/** An object and its model, which are told the same and have to answer alike. */
class Both {
  readonly model: TurnsModel;
  readonly object: SimulatedObject;
  readonly #rules: readonly ModelRule[];
  readonly #leaving = new Map<number, AbortController>();
  readonly #holdIds = new Map<number, string>();
  readonly #told = new Map<number, Decided>();
  #names = 0;

  constructor(rules: readonly ModelRule[]) {
    database.clear();
    // A history that failed may have left some.
    vi.clearAllTimers();
    const policies = parsePolicies({
      modelled: { ...fieldsOf(rules), maxWait: 500, maxWaiters: MAX_WAITERS },
    });
    this.#rules = rules;
    this.model = new TurnsModel(rules, MAX_WAITERS);
    this.object = new SimulatedObject(database, policies, () => Date.now());
  }

  async do(one: Step): Promise<void> {
    if (one.do === "limit") await this.#limit(one);
    else if (one.do === "pass") for (let ms = 0; ms < one.ms; ms += 1) await this.#tick();
    else if (one.do === "leave") this.#leave(one.index);
    else if (one.do === "hold") this.#hold(one.units, one.ttlMs);
    else if (one.do === "settle") this.#settle(one.index, one.used);
    else if (one.do === "refund") this.#refund(one.units);
    else if (one.do === "endWaits") await this.#endWaits();
    else this.#reset();
    await this.#compare();
  }

  async finish(): Promise<void> {
    while (this.model.waiting.length > 0) await this.#tick();
  }

  async #limit({ cost, waitMs, isNamed }: Extract<Step, { do: "limit" }>): Promise<void> {
    const name = (this.#names += 1);
    // One name for each cost: another cost under it would be another request.
    const idempotencyKey = isNamed ? `cost ${cost}` : undefined;
    const retryMs = this.model.waitOf(cost);
    const outcome = this.model.limit({ name, cost, idempotencyKey }, waitMs);
    const leave = new AbortController();
    const named = idempotencyKey === undefined ? {} : { idempotencyKey };
    const call = { cost, signal: leave.signal, ...named, ...(waitMs !== undefined && { waitMs }) };
    const answer = this.object.ask("modelled", KEY, (operations, keyState, nowMs) =>
      operations.limit(keyState, call, nowMs),
    );
    expect(answer instanceof Promise ? "waits" : outcomeOf(answer)).toBe(outcome);
    if (answer instanceof Promise) {
      this.#leaving.set(name, leave);
      const tell = (late: Answer) => {
        if (!leave.signal.aborted) this.#told.set(name, late as Decided);
      };
      void answer.then(tell);
      return;
    }
    const { rules, waitedMs } = answer as Decided;
    if (outcome !== "admitted") {
      expect(waitedMs).toBe(waitMs === undefined ? undefined : 0);
      expect(waitOfAll(rules)).toBe(retryMs);
    }
  }

  #hold(units: number, ttlMs: number): void {
    const name = (this.#names += 1);
    const answer = this.object.ask("modelled", KEY, (operations, keyState, nowMs) =>
      operations.hold(keyState, { cost: units, ttlMs }, nowMs),
    ) as Decided;
    const retryMs = this.model.waitOf(units);
    expect(answer.hold !== undefined).toBe(this.model.hold(name, units, ttlMs));
    if (answer.hold === undefined) expect(waitOfAll(answer.rules)).toBe(retryMs);
    else this.#holdIds.set(name, answer.hold.id);
  }

  #settle(index: number, used: number): void {
    const name = this.model.holds[index];
    if (name === undefined) return;
    this.model.settle(name, used);
    const id = this.#holdIds.get(name) ?? "";
    void this.object.ask("modelled", KEY, (operations, keyState, nowMs) =>
      operations.settle(keyState, { id, used }, nowMs),
    );
  }

  #refund(units: number): void {
    if (this.#rules.some(({ kind }) => kind === "log")) return;
    const id = `refund ${(this.#names += 1)}`;
    this.model.refund(units);
    void this.object.ask("modelled", KEY, (operations, keyState, nowMs) =>
      operations.refund(keyState, { units, idempotencyKey: id }, nowMs),
    );
  }

  #reset(): void {
    this.model.reset();
    this.object.reset("modelled", KEY);
  }

  async #endWaits(): Promise<void> {
    const waits = this.model.endWaits();
    void this.object.ask("modelled", KEY, (operations, keyState, nowMs) =>
      operations.endWaits(keyState, nowMs),
    );
    for (let turn = 0; turn < 16; turn += 1) await Promise.resolve();
    for (const [name, ms] of waits) expect(waitOfAll(this.#told.get(name)?.rules ?? [])).toBe(ms);
  }

  #leave(index: number): void {
    const name = this.model.waiting[index];
    if (name === undefined) return;
    this.model.leave(name);
    this.#leaving.get(name)?.abort();
  }

  async #tick(): Promise<void> {
    this.model.tick();
    vi.advanceTimersByTime(1);
    await this.#compare();
  }

  /** Whoever was answered was answered alike, at this very millisecond, and nobody else was. */
  async #compare(): Promise<void> {
    for (let turn = 0; turn < 16; turn += 1) await Promise.resolve();
    const seen = [...this.#told].map(([name, answer]): [number, Outcome] => [name, outcomeOf(answer)]);
    expect(new Map(seen)).toEqual(this.model.told);
    this.#told.clear();
    this.model.told.clear();
  }
}

/** The wait of a denial: the longest of its rules. */
function waitOfAll(rules: Decided["rules"]): number | null {
  const waits = rules.map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
  const longest = Math.max(...waits);
  return longest === Infinity ? null : longest;
}

test(`in ${HISTORIES} random histories callers wait, are served, leave and are refused as in the model`, async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(rule, { minLength: 1, maxLength: 2 }),
      fc.array(step, { maxLength: 40, size: "max" }),
      async (rules, steps) => {
        const both = new Both(rules);
        for (const one of steps) await both.do(one);
        await both.finish();
      },
    ),
    { numRuns: HISTORIES },
  );
}, 600_000);

/** Policies of which a test sees no refill but where it waits for one. */
const POLICIES = parsePolicies({
  hot: { algorithm: "token-bucket", limit: 50_000, window: "50000s", reservation: { ttl: "1s" } },
  hammered: { algorithm: "sliding-log", limit: 2, window: "1s", countDenied: true },
  shadow: { algorithm: "token-bucket", limit: 1, window: "1s", shadow: true },
  slots: { algorithm: "concurrency", limit: 2, maxWait: "30s" },
  mixed: {
    rules: {
      starts: { algorithm: "sliding-log", limit: 1, window: "10s" },
      slots: { algorithm: "concurrency", limit: 2, maxWait: "30s" },
    },
  },
});

function start() {
  database.clear();
  vi.clearAllTimers();
  const object = new SimulatedObject(database, POLICIES, () => Date.now());
  const told: string[] = [];
  const limit = (policy: string, call: { cost: number; waitMs?: number; idempotencyKey?: string }) =>
    object.ask(policy, KEY, (operations, keyState, nowMs) => operations.limit(keyState, call, nowMs));
  return {
    object,
    limit,
    told,
    /** A call that has to wait. What it is told, and when, stands in `told`. */
    waits: (name: string, policy: string, cost: number, waitMs = 20_000) => {
      const answer = limit(policy, { cost, waitMs });
      if (!(answer instanceof Promise)) throw new Error(`${name} does not wait`);
      void answer.then((late) => told.push(`${name} ${outcomeOf(late)} after ${(late as Decided).waitedMs}`));
    },
    remaining: (policy: string) => (limit(policy, { cost: 0 }) as Decided).rules[0]?.remaining,
  };
}

function message(turn: number, fields: { cost?: number; used?: number; kept?: number; wanted?: number }) {
  const { cost = 0, used = 0, kept = 0, wanted = 50 } = fields;
  const rules = { hot: { used, kept, wanted } };
  return { policy: "hot", key: KEY, holder: "a", turn, ttlMs: 1_000, isShort: false, cost, rules };
}

async function pass(ms: number): Promise<void> {
  vi.advanceTimersByTime(ms);
  for (let turn = 0; turn < 16; turn += 1) await Promise.resolve();
}

test("while callers wait, an isolate is granted nothing, and its own calls stand behind them", async () => {
  const { object, limit, waits, told } = start();
  const reserve = (turn: number, fields: object) =>
    JSON.parse(object.reserve(message(turn, fields))) as Decided;
  expect(reserve(1, {}).reserved?.units).toEqual({ hot: 50 });
  void limit("hot", { cost: 49_950 });
  // One unit comes back each second, and fifty are with the isolate.
  waits("first", "hot", 2);
  expect(reserve(2, { kept: 50, wanted: 90 }).reserved).toMatchObject({ units: { hot: 0 }, isNew: false });
  const denied = reserve(3, { kept: 50, cost: 1 });
  expect(denied.rules).toMatchObject([{ success: false, remaining: 0, retryAfterMs: 3_000 }]);
  // So the isolate repeats that denial, and does not ask for each call.
  expect(denied.next).toMatchObject([{ success: false, retryAfterMs: 3_000 }]);
  expect(limit("hot", { cost: 1 })).toEqual({ rules: denied.rules });
  expect(told).toEqual([]);
  // What it gives back goes to the first who waits.
  reserve(4, { kept: 49 });
  await pass(999);
  expect(told).toEqual([]);
  await pass(1);
  expect(told).toEqual(["first admitted after 1000"]);
  // And the isolate gets units again.
  object.giveBack("hot", [{ key: KEY, holder: "a", turn: 5, used: { hot: 0 } }]);
  expect(reserve(6, { wanted: 20 }).reserved?.units["hot"]).toBeGreaterThan(0);
});

test("units that an isolate gives back serve those who wait, in their order and no further", async () => {
  const { object, limit, waits, told, remaining } = start();
  object.reserve(message(1, {}));
  void limit("hot", { cost: 49_950 });
  for (const [name, cost] of [
    ["first", 20],
    ["second", 25],
    ["third", 10],
  ] as const)
    waits(name, "hot", cost);
  expect(remaining("hot")).toBe(0);
  object.giveBack("hot", [{ key: KEY, holder: "a", turn: 2, used: { hot: 3 } }]);
  await pass(0);
  expect(told).toEqual(["first admitted after 0", "second admitted after 0"]);
  // Two units are left, but the third waits for them.
  expect(remaining("hot")).toBe(0);
  await pass(8_000);
  expect(told[2]).toBe("third admitted after 8000");
});

test("where denials count, a call that waits is not counted, and one that waited in vain counts once", async () => {
  const { object, limit, waits, told, remaining } = start();
  const held = object.ask("hammered", KEY, (operations, keyState, nowMs) =>
    operations.hold(keyState, { cost: 2, ttlMs: 60_000 }, nowMs),
  ) as Decided;
  waits("first", "hammered", 1, 500);
  // This one stands behind it, so its denial counts no more than its wait would.
  expect(limit("hammered", { cost: 1 })).toMatchObject({ rules: [{ success: false }] });
  await pass(500);
  expect(told).toEqual(["first timeout after 500"]);
  void object.ask("hammered", KEY, (operations, keyState, nowMs) =>
    operations.cancel(keyState, { id: held.hold?.id ?? "" }, nowMs),
  );
  expect(remaining("hammered")).toBe(1);
  await pass(1_000);
  expect(remaining("hammered")).toBe(2);
});

test("a wait that cannot end in time is not begun", () => {
  const { limit, waits } = start();
  void limit("hammered", { cost: 2, waitMs: 5 });
  waits("first", "hammered", 1, 1_000);
  const refused = { waitedMs: 0, rules: [{ success: false, reason: "quota", retryAfterMs: 2_000 }] };
  expect(limit("hammered", { cost: 2, waitMs: 1_999 })).toMatchObject(refused);
  expect(limit("hammered", { cost: 2, waitMs: 1_999 })).not.toHaveProperty("reason");
  expect(limit("hammered", { cost: 3, waitMs: 9_999 })).toMatchObject({ rules: [{ retryAfterMs: null }] });
  expect(limit("hammered", { cost: 2, waitMs: 2_000 })).toBeInstanceOf(Promise);
});

test("under shadow nobody waits", () => {
  const { limit } = start();
  void limit("shadow", { cost: 1 });
  expect(limit("shadow", { cost: 1, waitMs: 5_000 })).toMatchObject({
    waitedMs: 0,
    rules: [{ success: false }],
  });
});

test("a lease whose rate cannot come in time is refused at once; one that a release may bring waits", () => {
  const { object } = start();
  const acquire = (id: string, waitMs: number) =>
    object.ask("mixed", KEY, (operations, keyState, nowMs) =>
      operations.acquire(keyState, { id, cost: { requests: 1 }, ttlMs: 60_000, waitMs }, nowMs),
    );
  expect(acquire("a", 0)).toHaveProperty("lease");
  const refused = acquire("b", 9_999);
  expect(refused).toMatchObject({ waitedMs: 0, rules: [{ success: false, retryAfterMs: 10_000 }, {}] });
  expect(refused).not.toHaveProperty("reason");
  expect(acquire("c", 10_000)).toBeInstanceOf(Promise);
  // The rate has a unit for the second only after another window.
  expect(acquire("d", 19_999)).toMatchObject({ waitedMs: 0 });
  expect(acquire("e", 20_000)).toBeInstanceOf(Promise);
});

test("when waits end, a small lease behind a large one is granted, the large one denied with its exact wait", async () => {
  const { object } = start();
  const acquire = (id: string, units: number) =>
    object.ask("slots", KEY, (operations, keyState, nowMs) =>
      operations.acquire(keyState, { id, cost: units, ttlMs: 9_000, waitMs: 30_000 }, nowMs),
    );
  expect(acquire("a", 1)).toHaveProperty("lease");
  await pass(1_000);
  const [large, small, last] = [acquire("b", 2), acquire("c", 1), acquire("d", 1)];
  void object.ask("slots", KEY, (operations, keyState, nowMs) => operations.endWaits(keyState, nowMs));
  expect(await small).toMatchObject({ lease: { id: "c", expiresAfterMs: 9_000 } });
  const denied = { success: false, reason: "quota" };
  expect(await large).toEqual(
    expect.objectContaining({
      reason: "wait-timeout",
      rules: [expect.objectContaining({ ...denied, retryAfterMs: 9_000 })],
    }),
  );
  expect(await last).toMatchObject({
    reason: "wait-timeout",
    rules: [{ ...denied, retryAfterMs: 8_000 }],
  });
});
