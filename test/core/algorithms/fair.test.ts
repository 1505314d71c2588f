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
import { FAIR_ALGORITHMS, inGroup } from "../../../core/algorithms/fair/fair.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import type { RuleDecision } from "../../../core/protocol/answers.ts";
import { depth } from "../../support/depth.ts";
import { parsePolicies } from "../../support/milliseconds.ts";
import { announcedSeed, seededRandom } from "../../support/random.ts";
import { ruleOf } from "../../support/rules.ts";
import { jain } from "../../support/slot-simulation.ts";

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
    const rule = seenByGroup(this.rule, group);
    const { accounts, rules } = decideTogether([{ rule, account }], START_MS + nowMs, cost);
    const [said] = rules;
    if (said === undefined) throw new Error("one rule says one thing");
    return { ...said, account: accounts?.[0] ?? account };
  }

  call(nowMs: number, group: string, cost = 1): RuleDecision {
    const { account, ...said } = this.ask(nowMs, group, cost);
    this.account = account;
    return said;
  }

  /** What all groups have together. */
  look(nowMs: number): number {
    const account = advance(this.rule, this.account, START_MS + nowMs);
    return decideTogether([{ rule: this.rule, account }], START_MS + nowMs, 0).rules[0]?.remaining ?? 0;
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

/** A key whose calls are decided unless an earlier decision says that they are denied: a flood's mostly are. */
class Flooded {
  readonly #shared: Shared;
  readonly #deniedUntilMs = new Map<string, number>();

  constructor(fields: Parameters<typeof ruleOf>[0]) {
    this.#shared = new Shared(fields);
  }

  admits(nowMs: number, group: string, cost: number): boolean {
    const name = `${cost} ${group}`;
    if (nowMs < (this.#deniedUntilMs.get(name) ?? 0)) return false;
    const { success, retryAfterMs } = this.#shared.call(nowMs, group, cost);
    // A wait is exact as long as nobody is admitted.
    if (success) this.#deniedUntilMs.clear();
    else this.#deniedUntilMs.set(name, nowMs + (retryAfterMs ?? 0));
    return success;
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
  const [shared, one] = [new Flooded(fields), new Flooded(plain)];
  const got = loads.map(() => 0);
  const asked = got.slice();
  let [all, exact] = [0, 0];
  for (const { nowMs, group, cost } of calls(loads, seconds, seededRandom(seed))) {
    const isIn = shared.admits(nowMs, `g${group}`, cost);
    const isOne = one.admits(nowMs, "", cost);
    if (nowMs < from * 1_000) continue;
    asked[group] = (asked[group] ?? 0) + 1;
    if (isOne) exact += cost;
    if (!isIn) continue;
    all += cost;
    got[group] = (got[group] ?? 0) + 1;
  }
  return { used: all / exact, got, success: got.map((count, group) => count / (asked[group] ?? 1)) };
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
  const weights = { "*": 9, "g*": 7, g0: 1, "g1*": 2, g3: 10 };
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

/** The least part of their calls, and so many windows that its mean over all seeds is six standard deviations above it. */
const SMALL = [
  ["sliding-log", 5_000, 2, 0.99, 1_000],
  ["sliding-log", 1_000, 2, 0.985, 300],
  ["sliding-log", 1_000, 10, 0.985, 160],
  ["sliding-log", 1_000, 100, 0.97, 80],
  ["sliding-window-counter", 5_000, 2, 0.99, 1_000],
  ["sliding-window-counter", 1_000, 10, 0.99, 360],
  ["sliding-window-counter", 1_000, 100, 0.985, 280],
  ["fixed-window", 5_000, 2, 0.99, 80],
  ["fixed-window", 1_000, 10, 0.985, 80],
  ["fixed-window", 1_000, 100, 0.98, 160],
] as const;
const QUICK = SMALL.filter(([, , count]) => count === 100);
test.each(depth(QUICK, [...SMALL]))(
  "beside a flood %s of 100 in %i ms admits %i groups within their parts",
  (algorithm, window, count, least, windows) => {
    const fields = { algorithm, limit: 100, window, fair: true };
    const loads = many(count, (i) => ({ rate: ((i === 0 ? 10 : 0.8 / count) * 100_000) / window }));
    const seconds = ((10 + depth(windows, 3 * windows)) * window) / 1_000;
    const { success, got, used } = play(fields, loads, seconds, SEED, (10 * window) / 1_000);
    const [, ...asked] = got.map((each, group) => each / (success[group] || 1));
    const [, ...within] = got;
    const sum = (counts: readonly number[]) => counts.reduce((all, each) => all + each, 0);
    expect(sum(within) / sum(asked)).toBeGreaterThan(least);
    expect(used).toBeGreaterThan(count === 2 ? 0.94 : 0.9);
  },
);

test("alone a group has all: of a bucket the rate, of a log the limit", () => {
  expect(play(BUCKET, [{ rate: 5_000 }], 6, SEED).used).toBeGreaterThan(0.98);
  const log = { algorithm: "sliding-log", limit: 100, window: 1_000, fair: true };
  expect(play(log, [{ rate: 500 }], 6, SEED).used).toBe(1);
});

/**
 * Random histories of up to a dozen groups with weights, all active from the start. The first keeps to a bucket of its part;
 * the others flood, in bursts, with large calls in every third history.
 * @param paid units that have come back to the key before
 */
function history(seed: number, paid = 0) {
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
  const usual = Math.min(limit, Math.floor(burst / 2));
  for (let ms = -1_000 * Math.ceil(paid / usual); ms < 0; ms += 1_000) shared.call(ms, "g1", usual);
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
      if (!said.success && !hasLarge) throw new Error("a call within the part was denied");
      continue;
    }
    for (let burstOf = random() < 0.3 ? 60 : 1; burstOf > 0; burstOf -= 1) {
      const cost = hasLarge ? 1 + upTo(Math.floor(burst / 2)) : 1 + upTo(4);
      const said = shared.call(nowMs, `g${group}`, cost);
      if (said.success) continue;
      checkWait(shared, said, { nowMs, group, cost, count, hasLarge, isTried: round % 100 === seed % 100 });
      break;
    }
  }
}

interface Asked extends Readonly<Record<"nowMs" | "group" | "cost" | "count", number>> {
  readonly hasLarge: boolean;
  /** Whether the sure wait is tried, which takes long. */
  readonly isTried: boolean;
}

function checkWait(
  shared: Shared,
  { retryAfterMs, share }: RuleDecision,
  { nowMs, group, cost, count, hasLarge, isTried }: Asked,
): void {
  if (retryAfterMs === null || share?.sureAfterMs === undefined)
    throw new Error("a denial that names no wait");
  const isIn = (ms: number) => shared.ask(nowMs + ms, `g${group}`, cost).success;
  if (!isIn(retryAfterMs)) throw new Error(`denied after ${retryAfterMs} ms, though nobody else asked`);
  if (retryAfterMs > 1 && isIn(retryAfterMs - 1)) throw new Error(`${retryAfterMs} ms is too long`);
  const { sureAfterMs: sureMs } = share;
  if (hasLarge || !isTried || sureMs === null || sureMs > 200) return;
  // The others take all that they can get until then, in calls no larger than their parts.
  const { account } = shared;
  for (let ms = 0; ms <= sureMs; ms += 1)
    for (let other = 0; other < count; other += 1)
      if (other !== group) while (shared.call(nowMs + ms, `g${other}`).success);
  if (!isIn(sureMs)) throw new Error(`denied after ${sureMs} ms, which were said to be sure`);
  shared.account = account;
}

const HISTORIES = depth(20, 1_500);
/** Two ways to one instant differed, a walk stood still, or a million units had come back before. */
const ROUNDING = [[28299798], [239087010], [500052960], [1300161574], [28299138, 1e6], [SEED, 1e6]] as const;
test(`in ${HISTORIES} histories a group within its part is never denied, and waits are exact`, () => {
  for (const [seed, paid = 0] of [...ROUNDING, ...many(HISTORIES, (index) => [SEED + index] as const)])
    try {
      history(seed, paid);
    } catch (error) {
      throw new Error(`SEED=${seed} (${paid}): ${String(error)}`, { cause: error });
    }
});

const RATES = FAIR_ALGORITHMS.filter((name) => name !== "concurrency");
test.each(RATES)("%s: what a group may take now it gets, and its waits are exact", (algorithm) => {
  // In the longer window groups are forgotten while calls wait.
  const kinds = [{ window: 1_000 }, { window: 10_000, weights: { g2: 3 } }] as const;
  const drawn = many(depth(4, 120), (index) => [SEED + index, kinds[index % 3 === 0 ? 0 : 1]] as const);
  for (const [seed, kind] of [[126640649, kinds[0]] /* rounding */, ...drawn] as const) {
    const [random, shared] = [seededRandom(seed), new Shared({ ...BUCKET, algorithm, limit: 60, ...kind })];
    const { window } = kind;
    for (let nowMs = 0; nowMs < 4 * window; nowMs += Math.floor(0.04 * window * random() * random())) {
      const group = `g${Math.floor(random() * random() * (2 + (seed % 5)))}`;
      const cost = 1 + Math.floor(18 * random() ** 3);
      const said = `SEED=${seed}, ${nowMs} ms`;
      // Beside held units waits are lower bounds; of a log or window they are about right.
      const mayHold = seed % 2 === 1 && ["token-bucket", "gcra"].includes(algorithm);
      if (mayHold && random() < 0.2 && shared.ask(nowMs, group, cost).success) {
        const expiresAtMs = START_MS + nowMs + Math.ceil((window / 2) * random());
        shared.account = place(shared.account, { id: said, units: cost, expiresAtMs, group });
        continue;
      }
      const { success, share, retryAfterMs } = shared.call(nowMs, group, cost);
      const { remaining = 0, sureAfterMs } = share ?? {};
      if (remaining > 0) expect(shared.ask(nowMs, group, remaining).success, said).toBe(true);
      if (success) continue;
      const isIn = (ms: number) => shared.ask(nowMs + ms, group, cost).success;
      if (retryAfterMs !== null && retryAfterMs > 1) expect(isIn(retryAfterMs - 1), said).toBe(false);
      if (shared.account.holds.length > 0) continue;
      if (retryAfterMs !== null) expect(isIn(retryAfterMs), said).toBe(true);
      expect(sureAfterMs ?? Infinity, said).toBeGreaterThanOrEqual(retryAfterMs ?? Infinity);
    }
  }
});

test("what is given back, held and settled counts for the group", () => {
  const shared = new Shared({ ...BUCKET, limit: 100, burst: 100 });
  shared.call(0, "b");
  shared.call(0, "a", 20);
  const remaining = () => shared.ask(0, "a", 0).share?.remaining;
  expect(remaining()).toBe(5);
  const { algorithm, config } = shared.rule;
  const given = algorithm.credit(inGroup(config, "a"), shared.account.state, START_MS, 10);
  shared.account = { ...shared.account, state: given };
  expect(remaining()).toBe(15);
  const hold = { id: "h", units: 10, expiresAtMs: START_MS + 1_000, group: "a" };
  shared.account = place(shared.account, hold);
  expect(remaining()).toBe(5);
  expect(shared.ask(0, "b", 0).share?.remaining).toBe(24);
  shared.account = settle(shared.rule, shared.account, START_MS, "h", 2);
  expect(remaining()).toBe(13);
});

test("a group is active for ten seconds after its last admission, also when all units are back", () => {
  const shared = new Shared(BUCKET);
  for (const group of ["a", "b", "c", "d"]) shared.call(0, group);
  const laterMs = START_MS + 5_000;
  const later = advance(shared.rule, shared.account, laterMs);
  expect(untouchedAtMs(shared.rule, later, laterMs)).toBe(START_MS + 10_000);
  expect(shared.ask(9_000, "a", 0).share?.limit).toBe(250);
  // What comes back is no admission.
  const { algorithm, config } = shared.rule;
  const state = algorithm.credit(inGroup(config, "b"), shared.account.state, START_MS + 9_000, 1);
  shared.account = { ...shared.account, state };
  expect(shared.ask(10_001, "a", 0).share?.limit).toBe(1_000);
});

test.each(["token-bucket", "gcra", "sliding-log", "fixed-window", "sliding-window-counter"])(
  "with %s a group that left keeps no part and is not listed",
  (algorithm) => {
    const shared = new Shared({ ...BUCKET, algorithm });
    for (const group of ["a", "b", "c", "d"]) shared.call(0, group);
    const seenAt = (nowMs: number) => {
      const { algorithm: fair, config } = shared.rule;
      const listed = fair.groups?.(config, shared.account.state, START_MS + nowMs);
      return `${shared.ask(nowMs, "a", 0).share?.limit} beside ${listed?.length}`;
    };
    expect([seenAt(10_000), seenAt(10_001)]).toEqual(["250 beside 4", "1000 beside 0"]);
  },
);

test("more than a thousand groups: further ones share one part", () => {
  const shared = new Shared({ ...BUCKET, limit: 100_000, window: 1_000 });
  for (let group = 0; group < 1_000; group += 1) expect(shared.call(0, `g${group}`).success).toBe(true);
  const late = Array.from({ length: 500 }, (_, group) => shared.call(0, `late${group}`).success);
  const admitted = late.filter(Boolean).length;
  expect(admitted).toBeGreaterThan(40);
  expect(admitted).toBeLessThan(260);
  expect(shared.ask(0, "g5").success).toBe(true);
});

const RATE = { limit: 100, window: 1_000 };
test.each(["token-bucket", "sliding-log", "fixed-window", "sliding-window-counter"])(
  "what is stored of %s decides as what was in memory, and builds without groups read it",
  (algorithm) => {
    const shared = new Shared({ algorithm, fair: true, ...RATE });
    for (let call = 0; call < 40; call += 1) shared.call(call, call % 3 === 0 ? "a" : "b", 2);
    const { rule, account } = shared;
    const packed = rule.algorithm.pack(rule.config, account.state, START_MS + 40, undefined);
    const written = JSON.parse(JSON.stringify(packed.record)) as unknown;
    const segments = packed.segment === undefined ? [] : [packed.segment];
    const readBy = (reader: Shared) => {
      const state = reader.rule.algorithm.unpack(reader.rule.config, written, segments);
      reader.account = { state, holds: [] };
      return reader;
    };
    const read = readBy(new Shared({ algorithm, fair: true, ...RATE }));
    const plain = readBy(new Shared({ algorithm, ...RATE }));
    for (const ms of [40, 60, 200, 700]) {
      for (const group of ["a", "b", "c"]) {
        const [before, after] = [shared, read].map((each) => ({ ...each.ask(ms, group, 3), account: 0 }));
        expect(after).toEqual(before);
      }
      expect(plain.look(ms)).toBe(shared.look(ms));
    }
  },
);

test.each(["sliding-log", "fixed-window", "sliding-window-counter"])(
  "with %s a flood that was alone for long leaves a group that comes its part",
  (algorithm) => {
    const shared = new Shared({ algorithm, limit: 60, window: 1_000, fair: true });
    let admitted = 0;
    for (let ms = 0; ms < 60_000; ms += 1) {
      if (ms >= 50_000 && shared.call(ms, "small").success) admitted += 1;
      shared.call(ms, "flood");
    }
    // Half of ten windows, but for what the flood has had when it begins.
    expect(admitted).toBeGreaterThan(240);
  },
);

test.each([
  [{ algorithm: "credits", limit: 5, fair: true }, "fair is true: must be left out, or with one of"],
  [{ ...BUCKET, limit: 0 }, "fair is true: must be left out, or with one of token-bucket"],
  [{ ...BUCKET, algorithm: "sliding-log", window: 3_600_000 }, "left out with a window over 60 s"],
  [
    { algorithm: "sliding-window-counter", limit: 49, window: 1_000, fair: true },
    'limit is 49: must be at least 50 with fair and algorithm "sliding-window-counter", or',
  ],
  [{ algorithm: "sliding-log", ...RATE, countDenied: true, fair: true }, "must be left out with countDenied"],
  [{ ...BUCKET, blockFor: 1_000 }, "fair is true: must be left out with blockFor"],
  [{ ...BUCKET, fair: false }, "fair is false: must be true, or left out"],
  [{ ...BUCKET, weights: { a: 0 } }, "weights.a is 0: must be a weight above 0 and at most 1000"],
  [{ ...BUCKET, weights: {} }, "weights is an object: must be a table of 1 to 100 groups"],
  [
    { algorithm: "token-bucket", ...RATE, weights: { a: 1 } },
    "weights is an object: must be left out, or with fair",
  ],
  [
    { ...BUCKET, reserve: { critical: "20%" }, maxWait: 1_000 },
    "maxWait is 1000: must be left out with fair and reserve",
  ],
  [{ ...BUCKET, pool: "redis" }, 'pool is "redis": must be left out with fair'],
])("%j is refused", (fields, said) => {
  expect(() => parsePolicies({ p: fields })).toThrow(said);
});
