import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import {
  aheadOf,
  insert,
  serveInOrder,
  type Waiter,
} from "../../../durable-objects/operations/wait-queue.ts";

const policyOf = (fields: object = {}) =>
  parsePolicies({ a: { algorithm: "token-bucket", limit: 10, window: "1s", ...fields } }).get("a") as Policy;
const PLAIN = policyOf();
const KEPT = policyOf({ reserve: { critical: "20%" } });

/** A queue whose callers can be served as `canPass` says, and who was served or given up, in order. */
class Queue {
  readonly waiters: Waiter[] = [];
  readonly ended: string[] = [];
  canPass: (name: string) => boolean = () => false;
  readonly #policy: Policy;

  constructor(policy: Policy) {
    this.#policy = policy;
  }

  come(name: string, sinceMs: number, priority?: string, untilMs = 1e9): void {
    const attempt = () => {
      if (!this.canPass(name)) return 5;
      this.ended.push(name);
      return undefined;
    };
    const giveUp = () => void this.ended.push(`${name} gives up`);
    const reject = () => undefined;
    const waiter = { cost: 1, ttlMs: 0, sinceMs, untilMs, attempt, giveUp, reject, key: name };
    insert(this.#policy, this.waiters, { ...waiter, ...(priority !== undefined && { priority }) });
  }

  serve(nowMs = 0): number {
    return serveInOrder(this.#policy, this.waiters, nowMs);
  }

  ahead(priority: string | undefined, sinceMs: number): number {
    return aheadOf(this.#policy, this.waiters, { priority, sinceMs }).length;
  }
}

describe("the order", () => {
  test("is that of arrival among calls of one priority, and by priority otherwise", () => {
    const queue = new Queue(PLAIN);
    queue.come("normal", 0);
    queue.come("low", 1, "low");
    queue.come("also normal", 2, "normal");
    queue.come("critical", 3, "critical");
    queue.come("high", 4, "high");
    queue.canPass = () => true;
    expect(queue.serve()).toBe(Infinity);
    expect(queue.ended).toEqual(["critical", "high", "normal", "also normal", "low"]);
  });

  test("of a call that has waited for longer than its priority costs is before a more important one", () => {
    const queue = new Queue(policyOf({ ageing: "2s" }));
    queue.come("low", 0, "low");
    queue.come("critical", 5_999, "critical");
    queue.come("too late", 6_001, "critical");
    queue.canPass = () => true;
    queue.serve();
    expect(queue.ended).toEqual(["critical", "low", "too late"]);
  });

  test("lets nobody starve: behind whatever comes, a call is passed by those of three times the ageing only", () => {
    const calls = fc.array(
      fc.record({ afterMs: fc.nat(900), priority: fc.constantFrom("critical", "high", "normal") }),
      { minLength: 30, maxLength: 60 },
    );
    fc.assert(
      fc.property(calls, (others) => {
        const queue = new Queue(policyOf({ ageing: "1s" }));
        queue.come("low", 0, "low");
        let nowMs = 0;
        for (const [index, { afterMs, priority }] of others.entries()) {
          nowMs += afterMs;
          queue.come(`${index} ${nowMs}`, nowMs, priority);
        }
        queue.canPass = () => true;
        queue.serve();
        const passed = queue.ended.slice(0, queue.ended.indexOf("low"));
        for (const name of passed) expect(Number(name.split(" ")[1])).toBeLessThan(3_000);
      }),
    );
  });

  test("is kept while the first cannot be served: nobody passes it, and the next try is when it can be", () => {
    const queue = new Queue(PLAIN);
    queue.come("normal", 0);
    queue.come("low", 1, "low");
    queue.canPass = (name) => name === "low";
    expect(queue.serve(100)).toBe(105);
    expect(queue.ended).toEqual([]);
  });

  test("ends for whose wait is over, wherever it stands", () => {
    const queue = new Queue(PLAIN);
    queue.come("first", 0);
    queue.come("brief", 1, "normal", 50);
    queue.serve(50);
    expect(queue.ended).toEqual(["brief gives up"]);
    expect(queue.waiters.map(({ sinceMs }) => sinceMs)).toEqual([0]);
  });
});

describe("where a part is kept", () => {
  test("a call for which it is kept passes those that may not have it, and only those", () => {
    const queue = new Queue(KEPT);
    queue.come("low", 0, "low");
    queue.come("critical", 60_000, "critical");
    queue.come("also low", 60_001, "low");
    queue.canPass = (name) => name !== "low";
    queue.serve(60_001);
    expect(queue.ended).toEqual(["critical"]);
  });

  test("nobody passes for whom nothing is kept that the other may not have", () => {
    const queue = new Queue(KEPT);
    queue.come("low", 0, "low");
    queue.come("high", 60_000, "high");
    queue.canPass = (name) => name !== "low";
    queue.serve(60_000);
    expect(queue.ended).toEqual([]);
    expect(queue.ahead("high", 60_001)).toBe(2);
    expect(queue.ahead("critical", 60_001)).toBe(0);
  });

  test("but a call that has aged is served first when it can be", () => {
    const queue = new Queue(KEPT);
    queue.come("low", 0, "low");
    queue.come("critical", 60_000, "critical");
    queue.canPass = () => true;
    queue.serve(60_000);
    expect(queue.ended).toEqual(["low", "critical"]);
  });
});

test("a call that comes now stands behind those before it in that order", () => {
  const [plain, kept] = [new Queue(PLAIN), new Queue(KEPT)];
  for (const queue of [plain, kept]) {
    queue.come("normal", 0);
    queue.come("low", 0, "low");
  }
  expect(plain.ahead(undefined, 5)).toBe(1);
  expect(plain.ahead("low", 5)).toBe(2);
  expect(plain.ahead("critical", 5)).toBe(0);
  // Both have waited for longer than their priorities cost.
  expect(plain.ahead("critical", 40_000)).toBe(2);
  expect(kept.ahead("critical", 40_000)).toBe(0);
  expect(kept.ahead("low", 40_000)).toBe(2);
});
