/** Groups of several callers: who names many takes nothing from the parts of others by that (core/algorithms/fair/fair-weights.ts). */
import { expect, test } from "vitest";
import { advance, decideTogether, UNTOUCHED } from "../../../core/accounts/account.ts";
import { type Account, seenByGroup } from "../../../core/accounts/hold.ts";
import type { RuleDecision } from "../../../core/protocol/answers.ts";
import { depth } from "../../support/depth.ts";
import { announcedSeed, seededRandom } from "../../support/random.ts";
import { ruleOf } from "../../support/rules.ts";

const START_MS = 1_760_000_000_000;
const BUCKET = { algorithm: "token-bucket", limit: 1_000, window: 1_000, fair: true };
/** The most groups of one caller that count beside fewer of others. */
const KEPT = 16;
const ACTIVE_MS = 10_000;

/** A key whose groups call, each named by a caller. */
class Shared {
  readonly rule;
  account: Account = UNTOUCHED;

  constructor(fields: Parameters<typeof ruleOf>[0] = BUCKET) {
    this.rule = ruleOf(fields);
  }

  call(nowMs: number, caller: string, group: string, cost = 1): RuleDecision {
    const account = advance(this.rule, this.account, START_MS + nowMs);
    const rule = seenByGroup(this.rule, group, caller);
    const { accounts, rules } = decideTogether([{ rule, account }], START_MS + nowMs, cost);
    this.account = accounts?.[0] ?? account;
    return rules[0] as RuleDecision;
  }

  limitOf(nowMs: number, caller: string, group: string): number | undefined {
    return this.call(nowMs, caller, group, 0).share?.limit;
  }

  /** Memory is lost: what is stored comes back. */
  restart(): void {
    const { algorithm, config } = this.rule;
    const { record } = algorithm.pack(config, this.account.state, START_MS, undefined);
    const read = JSON.parse(JSON.stringify(record)) as object;
    this.account = { state: algorithm.unpack(config, read, []), holds: [] };
  }
}

/**
 * One caller floods with up to 10,000 groups of its own. Another one's two groups come later, and keep to buckets of their
 * parts, in which those of the first count as 16. @returns how many of their calls were denied, and what all got
 */
function flooded(
  seed: number,
  { startMs = 3_000, endMs = depth(20_000, 25_000), restartMs = Infinity } = {},
) {
  const random = seededRandom(seed);
  const shared = new Shared();
  const part = { rate: 1_000 / (KEPT + 2), burst: 1_000 / 2 / (KEPT + 2) - 1e-6 };
  const own = [
    { left: part.burst, atMs: startMs },
    { left: part.burst, atMs: startMs },
  ];
  let [denied, calls, admitted, isRestarted] = [0, 0, 0, false];
  for (let nowMs = 0; nowMs < endMs; nowMs += 1) {
    if (!isRestarted && nowMs >= restartMs) shared.restart();
    isRestarted ||= nowMs >= restartMs;
    for (let call = 0; call < 4; call += 1)
      if (shared.call(nowMs, "flood", `f${Math.floor(random() * 10_000)}`).success) admitted += 1;
    for (const [index, each] of own.entries()) {
      if (nowMs < startMs) continue;
      each.left = Math.min(part.burst, each.left + (part.rate * (nowMs - each.atMs)) / 1_000);
      each.atMs = nowMs;
      // In bursts of all that it has, too.
      const cost = random() < 0.002 ? Math.floor(each.left) : random() < 0.05 ? 1 : 0;
      if (cost < 1 || cost > each.left) continue;
      each.left -= cost;
      const said = shared.call(nowMs, "other", `o${index}`, cost);
      if (said.success) admitted += cost;
      // By then what the flood got before they came has come back.
      if (nowMs < startMs + ACTIVE_MS) continue;
      calls += 1;
      if (!said.success) denied += 1;
    }
  }
  return { denied, calls, admitted, most: 1_000 + endMs };
}

const SEED = announcedSeed("groups of callers");

test("ten thousand groups of one caller count as 16: another caller's groups within their parts are never denied", () => {
  for (let seed = SEED; seed < SEED + depth(1, 6); seed += 1) {
    const { denied, calls, admitted, most } = flooded(seed);
    expect(calls).toBeGreaterThan(500);
    expect(denied).toBe(0);
    expect(admitted).toBeLessThanOrEqual(most);
    expect(admitted).toBeGreaterThan(0.97 * (most - 1_000));
  }
});

test("and what is stored says whose they are", () => {
  // Groups that are forgotten by a restart come again, and those that are stored are still the same caller's.
  expect(flooded(SEED, { restartMs: 14_000, endMs: depth(17_000, 25_000) }).denied).toBe(0);
  const shared = new Shared();
  for (let group = 0; group < 100; group += 1) shared.call(0, "many", `m${group}`);
  shared.call(0, "few", "f");
  shared.restart();
  expect(shared.limitOf(0, "few", "f")).toBe(Math.floor(1_000 / (KEPT + 1)));
});

test("a caller alone has a part for each of its groups, and another caller's comes beside 16 of them", () => {
  const shared = new Shared();
  for (let group = 0; group < 400; group += 1) shared.call(0, "many", `m${group}`);
  expect(shared.limitOf(0, "many", "m7")).toBe(Math.floor(1_000 / 400));
  shared.call(0, "few", "f");
  expect(shared.limitOf(0, "few", "f")).toBe(Math.floor(1_000 / (KEPT + 1)));
  // When it is forgotten all is as before.
  for (let group = 0; group < 400; group += 1) shared.call(5_000, "many", `m${group}`);
  expect(shared.limitOf(ACTIVE_MS + 1, "many", "m7")).toBe(Math.floor(1_000 / 400));
});

test("what a group owes stays when its part becomes smaller", () => {
  const shared = new Shared();
  for (let group = 0; group < 20; group += 1) shared.call(0, "many", `m${group}`, 10);
  shared.call(0, "few", "f");
  const part = (1_000 / 2 / (KEPT + 1)) * (KEPT / 20);
  expect(shared.call(0, "many", "m7", 0).share?.remaining).toBe(Math.floor(part - 10));
});

test("up to 16 groups of a caller, or as many as all others have, each weigh what they weigh", () => {
  const shared = new Shared({ ...BUCKET, limit: 60_000, weights: { "gold:*": 4 } });
  for (let group = 0; group < KEPT; group += 1) shared.call(0, "one", `gold:${group}`);
  shared.call(0, "two", "x");
  expect(shared.limitOf(0, "two", "x")).toBe(Math.floor(60_000 / (4 * KEPT + 1)));
  const equal = new Shared({ ...BUCKET, limit: 60_000 });
  for (let group = 0; group < 300; group += 1)
    for (const caller of ["one", "two"]) equal.call(0, caller, `${caller}${group}`);
  expect(equal.limitOf(0, "one", "one5")).toBe(100);
  // A group is the caller's that named it first, whoever names it later.
  expect(equal.limitOf(0, "two", "one5")).toBe(100);
});

test("one caller has a thousand groups of its own, the others share a part, and another caller's have theirs", () => {
  const shared = new Shared({ ...BUCKET, limit: 100_000 });
  for (let group = 0; group < 10_000; group += 1) shared.call(0, "flood", `f${group}`);
  for (let group = 0; group < 300; group += 1) shared.call(0, "other", `o${group}`);
  const parts = Array.from({ length: 300 }, (_, group) => shared.call(0, "other", `o${group}`, 0).share);
  // A thousand and their rest count as 300, a little more for the rest.
  for (const part of parts) expect(part?.limit).toBe(Math.floor(100_000 / (300 + (300 * 1_001) / 1_000)));
  expect(parts.every((part) => (part?.remaining ?? 0) > 0)).toBe(true);
});

test("an admission of a caller's further group says the same of its part as a look at it afterwards", () => {
  const shared = new Shared({ ...BUCKET, limit: 100_000 });
  for (let group = 0; group < 1_100; group += 1) shared.call(0, "flood", `f${group}`);
  for (const group of ["f7", "f5000", "f5001"]) {
    const { remaining, share } = shared.call(0, "flood", group);
    const seen = shared.call(0, "flood", group, 0);
    expect({ remaining, share }).toEqual({ remaining: seen.remaining, share: seen.share });
  }
});

test("waits are exact while a caller has named more groups than it may weigh", () => {
  let [denials, wrong] = [0, 0];
  for (let seed = SEED; seed < SEED + depth(4, 40); seed += 1) {
    const random = seededRandom(seed);
    const shared = new Shared({ ...BUCKET, limit: 60, window: 10_000, weights: { "g*": 3 } });
    for (let ms = 0; ms < 60_000; ms += Math.floor(400 * random() * random())) {
      const isMany = random() < 0.7;
      const group = isMany ? `${random() < 0.5 ? "g" : "x"}${Math.floor(12 * random())}` : `b${ms % 3}`;
      const caller = isMany ? "many" : "few";
      const cost = 1 + Math.floor(12 * random() ** 3);
      const { success, retryAfterMs } = shared.call(ms, caller, group, cost);
      if (success || retryAfterMs === null) continue;
      denials += 1;
      const { account } = shared;
      const isAdmitted = (afterMs: number) => {
        shared.account = account;
        const admitted = shared.call(ms + afterMs, caller, group, cost).success;
        shared.account = account;
        return admitted;
      };
      if (!isAdmitted(retryAfterMs) || (retryAfterMs > 1 && isAdmitted(retryAfterMs - 1))) wrong += 1;
    }
  }
  expect(denials).toBeGreaterThan(500);
  // Weights are fractions: a rounding moves a few waits.
  expect(wrong).toBeLessThan(denials / 200);
});
