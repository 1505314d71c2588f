/** How long the object says that its denials stand. */
import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall } from "../../../core/protocol/calls.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";

const BUCKET = { algorithm: "token-bucket", limit: 10_000, window: "30d" };
const LOG = { algorithm: "sliding-log", limit: 10_000, window: "30d" };
const policies = parsePolicies({
  api: BUCKET,
  brief: { ...BUCKET, denialTtl: "2s" },
  off: { ...BUCKET, denialTtl: "0s" },
  log: LOG,
  spaced: { ...LOG, minInterval: "1h" },
  counted: { ...LOG, countDenied: true },
  blocked: { ...BUCKET, blockFor: "5m" },
  shadow: { ...BUCKET, shadow: true },
  credits: { algorithm: "credits", limit: 10_000 },
  kept: { ...BUCKET, reserve: { critical: "20%" } },
  two: { rules: { rate: BUCKET, log: LOG } },
  leased: { rules: { rate: BUCKET, slots: { algorithm: "concurrency", limit: 10 } } },
});

/** An object whose key has used `used` units, and its answer to a cost. */
function start(policy: string, used = 10_000) {
  const time = new VirtualTime();
  const object = new SimulatedObject(new Database(), policies, () => Math.floor(time.nowMs) + 1_000_000);
  const limit = (cost: number, call: Partial<LimitCall> = {}) =>
    JSON.parse(object.limitCall({ policy, key: "key", cost, ...call })) as Decided;
  let turn = 0;
  const reserve = (holder: string, cost: number, wanted: number, kept = 0): Decided => {
    turn += 1;
    const names = policies.get(policy)?.rules.map(({ name }) => name) ?? [];
    const rules = Object.fromEntries(names.map((name) => [name, { used: 0, kept, wanted }]));
    const call: ReserveCall = { policy, key: "key", holder, turn, cost, ttlMs: 1_000, isShort: true, rules };
    return JSON.parse(object.reserve(call)) as Decided;
  };
  if (used > 0) limit(used, { priority: "critical" });
  return { time, object, limit, reserve };
}

test.each<[string, number | undefined, number?]>([
  ["api", 10_000],
  ["api", 10_000, 10_001],
  ["brief", 2_000],
  ["off", undefined],
  ["log", 10_000],
  ["spaced", 10_000],
  ["shadow", 10_000],
  ["credits", 10_000],
  ["two", 10_000],
  ["counted", undefined],
  ["blocked", undefined],
  ["leased", undefined, 11],
])(
  "of a key of which nobody holds units, a denial under %s stands for %j ms",
  (policy, firmForMs, cost = 1) => {
    const { limit } = start(policy);
    const { rules, firmForMs: said } = limit(cost);
    expect(rules.some(({ success }) => !success)).toBe(true);
    expect(said).toBe(firmForMs);
  },
);

test("what is kept for more important calls is denied as firmly", () => {
  const { limit } = start("kept", 8_000);
  expect(limit(1)).toMatchObject({ firmForMs: 10_000, rules: [{ reason: "shed" }] });
  expect(limit(1, { priority: "critical" }).firmForMs).toBeUndefined();
});

test.each(["api", "brief", "log", "spaced", "shadow", "credits", "two"])(
  "under %s, whoever is given the last unit is told what the next call would be told",
  (policy) => {
    const { limit } = start(policy, policy === "spaced" ? 0 : 9_998);
    // Where calls must be an hour apart, the first is the last.
    if (policy !== "spaced") expect(limit(1).next).toBeUndefined();
    const last = limit(1);
    const denied = limit(1);
    expect(last.rules.every(({ success }) => success)).toBe(true);
    expect(denied.rules.every(({ success }) => success)).toBe(false);
    expect(last).toMatchObject({ next: denied.rules, firmForMs: denied.firmForMs });
  },
);

test.each(["counted", "blocked"])("under %s no isolate denies by itself, so nobody is told", (policy) => {
  const { limit } = start(policy, 9_999);
  const { rules, next } = limit(1);
  expect(rules).toMatchObject([{ success: true, remaining: 0 }]);
  expect(next).toBeUndefined();
});

test("an admission under an idempotency key tells nothing of the next call: it is answered again later", () => {
  const { limit } = start("api", 9_999);
  expect(limit(1, { idempotencyKey: "once" }).next).toBeUndefined();
  expect(limit(1, { idempotencyKey: "once" }).next).toBeUndefined();
});

test("an admission, a look and a cost that was decided under an idempotency key say nothing of it", () => {
  const { limit } = start("api", 9_950);
  expect(limit(1).firmForMs).toBeUndefined();
  expect(limit(0).firmForMs).toBeUndefined();
  expect(limit(1, { idempotencyKey: "once" }).firmForMs).toBeUndefined();
});

test("while another isolate holds units no denial stands, until it has settled", () => {
  const { object, limit, reserve } = start("api", 9_950);
  const { units = {} } = reserve("one", 0, 6).reserved ?? {};
  expect(units).toEqual({ api: 6 });
  expect(limit(45).firmForMs).toBeUndefined();
  expect(reserve("other", 45, 0).firmForMs).toBeUndefined();
  object.giveBack("api", [{ key: "key", holder: "one", turn: 99, used: { api: 6 } }]);
  expect(limit(45).firmForMs).toBe(10_000);
});

test("what an isolate holds itself it gives back itself, and knows: its denials stand", () => {
  const { limit, reserve } = start("api", 9_996);
  const answer = reserve("one", 5, 4);
  expect(answer).toMatchObject({ rules: [{ success: false }], firmForMs: 10_000 });
  expect(answer.reserved?.units).toEqual({ api: 4 });
  // Nothing is left for a cost of 1, which stands as well.
  expect(answer.next).toMatchObject([{ success: false }]);
  // Who asks without being that isolate is not told so.
  expect(limit(5).firmForMs).toBeUndefined();
});

test("when units that isolates held count as used, denials stand", () => {
  const { time, object, limit, reserve } = start("api", 9_950);
  reserve("one", 0, 6);
  time.nowMs = 2_001;
  object.open({ name: "api" }, "key");
  expect(limit(45).firmForMs).toBe(10_000);
});
