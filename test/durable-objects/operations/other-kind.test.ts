/** Policies that go from units of a rate to slots, or back, while calls are under way: nothing passes uncounted. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { PolicyRevision } from "../../../core/policies/policy.ts";
import type { Answer } from "../../../core/protocol/answers.ts";
import type { MaybePromise } from "../../../core/protocol/object-methods.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";

const database = new Database();
const [KEY, WAITERS] = ["key", 5];
const SLOTS = { algorithm: "concurrency", limit: 1, ttl: "60s", maxTtl: "60s", maxWait: "60s" };
const RATES = [
  { algorithm: "sliding-log", limit: 2, window: "50s", maxWait: "60s" },
  { algorithm: "token-bucket", limit: 2, window: "50s", maxWait: "60s" },
  { algorithm: "fixed-window", limit: 2, window: "50s", maxWait: "60s" },
  { algorithm: "gcra", limit: 2, window: "50s", burst: 2, maxWait: "60s" },
];
const NEVER = { success: false, reason: "cost-over-limit", retryAfterMs: null };

beforeEach(() => {
  vi.useFakeTimers({ now: 1_000_000 });
  database.clear();
});
afterEach(() => void vi.useRealTimers());

const admitted = (answers: readonly Answer[]) =>
  answers.filter((answer) => "rules" in answer && answer.rules.every(({ success }) => success));

/** What those are answered who are answered without any time passing. */
async function answered(waiting: readonly MaybePromise<Answer>[]): Promise<readonly Answer[]> {
  const answers: Answer[] = [];
  for (const each of waiting) void Promise.resolve(each).then((answer) => answers.push(answer));
  await vi.advanceTimersByTimeAsync(0);
  expect(answers).toHaveLength(waiting.length);
  return answers;
}

/** An object with one key, whose policy the test changes. */
class Changing {
  readonly #object: SimulatedObject;
  #version = 0;
  #ids = 0;
  #inForce: { readonly inForce?: PolicyRevision } = {};

  constructor(fields: object) {
    this.#object = new SimulatedObject(database, parsePolicies({ p: fields }), () => Date.now());
  }

  /** From now on calls say that this is the policy. Nothing is said to the object before. */
  change(fields: object): void {
    this.#version += 1;
    this.#inForce = { inForce: { version: this.#version, fields: JSON.stringify(fields) } };
  }

  /** A look at the key, by which the object hears of the policy. */
  look(): Answer {
    return this.limitNow(0);
  }

  limitNow(cost = 1): Answer {
    const call = { policy: "p", key: KEY, cost, ...this.#inForce };
    return JSON.parse(String(this.#object.handle("limitCall", [call]))) as Answer;
  }

  /** A call that says nothing of the version: its isolate lags behind. */
  limit(waitMs?: number): MaybePromise<Answer> {
    const call = { cost: 1, ...(waitMs !== undefined && { waitMs }) };
    return this.#object.ask("p", KEY, (operations, keyState, nowMs) =>
      operations.limit(keyState, call, nowMs),
    );
  }

  /** A lease, asked for by an isolate that knows the version. */
  acquireNow(): MaybePromise<Answer> {
    this.#tell();
    return this.acquire();
  }

  /** What any call does: it opens the key. */
  peek(): void {
    this.#tell();
    void this.#object.ask("p", KEY, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
  }

  #tell(): void {
    const { inForce } = this.#inForce;
    if (inForce !== undefined) this.#object.memory.cache.versions.note(KEY, inForce);
  }

  acquire(waitMs = 0): MaybePromise<Answer> {
    const call = { id: `lease-${(this.#ids += 1)}`, cost: 1, ttlMs: 60_000, waitMs };
    return this.#object.ask("p", KEY, (operations, keyState, nowMs) =>
      operations.acquire(keyState, call, nowMs),
    );
  }

  reserve(): MaybePromise<Answer> {
    const rules = { p: { used: 0, kept: 0, wanted: 1 } };
    const call = { cost: 1, holder: "holder", turn: 1, ttlMs: 1_000, isShort: true, rules };
    return this.#object.ask("p", KEY, (operations, keyState, nowMs) =>
      operations.reserve(keyState, call, nowMs),
    );
  }

  release(id: string): MaybePromise<boolean> {
    return this.#object.ask("p", KEY, (operations, keyState, nowMs) =>
      operations.release(keyState, { id }, nowMs),
    );
  }

  get leases(): readonly string[] {
    const { claims } = this.#object.open({ name: "p" }, KEY);
    return [...claims.values()].filter(({ kind }) => kind === "lease").map(({ id }) => id);
  }
}

describe.each(RATES)("slots and $algorithm", (rate) => {
  test("who waits for a slot gets none of the rate, and no slot that is not there", async () => {
    const key = new Changing(SLOTS);
    const first = await key.acquire();
    const waiting = Array.from({ length: WAITERS }, () => key.acquire(30_000));
    key.change(rate);
    // The slot that is leased counts as a unit while it is.
    expect(key.look()).toMatchObject({ rules: [{ remaining: 1 }] });
    const answers = await answered(waiting);
    for (const answer of answers) expect(answer).toMatchObject({ rules: [NEVER], waitedMs: 0 });
    expect(admitted([first, key.limitNow(), key.limitNow()])).toHaveLength(2);
    expect(key.leases).toHaveLength(1);
  });

  test("who waits for units is not let in beside the slots", async () => {
    const key = new Changing(rate);
    expect(admitted([await key.limit(), await key.limit(), await key.limit()])).toHaveLength(2);
    // For more of them the wait would be too long.
    const waiting = Array.from({ length: 2 }, () => key.limit(60_000));
    key.change(SLOTS);
    const lease = await key.acquireNow();
    const answers = await answered(waiting);
    expect(admitted([...answers, lease])).toEqual([lease]);
    for (const answer of answers) expect(answer).toMatchObject({ rules: [NEVER], waitedMs: 0 });
    expect(key.leases).toHaveLength(1);
  });

  test("an isolate that lags behind is denied what the policy does not have any more", async () => {
    const key = new Changing(SLOTS);
    key.change(rate);
    key.limitNow();
    for (let each = 0; each < WAITERS; each += 1)
      expect(await key.acquire(30_000)).toMatchObject({ rules: [NEVER] });
    expect(key.leases).toEqual([]);
    expect(key.look()).toMatchObject({ rules: [{ remaining: 1 }] });
    key.change(SLOTS);
    expect(admitted([await key.acquireNow()])).toHaveLength(1);
    for (let each = 0; each < WAITERS; each += 1) {
      expect(await key.limit()).toMatchObject({ rules: [NEVER] });
      expect(await key.limit(30_000)).toMatchObject({ rules: [NEVER] });
      const reserved = await key.reserve();
      expect(admitted([reserved])).toEqual([]);
      expect(reserved).not.toMatchObject({ reserved: { units: { p: 1 } } });
    }
    expect(key.look()).toMatchObject({ rules: [{ remaining: 0 }] });
    expect(key.leases).toHaveLength(1);
  });
});

describe("more is let in as soon as the object hears of it", () => {
  test("slots", async () => {
    const key = new Changing(SLOTS);
    await key.acquire();
    const waiting = Array.from({ length: WAITERS }, () => key.acquire(30_000));
    key.change({ ...SLOTS, limit: 4 });
    key.peek();
    expect(key.leases).toHaveLength(4);
    for (const id of key.leases) await key.release(id);
    expect(admitted(await answered(waiting))).toHaveLength(WAITERS);
  });

  test.each(RATES)("units of $algorithm", async (rate) => {
    const key = new Changing({ ...rate, limit: 1, ...("burst" in rate && { burst: 1 }) });
    await key.limit();
    const waiting = key.limit(60_000);
    key.change({ ...rate, limit: 3, ...("burst" in rate && { burst: 3 }) });
    key.peek();
    // No time has passed.
    expect(await answered([waiting])).toMatchObject([{ rules: [{ success: true }], waitedMs: 0 }]);
  });
});
