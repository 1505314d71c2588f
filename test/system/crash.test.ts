import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient } from "../support/http-client.ts";
import { worstExcess, type AdmittedCall } from "../support/interval-bound.ts";
import { announcedSeed, seededRandoms } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

// Half a second each; a loss of more than memory was ahead by shows in every one.
const CRASHES = depth(2, 14);
const DAY_MS = 86_400_000;

/** Under load all the time; checked against the bound over the whole history, crashes and all. */
const BUCKETS = {
  /** Writes ahead: W is 10 units. */
  thousand: { limit: 1_000, windowMs: 1_000, burst: 500 },
  /** Writes every decision. */
  fifty: { limit: 50, windowMs: 1_000, burst: 5 },
  single: { limit: 1, windowMs: 300, burst: 1 },
  /** Two objects for all keys. */
  shared: { limit: 200, windowMs: 1_000, burst: 100 },
};
/** Refill so slowly that what is missing is what was taken or lost. W is 2 % of 20,000. */
const BUDGET = 20_000;
const BUDGET_AHEAD = 400;
const SMALL = 45;

const policies = {
  ...Object.fromEntries(
    Object.entries(BUCKETS).map(([name, { limit, windowMs, burst }]) => [
      name,
      {
        algorithm: "token-bucket",
        limit,
        window: windowMs,
        burst,
        deadlineMs: 10_000,
        ...(name === "shared" && { objects: 2 }),
      },
    ]),
  ),
  budget: { algorithm: "token-bucket", limit: BUDGET, window: 30 * DAY_MS, deadlineMs: 10_000 },
  small: { algorithm: "token-bucket", limit: SMALL, window: 30 * DAY_MS, deadlineMs: 10_000 },
};

const state = makeState();
let serving: Serving | undefined;
afterAll(async () => {
  await serving?.stop();
  removeState(state);
});

/** What clients know of one key: units acknowledged, and units asked for without an answer. */
class Ledger {
  readonly admitted: AdmittedCall[] = [];
  acknowledged = 0;
  unanswered = 0;

  async take(client: HttpClient, policy: string, key: string, units: number): Promise<boolean> {
    try {
      const { status, body, sentAtMs, receivedAtMs } = await client.limit(policy, key, { cost: units });
      if (status !== 200 || body["reason"] === "degraded") throw new Error("not decided");
      if (body["success"] === true) {
        this.acknowledged += units;
        this.admitted.push({ sentAtMs, receivedAtMs, units });
      }
      return true;
    } catch {
      this.unanswered += units;
      return false;
    }
  }
}

test("killed at any moment, it never goes over the bound, and loses at most what memory was ahead by", async () => {
  const randomOf = seededRandoms(announcedSeed("crash"));
  const random = randomOf(0);
  let workersMade = 0;
  const history = new Map(
    Object.keys(BUCKETS).flatMap((name) => [1, 2].map((key) => [`${name} ${key}`, new Ledger()])),
  );
  const [budget, small] = [new Ledger(), new Ledger()];
  const losses: number[] = [];
  let [budgetLost, smallLost] = [0, 0];

  for (let crash = 0; crash <= CRASHES; crash += 1) {
    const running = await serveBundle(state, policies);
    serving = running;
    const client = new HttpClient(running.url, 48);
    const missing = async (policy: string, limit: number) => {
      const { body } = await client.peek(policy, "key");
      return limit - Number(body["remaining"]);
    };
    // What is missing was acknowledged, or asked for and maybe taken, or lost to write-ahead. Never less than the first.
    const budgetMissing = await missing("budget", BUDGET);
    const lost = budgetMissing - budget.acknowledged;
    expect(lost).toBeGreaterThanOrEqual(0);
    expect(lost - budgetLost).toBeLessThanOrEqual(BUDGET_AHEAD + budget.unanswered);
    if (crash > 0) losses.push(lost - budgetLost);
    budgetLost = lost;
    const smallNow = (await missing("small", SMALL)) - small.acknowledged;
    expect(smallNow - smallLost).toBeGreaterThanOrEqual(0);
    expect(smallNow - smallLost).toBeLessThanOrEqual(small.unanswered);
    smallLost = smallNow;
    budget.unanswered = 0;
    small.unanswered = 0;
    if (crash === CRASHES) {
      client.close();
      break;
    }
    const load = [...history].flatMap(([name, ledger]) => {
      const [policy = "", key = ""] = name.split(" ");
      const worker = async () => {
        const ownRandom = randomOf((workersMade += 1));
        while (
          await ledger.take(
            client,
            policy,
            key,
            1 + Math.floor(ownRandom() * Math.min(3, BUCKETS[policy as keyof typeof BUCKETS].burst)),
          )
        ) {
          /* on until the server dies */
        }
      };
      return [worker(), worker(), worker(), worker()];
    });
    const budgetCalls = async () => {
      while ((await budget.take(client, "budget", "key", 1)) && budget.acknowledged < (crash + 1) * 400) {
        /* on until the server dies, or this round's share is used */
      }
    };
    await small.take(client, "small", "key", 1);
    const slow = [budgetCalls(), budgetCalls(), small.take(client, "small", "key", 1)];
    await sleep(50 + random() * 450);
    await running.stop("SIGKILL");
    await Promise.all([...load, ...slow]);
    client.close();
  }

  for (const [name, { admitted }] of history) {
    const bucket = BUCKETS[name.split(" ")[0] as keyof typeof BUCKETS];
    expect(admitted.length).toBeGreaterThan(CRASHES / 2);
    expect({ name, excess: Math.max(0, worstExcess(admitted, bucket)) }).toEqual({ name, excess: 0 });
  }
  const mean = losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
  console.log(
    `${CRASHES} crashes, ${[...history.values()].reduce((sum, { admitted }) => sum + admitted.length, 0)} calls admitted, none over; ` +
      `units lost per crash of a key with W = ${BUDGET_AHEAD}: mean ${mean.toFixed(0)}, most ${Math.max(...losses)}`,
  );
});

test("an idempotent call that was acknowledged is not charged again after a crash", async () => {
  const stateDir = makeState();
  try {
    let remaining = BUDGET;
    for (let crash = 0; crash < 4; crash += 1) {
      const running = await serveBundle(stateDir, policies);
      const client = new HttpClient(running.url, 4);
      const calls = Array.from({ length: crash + 1 }, (_, index) => ({
        cost: 3,
        idempotencyKey: `order-${index}`,
      }));
      const answers = [];
      for (const fields of calls) answers.push((await client.limit("budget", "order", fields)).body);
      remaining -= 3;
      expect(answers.map((answer) => answer["remaining"])).toEqual(
        calls.map((_, index) => BUDGET - 3 * (index + 1)),
      );
      expect((await client.peek("budget", "order")).body["remaining"]).toBe(remaining);
      await running.stop("SIGKILL");
      client.close();
    }
  } finally {
    removeState(stateDir);
  }
});

test("a policy that changes between two runs keeps the consumption, and its new limit counts", async () => {
  const stateDir = makeState();
  const remainingUnder = async (fields: object, cost: number): Promise<unknown> => {
    const running = await serveBundle(stateDir, {
      api: { algorithm: "token-bucket", window: "30d", ...fields },
    });
    const client = new HttpClient(running.url, 1);
    const { body } = await client.limit("api", "key", { cost });
    await running.stop("SIGKILL");
    client.close();
    return body["remaining"];
  };
  try {
    expect(await remainingUnder({ limit: 10 }, 7)).toBe(3);
    expect(await remainingUnder({ limit: 20 }, 0)).toBe(13);
    expect(await remainingUnder({ limit: 5 }, 0)).toBe(0);
    expect(await remainingUnder({ limit: 10, window: "60d" }, 0)).toBe(3);
    expect(await remainingUnder({ limit: 10, burst: 8 }, 1)).toBe(0);
  } finally {
    removeState(stateDir);
  }
});

test("a bad policy stops it from starting, with an error that says what is wrong", async () => {
  const stateDir = makeState();
  await expect(
    serveBundle(stateDir, { api: { algorithm: "token-bucket", limit: -1, window: "1s" } }),
  ).rejects.toThrow('policy "api": limit is -1: must be an integer from 0 to 1000000000');
  removeState(stateDir);
});
