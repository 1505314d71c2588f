/** Isolates deny keys of one object for as long as it lifts no denial: in virtual time, with the production object. */
import { expect, test, vi } from "vitest";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { ObjectStub } from "../../core/protocol/object-methods.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { MemoryNamespace } from "../../durable-objects/memory-namespace.ts";
import { Epochs } from "../../durable-objects/operations/limits.ts";
import { depth, expectOften, inDeepRuns } from "../support/depth.ts";
import { announcedSeed } from "../support/random.ts";
import { Dice } from "./dice.ts";
import { BrokenLaw, law } from "./laws.ts";
import { type Method, simulatedNamespace } from "./network.ts";
import { manyTurns, VirtualTime } from "./virtual-time.ts";

const SCHEDULES = depth(4, 100);
const KEYS = 20;
const WAY_MS = 4;
const BUCKET = { algorithm: "token-bucket", objects: 1 };
const { regionalPolicies } = parseDeployment({
  policies: {
    rare: { ...BUCKET, limit: 2, window: "200s" },
    brief: { ...BUCKET, limit: 2, window: "100s", denialTtl: "3s" },
    log: { algorithm: "sliding-log", limit: 3, window: "70s", objects: 1 },
    window: { algorithm: "fixed-window", limit: 3, window: "80s", objects: 1 },
    credits: { algorithm: "credits", limit: 2, objects: 1 },
    two: {
      rules: {
        few: { algorithm: "token-bucket", limit: 5, window: "60s" },
        fewer: { algorithm: "sliding-log", limit: 3, window: "90s" },
      },
      objects: 1,
    },
  },
});
const NAMES = [...regionalPolicies.named.keys()];

/** What isolates and their object did. */
interface Sum {
  calls: number;
  asked: number;
  repeated: number;
  lifted: number;
}

class Schedule {
  readonly sum: Sum = { calls: 0, asked: 0, repeated: 0, lifted: 0 };
  readonly #dice: Dice;
  readonly #time = new VirtualTime(manyTurns);
  readonly #policy: Policy;
  readonly #object: ObjectStub;
  readonly #isolates: readonly LimiterClient[];
  /** By key: when the object's last denial would have ended, if nobody had lifted it. */
  readonly #deniedUntilMs = new Map<string, number>();
  /** By key: when it was lifted last, and by which isolate. */
  readonly #lifts = new Map<string, { readonly atMs: number; readonly isolate: number }[]>();
  #failure: unknown;

  /** @param liftsPart of the calls, so many are refunds and resets */
  constructor(seed: number, name?: string, liftsPart = 0.002) {
    this.#dice = new Dice(seed);
    this.#policy = regionalPolicies.get(name ?? this.#dice.of(NAMES)) as Policy;
    const clock = this.#time.clock({ ms: 1_000_000 });
    const namespace = new MemoryNamespace(regionalPolicies.named, clock);
    this.#object = namespace.getByName(`${this.#policy.name}/shared/0`) as ObjectStub;
    const handle = (method: Method, args: readonly unknown[]) => {
      if (method === "limit" || method === "limitCall" || method === "reserve") this.sum.asked += 1;
      return (this.#object[method] as (...of: readonly unknown[]) => unknown)(...args);
    };
    const fate = () => ({
      thereMs: 1 + this.#dice.upTo(WAY_MS - 2),
      backMs: 1 + this.#dice.upTo(WAY_MS - 2),
    });
    const stubs = simulatedNamespace(this.#time, handle, fate, () => false);
    this.#isolates = [0, 1].map(() => {
      const parts = { policies: regionalPolicies, time: clock, inBackground: () => undefined };
      return new LimiterClient({ ...parts, objects: new Objects(stubs, clock) });
    });
    const paceMs = this.#dice.of([20, 50, 200]);
    for (let atMs = 0; atMs < 100_000; atMs += paceMs)
      this.#time.at(atMs, () => (this.#dice.chance(liftsPart) ? this.#lift() : this.#call()));
  }

  async run(): Promise<Sum> {
    await this.#time.run(110_000, () => {
      if (this.#failure !== undefined) throw this.#failure;
    });
    return this.sum;
  }

  async #call(): Promise<void> {
    const [isolate, key] = [this.#dice.upTo(1), this.#dice.upTo(KEYS - 1).toString()];
    this.sum.calls += 1;
    const decided = this.#isolates[isolate]?.limit(this.#policy, key, { cost: 1 });
    if (decided === undefined || decided instanceof Promise) return;
    if (decided.success) return;
    this.sum.repeated += 1;
    const { nowMs } = this.#time;
    const peeked = await this.#object.peek(this.#policy.name, key);
    const waits = peeked.rules.map(({ success, retryAfterMs }) => (success ? 0 : (retryAfterMs ?? Infinity)));
    const waitMs = Math.max(...waits);
    if (waitMs > 0) return void this.#deniedUntilMs.set(key, nowMs + waitMs);
    this.#wrongly(isolate, key, decided);
  }

  /**
   * The object would admit what the isolate denied.
   * @throws BrokenLaw unless its news has not come yet
   */
  #wrongly(isolate: number, key: string, { retryAfterMs }: Decision): void {
    const { nowMs } = this.#time;
    const untilMs = this.#deniedUntilMs.get(key) ?? nowMs;
    const isOnItsWay = nowMs >= untilMs && nowMs <= untilMs + 2 * WAY_MS;
    const isNews = (this.#lifts.get(key) ?? []).some((each) => {
      const forMs = each.isolate === isolate ? 2 * WAY_MS : this.#policy.denialTtlMs + 2 * WAY_MS;
      return nowMs <= each.atMs + forMs;
    });
    law(
      isOnItsWay || isNews,
      () => `${key} is denied for ${retryAfterMs} ms at ${nowMs} by ${isolate}, and would pass`,
    );
  }

  /** Returns units of a key by name. */
  #lift(): void {
    const [isolate, key] = [this.#dice.upTo(1), this.#dice.upTo(KEYS - 1).toString()];
    const client = this.#isolates[isolate];
    const { nowMs: atMs } = this.#time;
    this.sum.lifted += 1;
    this.#lifts.set(key, [...(this.#lifts.get(key) ?? []), { atMs, isolate }]);
    const done: Promise<Decision | Problem | undefined | void> | undefined = this.#dice.chance(0.5)
      ? client?.reset(this.#policy, key)
      : client?.refund(this.#policy, key, 1, `refund ${atMs}`);
    void done?.catch((error: unknown) => (this.#failure ??= error));
  }
}

test("an isolate denies by itself only what the object would deny, but for what another one lifted within denialTtl", async () => {
  const first = announcedSeed("epochs");
  const sum: Sum = { calls: 0, asked: 0, repeated: 0, lifted: 0 };
  for (let seed = first; seed < first + SCHEDULES; seed += 1) {
    const each = await new Schedule(seed).run().catch((error: Error) => {
      throw new Error(`SEED=${seed}: ${error.message}`, { cause: error });
    });
    for (const name of Object.keys(sum) as (keyof Sum)[]) sum[name] += each[name];
  }
  console.info("epochs", sum);
  expectOften(sum, sum.calls, { repeated: 0.5 });
  expectOften(sum, SCHEDULES, { lifted: 1 });
});

test("who lifts no denial is asked for each key as often as units come back, not once in each denialTtl", async () => {
  // 2 isolates; 20 keys with 2 units, and one more after 100 s. Without epochs 20 keys would be asked for every 10 s.
  const { asked, repeated } = await new Schedule(1, "rare", 0).run();
  expect(repeated).toBeGreaterThan(400);
  expect(asked).toBeLessThan(20 * 2 + 20 * 2 * 2 + 2 * 10);
});

inDeepRuns("an object that does not begin another epoch when it lifts a denial is found", async () => {
  const spy = vi.spyOn(Epochs.prototype, "lift").mockImplementation(() => undefined);
  const search = async () => {
    for (let seed = 1; seed < 200; seed += 1) await new Schedule(seed).run();
  };
  await expect(search().finally(() => spy.mockRestore())).rejects.toBeInstanceOf(BrokenLaw);
});
