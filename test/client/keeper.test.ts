import { expect, test } from "vitest";
import { LocalLimiter } from "../../client/local-limiter.ts";
import { MAX_ROUNDS, ReservationCache } from "../../client/reservation-cache.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { Database } from "../simulation/database.ts";
import { simulatedNamespace } from "../simulation/network.ts";
import { SimulatedObject } from "../simulation/simulated-object.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

const POLICIES = parsePolicies({
  p: { algorithm: "token-bucket", limit: 1_000, window: "1s", reservation: { ttl: "1s" } },
});
const POLICY = POLICIES.get("p") as Policy;

/** 4 at once. */
const MAX_MESSAGES = 4 * MAX_ROUNDS;
/** Cloudflare's free plan, of an invocation; to objects it may be 1,000. */
const MAX_CALLS = 50;

/** An isolate before its objects. Each message takes 10 ms, and each request has one clock. */
class Isolate {
  readonly time = new VirtualTime();
  readonly clock = this.time.clock({ ms: 1_000_000 });
  readonly cache = new ReservationCache(() => "isolate");
  readonly object = new SimulatedObject(new Database(), POLICIES, () => this.clock.nowMs());
  readonly #local = new LocalLimiter(this.cache);
  /** How many messages each request has sent. */
  readonly sent: number[] = [];
  mostAtOnce = 0;
  given = 0;
  #underWay = 0;

  /** A call of a request. All of its timers and answers stop when it is gone. */
  async call(key: string, isGone: () => boolean = () => false): Promise<void> {
    const time = this.time.clock({ ms: 1_000_000 }, isGone);
    const request = this.sent.push(0) - 1;
    const objects = new Objects(this.#namespace(isGone, request), time);
    await this.#local.limit({ objects, time, inBackground: () => undefined }, POLICY, key, 1);
  }

  /** Calls until nothing is left to give back. Returns how many that were. */
  async callUntilAllIsGiven(): Promise<number> {
    let calls = 0;
    while (this.cache.isHolding && calls < 20) {
      calls += 1;
      void this.call(`further ${calls}`);
      await this.pass(1_500);
    }
    return calls;
  }

  outstanding(key: string): number {
    const [rule] = this.object.open(POLICY, key).ruleStates;
    return rule?.account.holds.reduce((sum, { units }) => sum + units, 0) ?? 0;
  }

  /** Three calls of each key make it hot; the third brings units. */
  async heat(keys: readonly string[]): Promise<void> {
    for (let count = 0; count < 3; count += 1) {
      const calls = keys.map((key) => this.call(key));
      await this.pass(21);
      await Promise.all(calls);
    }
  }

  async pass(ms: number): Promise<void> {
    const untilMs = this.time.nowMs + ms;
    await this.time.run(untilMs, () => undefined);
    this.time.nowMs = untilMs;
  }

  #namespace(isGone: () => boolean, request: number): LimiterNamespace {
    const handle = (...[method, args]: Parameters<SimulatedObject["handle"]>) => {
      if (method === "giveBack") this.#underWay -= 1;
      return this.object.handle(method, args);
    };
    const network = simulatedNamespace(this.time, handle, () => ({ thereMs: 10, backMs: 10 }), isGone);
    return {
      getByName: (name) => {
        const stub = network.getByName(name);
        this.sent[request] = (this.sent[request] ?? 0) + 1;
        const giveBack: typeof stub.giveBack = (...args) => {
          this.given += 1;
          this.#underWay += 1;
          this.mostAtOnce = Math.max(this.mostAtOnce, this.#underWay);
          return stub.giveBack(...args);
        };
        return { ...stub, giveBack };
      },
    };
  }
}

test.each([1, MAX_MESSAGES, 200])(
  "of %i reservations each request gives back so many, a few at once, within the calls of an invocation",
  async (count) => {
    const isolate = new Isolate();
    const keys = Array.from({ length: count }, (_, index) => `key-${index}`);
    await isolate.heat(keys);
    expect(keys.every((key) => isolate.outstanding(key) > 0)).toBe(true);
    await isolate.pass(3_000);
    expect(isolate.given).toBe(Math.min(count, MAX_MESSAGES));
    expect(await isolate.callUntilAllIsGiven()).toBe(Math.ceil(count / MAX_MESSAGES) - 1);
    expect(isolate.given).toBe(count);
    expect(keys.every((key) => isolate.outstanding(key) === 0)).toBe(true);
    expect(isolate.mostAtOnce).toBe(Math.min(count, 4));
    expect(Math.max(...isolate.sent)).toBeLessThanOrEqual(MAX_CALLS);
  },
);

test("what a request had not sent when it died is given back by another", async () => {
  const isolate = new Isolate();
  const keys = Array.from({ length: 40 }, (_, index) => `key-${index}`);
  let isGone = false;
  const warm = isolate.call("warm", () => isGone);
  await isolate.pass(21);
  await warm;
  for (let count = 0; count < 3; count += 1) void isolate.call("warm", () => isGone);
  await isolate.pass(30);
  await isolate.heat(keys);
  // The first request with units works for all. It dies among its messages.
  await isolate.pass(650);
  const before = isolate.given;
  isGone = true;
  await isolate.pass(2_100);
  await isolate.heat(["another"]);
  await isolate.pass(3_000);
  await isolate.callUntilAllIsGiven();
  expect(before).toBeLessThan(keys.length);
  expect(isolate.given).toBeGreaterThanOrEqual(keys.length);
  expect(isolate.cache.isHolding).toBe(false);
});
