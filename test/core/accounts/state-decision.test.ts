import fc from "fast-check";
import { expect, test } from "vitest";
import { UNTOUCHED, admitsTogether, advance, decideTogether, place } from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import { leastWaitMs, waitBehindMs } from "../../../core/accounts/queue-waits.ts";
import { type Policy, forPriority } from "../../../core/policies/policy.ts";
import { Oracles } from "../../simulation/laws.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const KEPT = { reserve: { critical: "25%", high: "10%" } };
const POLICIES = parsePolicies({
  bucket: { algorithm: "token-bucket", limit: 30, window: 1_000, burst: 20, ...KEPT },
  log: { algorithm: "sliding-log", limit: 20, window: 700, ...KEPT },
  counted: { algorithm: "sliding-log", limit: 20, window: 700, countDenied: true, ...KEPT },
  two: {
    rules: {
      bucket: { algorithm: "token-bucket", limit: 40, window: 1_000, burst: 16 },
      log: { algorithm: "sliding-log", limit: 25, window: 900 },
    },
    ...KEPT,
  },
});
const START_MS = 1_760_000_000_000;
const NAMES = ["critical", "high", "normal", "low"];

const call = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 120 })),
  cost: fc.integer({ min: 1, max: 22 }),
  priority: fc.constantFrom(...NAMES, undefined),
  /** A hold that lasts so long, and is used when it expires; 0: the units are used at once. */
  ttlMs: fc.oneof(fc.constant(0), fc.constant(0), fc.integer({ min: 1, max: 300 })),
});

/** The accounts of a policy, as a call of this priority sees them. */
const seenAs = (policy: Policy, accounts: readonly Account[], priority: string | undefined) =>
  forPriority(policy, priority).rules.map((rule, index) => ({ rule, account: accounts[index] ?? UNTOUCHED }));

test.each([...POLICIES.keys()])(
  "under %s no priority takes what is kept for more important ones, and denials say why and for how long",
  (name) => {
    const policy = POLICIES.get(name) as Policy;
    let [shed, passed] = [0, 0];
    const histories = fc.array(call, { minLength: 10, maxLength: 40 });
    fc.assert(
      fc.property(histories, (calls) => {
        const oracles = new Oracles(policy);
        let accounts: readonly Account[] = policy.rules.map(() => UNTOUCHED);
        let nowMs = START_MS;
        for (const [index, { afterMs, cost, priority, ttlMs }] of calls.entries()) {
          nowMs += afterMs;
          accounts = policy.rules.map((rule, at) => advance(rule, accounts[at] ?? UNTOUCHED, nowMs));
          const seen = seenAs(policy, accounts, priority);
          const hold = ttlMs === 0 ? {} : { hold: { id: `hold ${index}`, expiresAtMs: nowMs + ttlMs } };
          const decided = decideTogether(seen, nowMs, cost, hold);
          const whole = seenAs(policy, accounts, "critical");
          if (decided.admitted) {
            passed += 1;
            // A more important call would have passed too.
            if (!admitsTogether(whole, nowMs, cost)) throw new Error("a more important call was denied");
            oracles.admit(cost, nowMs, priority, { nowMs, backMs: 0 });
          } else
            for (const [at, { rule, account }] of seen.entries()) {
              const said = decided.rules[at];
              if (said?.success === true) continue;
              const asCritical = whole[at] && decide(whole[at].rule, account, nowMs, cost).allowed;
              const isShed = asCritical === true && cost <= rule.capacity;
              if (isShed) shed += 1;
              const right = isShed ? "shed" : cost > rule.capacity ? "cost-over-limit" : "quota";
              const isNamed = said?.reason === "shed" || said?.reason === "cost-over-limit";
              const reason = isNamed ? said.reason : "quota";
              // An assertion for each denial would take longer than all that is checked.
              if (reason !== right || said?.limit !== rule.capacity)
                expect({ reason, limit: said?.limit }).toEqual({ reason: right, limit: rule.capacity });
            }
          if (!decided.admitted && name !== "counted")
            expectExactWait(policy, accounts, priority, nowMs, cost);
          accounts = decided.accounts ?? accounts;
        }
      }),
      { numRuns: depth(300, 2_500) },
    );
    expect(shed).toBeGreaterThan(100);
    expect(passed).toBeGreaterThan(500);
  },
  300_000,
);

/** One millisecond before the wait is over the cost is denied, and then it passes. */
function expectExactWait(
  policy: Policy,
  accounts: readonly Account[],
  priority: string | undefined,
  nowMs: number,
  cost: number,
): void {
  const waitMs = waitBehindMs(seenAs(policy, accounts, priority), [], cost, nowMs);
  const passesAt = (atMs: number) => {
    const then = policy.rules.map((rule, at) => advance(rule, accounts[at] ?? UNTOUCHED, atMs));
    return admitsTogether(seenAs(policy, then, priority), atMs, cost);
  };
  if (waitMs === null) return;
  if (!passesAt(nowMs + waitMs)) throw new Error(`nothing passes after ${waitMs} ms`);
  if (waitMs > 0 && passesAt(nowMs + waitMs - 1)) throw new Error(`it passes before ${waitMs} ms`);
}

test("units that are held by somebody less important are not shed from the others, only taken", () => {
  const policy = POLICIES.get("bucket") as Policy;
  const [low] = forPriority(policy, "low").rules;
  const held = place(UNTOUCHED, { id: "hold", units: 13, expiresAtMs: START_MS + 50 });
  expect(decide(low, held, START_MS, 1)).toMatchObject({ allowed: false, reason: "shed" });
  expect(decide(policy.rules[0], held, START_MS, 7)).toMatchObject({ allowed: true, remaining: 0 });
  expect(decide(policy.rules[0], held, START_MS, 8)).toMatchObject({ allowed: false, reason: "quota" });
});

test("units that are only kept delay nobody", () => {
  const rate = { limit: 2, window: "1s", reserve: { critical: "20%" } };
  const told = (fields: object, priority: string, before: number) => {
    const policy = parsePolicies({ a: { ...rate, ...fields } }).get("a") as Policy;
    const [rule] = forPriority(policy, priority).rules;
    let account: Account = UNTOUCHED;
    for (let made = 0; made < before; made += 1) {
      const decision = decide(rule, account, START_MS, 1);
      if (decision.allowed) ({ account } = decision);
    }
    const decision = decide(rule, account, START_MS, 1);
    return decision.allowed ? decision.delayMs : "denied";
  };
  for (const priority of ["critical", "low"]) {
    expect(told({ algorithm: "smooth-warming-up", warmup: "4s" }, priority, 0)).toBeUndefined();
    expect(told({ algorithm: "leaky-bucket", burst: 9, delay: 2 }, priority, 2)).toBeUndefined();
    expect(told({ algorithm: "leaky-bucket", burst: 9, delay: 2 }, priority, 3)).toBe(500);
  }
});

test("who waits is played with what its own priority sees", () => {
  const policy = parsePolicies({
    a: { algorithm: "token-bucket", limit: 2, window: "1s", reserve: { critical: "50%" } },
  }).get("a") as Policy;
  const [rule] = policy.rules;
  const empty = decide(rule, UNTOUCHED, START_MS, 2);
  if (!empty.allowed) throw new Error("2 of 2 fit");
  const seen = seenAs(policy, [empty.account], "low");
  const critical = { cost: 2, ttlMs: 0, untilMs: START_MS + 5_000, apart: [0] };
  // It is served after a second, and then half of what it took and one unit more have to come back.
  expect(waitBehindMs(seen, [critical], 1, START_MS)).toBe(2_000);
  expect(leastWaitMs(seen, [critical], 1, START_MS)).toBe(2_000);
});
