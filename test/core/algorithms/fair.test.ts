import { expect, test } from "vitest";
import {
  advance,
  decideTogether,
  place,
  settle,
  untouchedAtMs,
  UNTOUCHED,
} from "../../../core/accounts/account.ts";
import { type Account, seenByGroup } from "../../../core/accounts/hold.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { record } from "../../../durable-objects/storage/records.ts";
import { restore } from "../../../durable-objects/storage/write-behind.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom } from "../../support/random.ts";
import { ruleOf } from "../../support/rules.ts";

const START_MS = 1_760_000_000_000;
const BUCKET = { algorithm: "token-bucket", limit: 1_000, window: 1_000, fair: true };

/** A key whose groups call. */
class Shared {
  readonly rule: Rule;
  account: Account = UNTOUCHED;

  constructor(fields: Parameters<typeof ruleOf>[0]) {
    this.rule = ruleOf(fields);
  }

  /** The decision, which changes nothing unless it is kept. */
  ask(nowMs: number, group: string, cost = 1) {
    const account = advance(this.rule, this.account, START_MS + nowMs);
    const rule = seenByGroup({ rule: this.rule, account }, group);
    const { accounts, rules } = decideTogether([{ rule, account }], START_MS + nowMs, cost);
    const [said] = rules;
    if (said === undefined) throw new Error("one rule says one thing");
    return { ...said, account: accounts?.[0] ?? account };
  }

  call(nowMs: number, group: string, cost = 1) {
    const { account, ...said } = this.ask(nowMs, group, cost);
    this.account = account;
    return said;
  }
}

interface Load {
  readonly rate: number;
  readonly cost?: number;
}

/** Calls of all groups in order of time: at random, `rate` a second. */
function* calls(loads: readonly Load[], seconds: number, random: () => number) {
  const nextMs = loads.map(({ rate }) => (-Math.log(1 - random()) * 1_000) / rate);
  for (;;) {
    const atMs = Math.min(...nextMs);
    if (atMs > seconds * 1_000) return;
    const group = nextMs.indexOf(atMs);
    const { rate = 1, cost = 1 } = loads[group] ?? {};
    nextMs[group] = atMs - (Math.log(1 - random()) * 1_000) / rate;
    yield { nowMs: Math.floor(atMs), group, cost };
  }
}

/** What each group asked and got after the first `from` seconds, and what one without groups admits of the same calls. */
function play(
  fields: Parameters<typeof ruleOf>[0],
  loads: readonly Load[],
  seconds: number,
  seed: number,
  from = 3,
) {
  const { fair: _, weights: __, ...plain } = fields;
  const [shared, one] = [new Shared(fields), new Shared(plain)];
  const got = loads.map(() => 0);
  const asked = got.slice();
  let [all, exact] = [0, 0];
  for (const { nowMs, group, cost } of calls(loads, seconds, seededRandom(seed))) {
    const isIn = shared.call(nowMs, `g${group}`, cost).success;
    const isOne = one.call(nowMs, "", cost).success;
    if (nowMs < from * 1_000) continue;
    asked[group] = (asked[group] ?? 0) + 1;
    if (isOne) exact += cost;
    if (!isIn) continue;
    all += cost;
    got[group] = (got[group] ?? 0) + 1;
  }
  return { used: all / exact, got, success: got.map((count, group) => count / (asked[group] ?? 1)) };
}

function jain(parts: readonly number[]): number {
  const sum = parts.reduce((total, part) => total + part, 0);
  return sum ** 2 / (parts.length * parts.reduce((total, part) => total + part ** 2, 0));
}

const SEED = announcedSeed("fair shares");
const many = <Item>(count: number, of: (index: number) => Item) =>
  Array.from({ length: count }, (_, i) => of(i));

test.each([2, 10, 100])("%i hungry groups get equal parts, and together what one bucket admits", (count) => {
  const { used, got } = play(
    BUCKET,
    many(count, () => ({ rate: 3_000 / count })),
    depth(8, 30),
    SEED,
  );
  expect(jain(got)).toBeGreaterThan(0.99);
  expect(used).toBeGreaterThan(0.98);
  expect(used).toBeLessThan(1.02);
});

test("parts are by weight, and what one leaves the others have by weight", () => {
  const weights = { g0: 1, "g1*": 2, g2: 7, g3: 10 };
  const loads = [{ rate: 2_000 }, { rate: 2_000 }, { rate: 2_000 }, { rate: 200 }];
  const { got, used, success } = play({ ...BUCKET, weights }, loads, depth(8, 30), SEED);
  expect(success[3]).toBeGreaterThan(0.995);
  const rest = got.slice(0, 3).reduce((sum, count) => sum + count, 0);
  for (const [group, share] of [0.1, 0.2, 0.7].entries())
    expect((got[group] ?? 0) / rest).toBeCloseTo(share, 1);
  expect(used).toBeGreaterThan(0.98);
});

test("a flood of a hundred times the limit takes nothing from groups within their parts", () => {
  const { success, used } = play(
    BUCKET,
    many(10, (i) => ({ rate: i === 0 ? 20_000 : 80 })),
    depth(5, 10),
    SEED,
  );
  for (const part of success.slice(1)) expect(part).toBeGreaterThan(0.999);
  expect(used).toBeGreaterThan(0.98);
});

test.each([
  ["sliding-log", { algorithm: "sliding-log", limit: 1_000, window: 1_000, fair: true }],
  ["fixed-window", { algorithm: "fixed-window", limit: 1_000, window: 1_000, fair: true }],
] as const)("behind the shares of a bucket %s is shared too", (_, fields) => {
  const hungry = play(
    fields,
    many(10, () => ({ rate: 300 })),
    depth(6, 20),
    SEED,
  );
  expect(jain(hungry.got)).toBeGreaterThan(0.98);
  expect(hungry.used).toBeGreaterThan(0.93);
  const beside = play(
    fields,
    many(10, (i) => ({ rate: i === 0 ? 10_000 : 70 })),
    depth(5, 10),
    SEED,
  );
  for (const part of beside.success.slice(1)) expect(part).toBeGreaterThan(0.97);
});

test("alone a group has all: of a bucket the rate, of a log the limit", () => {
  expect(play(BUCKET, [{ rate: 5_000 }], 6, SEED).used).toBeGreaterThan(0.98);
  const log = { algorithm: "sliding-log", limit: 100, window: 1_000, fair: true };
  expect(play(log, [{ rate: 500 }], 6, SEED).used).toBe(1);
});

/**
 * Random histories of up to a dozen groups with weights, all active from the start. The first keeps to a bucket of its part;
 * the others flood, in bursts, with large calls in every third history.
 */
function history(seed: number) {
  const random = seededRandom(seed);
  const upTo = (most: number) => Math.floor(random() * (most + 1));
  const count = 2 + upTo(10);
  const weight = many(count, () => 1 + upTo(4));
  const all = weight.reduce((sum, each) => sum + each, 0);
  const [limit, burst] = [50 + upTo(1_000), 20 * count + upTo(400)];
  const weights = Object.fromEntries(weight.map((each, group) => [`g${group}`, each]));
  const shared = new Shared({ algorithm: "token-bucket", limit, window: 1_000, burst, fair: true, weights });
  const hasLarge = seed % 3 === 0;
  const part = (burst * (weight[0] ?? 1)) / (2 * all);
  // One unit of each, so all are active; the first has paid back before it begins.
  for (let group = 0; group < count; group += 1) shared.call(0, `g${group}`);
  let [nowMs, own, atMs] = [1_000, part - 1e-6, 1_000];
  for (let round = 0; round < 300 && nowMs < 9_000; round += 1) {
    nowMs += Math.floor(-Math.log(1 - random()) * (random() < 0.1 ? 200 : 3));
    const group = upTo(count - 1);
    if (group === 0) {
      own = Math.min(part - 1e-6, own + (((limit * (weight[0] ?? 1)) / all) * (nowMs - atMs)) / 1_000);
      atMs = nowMs;
      const cost = Math.min(Math.floor(own), 1 + upTo(2));
      if (cost < 1) continue;
      own -= cost;
      const said = shared.call(nowMs, "g0", cost);
      if (!said.success && !hasLarge) throw new Error(`SEED=${seed}: a call within the part was denied`);
      continue;
    }
    for (let burstOf = random() < 0.3 ? 60 : 1; burstOf > 0; burstOf -= 1) {
      const cost = hasLarge ? 1 + upTo(Math.floor(burst / 2)) : 1 + upTo(4);
      const said = shared.call(nowMs, `g${group}`, cost);
      if (said.success) continue;
      checkWait(shared, said, nowMs, `g${group}`, cost, seed);
      break;
    }
  }
}

function checkWait(
  shared: Shared,
  { retryAfterMs, share }: ReturnType<Shared["call"]>,
  nowMs: number,
  group: string,
  cost: number,
  seed: number,
): void {
  if (retryAfterMs === null) return;
  const isIn = (ms: number) => shared.ask(nowMs + ms, group, cost).success;
  if (!isIn(retryAfterMs))
    throw new Error(`SEED=${seed}: denied after ${retryAfterMs} ms, though nobody else asked`);
  if (retryAfterMs > 1 && isIn(retryAfterMs - 1))
    throw new Error(`SEED=${seed}: ${retryAfterMs} ms is too long`);
  const sureMs = share?.sureAfterMs;
  if (sureMs === undefined) throw new Error(`SEED=${seed}: a denial without a sure wait`);
  if (sureMs === null) return;
}

const HISTORIES = depth(300, 5_000);
test(`in ${HISTORIES} histories a group within its part is never denied, and waits are exact`, () => {
  for (let seed = SEED; seed < SEED + HISTORIES; seed += 1) history(seed);
});
