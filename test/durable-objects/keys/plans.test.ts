/** Laws of a key whose calls name plans: the object, with each algorithm. */
import { describe, expect, test } from "vitest";
import { planOf } from "../../../core/policies/named-plans.ts";
import type { Policy } from "../../../core/policies/policy.ts";
import { versionOf } from "../../../core/policies/policy.ts";
import type { Decided, Peeked } from "../../../core/protocol/answers.ts";
import type { KeyCall } from "../../../core/protocol/object-methods.ts";
import { joinParts, KeyCalls } from "../../../durable-objects/key-calls.ts";
import { Timers } from "../../../durable-objects/keys/key-store.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database } from "../../simulation/database.ts";
import { parseDeployment } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

const [LOW, HIGH] = [10, 40];
const window = 60_000;
const plans = { pro: { limit: HIGH } };
const TABLES = {
  "token-bucket": { algorithm: "token-bucket", limit: LOW, window, plans },
  gcra: { algorithm: "gcra", limit: LOW, window, plans },
  "sliding-log": { algorithm: "sliding-log", limit: LOW, window, plans },
  "fixed-window": { algorithm: "fixed-window", limit: LOW, window, plans },
  "sliding-window-counter": { algorithm: "sliding-window-counter", limit: LOW, window, plans },
  "leaky-bucket": {
    algorithm: "leaky-bucket",
    limit: LOW,
    window,
    burst: LOW,
    nodelay: true,
    plans: { pro: { limit: HIGH, burst: HIGH } },
  },
  credits: { algorithm: "credits", limit: LOW, plans },
  "a shorter window": {
    algorithm: "sliding-log",
    limit: LOW,
    window,
    plans: { pro: { limit: HIGH, window: 30_000 } },
  },
} as const;

class Key {
  nowMs = 1_700_000_000_000;
  readonly #database = new Database();
  readonly policy: Policy;
  readonly #deployment: ReturnType<typeof parseDeployment>;
  #calls: KeyCalls;

  constructor(table: object) {
    this.#deployment = parseDeployment({ policies: { api: table } });
    this.policy = this.#deployment.policies.get("api") as Policy;
    this.#calls = this.#start();
  }

  #start(): KeyCalls {
    const alarm = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };
    const joined = joinParts({
      storage: new Storage(this.#database.storage),
      timers: new Timers(alarm, () => this.nowMs),
      policies: this.#deployment.policies,
      loadPooled: () => Promise.reject(new Error("there are no pools")),
    });
    return new KeyCalls({ ...joined, sockets: { closeLost: () => undefined } });
  }

  crash(): void {
    this.#calls = this.#start();
  }

  /** @param plan `undefined`: the call names none */
  call(plan: string | undefined, call: object): unknown {
    const version = versionOf(planOf(this.policy, plan));
    return this.#calls.call({ policy: "api", key: "key", ...version, ...call } as KeyCall);
  }

  takes(plan: string, cost: number): boolean {
    const { rules } = this.call(plan, { op: "limit", cost }) as Decided;
    return rules.every(({ success }) => success);
  }

  peek(plan?: string): Peeked {
    return this.call(plan, { op: "peek" }) as Peeked;
  }

  remaining(plan?: string): number {
    return this.peek(plan).rules[0]?.remaining ?? Number.NaN;
  }
}

describe.each(Object.entries(TABLES))("%s", (_, table) => {
  test("from plan to plan nothing is forgotten, and nothing is minted", () => {
    const random = seededRandom(announcedSeed("plans"));
    for (let round = 0; round < 200; round += 1) {
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

  test("in no window more is admitted than the loosest plan named in it allows", () => {
    const random = seededRandom(announcedSeed("plans in windows"));
    for (let round = 0; round < 60; round += 1) {
      const key = new Key(table);
      const admitted: { readonly atMs: number; readonly plan: string }[] = [];
      const named: { readonly atMs: number; readonly plan: string }[] = [];
      for (let step = 0; step < 120; step += 1) {
        key.nowMs += whole(random, 3_000);
        const plan = random() < 0.2 ? "pro" : "";
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

test("a plan with a shorter window is refused where the longer one cannot be counted beside it", () => {
  const refused = (fields: object) => {
    const table = { ...shorter("sliding-log"), ...fields };
    expect(() => new Key(table)).toThrow(/plans\.small: window is "[^"]+": must be/);
  };
  refused({ fair: true });
  refused({ blockFor: 10 });
  refused({ limit: 1_000, window: 30 * 86_400_000, plans: { small: { limit: 5_000, window: 1_000 } } });
});
