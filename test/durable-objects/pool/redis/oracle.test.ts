/** The script on a real server answers every history as the functions that the objects use would. */
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { PoolMark } from "../../../../durable-objects/pool/protocol.ts";
import { depth } from "../../../support/depth.ts";
import { PoolModel } from "../../../support/pool-model.ts";
import { holdingOf, poolRule, startPools, type PartOfCall, type Pools } from "../../../support/pools.ts";
import { reachable, ruleOf } from "../../../support/rules.ts";

let pools: Pools;
beforeAll(async () => {
  pools = await startPools();
});
afterAll(() => pools.stop());

// 300 take a second on a real Redis; most differences show within some ten.
const HISTORIES = depth(16, 600);
const START_MS = 1_760_000_000_000;

const limit = fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 32, max: 400 }));
const windowMs = fc.oneof(fc.integer({ min: 1, max: 3_000 }), fc.constantFrom(1, 60, 1_000, 60_000));
const bucketFields = fc
  .record({ limit, window: windowMs, burst: limit })
  .map((fields) => ({ algorithm: "token-bucket", ...reachable(fields) }));
const logFields = fc
  .record({
    limit,
    window: windowMs,
    minInterval: fc.constantFrom(0, 0, 0, 7, 90),
    countDenied: fc.boolean(),
  })
  .map(({ minInterval, countDenied, ...fields }) => ({
    algorithm: "sliding-log",
    ...fields,
    ...(minInterval > 0 && { minInterval }),
    ...(countDenied && { countDenied }),
  }));
const leasedFields = limit.map((most) => ({ algorithm: "concurrency", limit: most, ttl: 1_000 }));
const policy = fc.array(fc.oneof(bucketFields, logFields, leasedFields), { minLength: 1, maxLength: 3 });
/** Policies of which holders may have units. */
const plainLog = logFields.map(({ algorithm, limit: most, window }) => ({ algorithm, limit: most, window }));
const sharedPolicy = fc.array(fc.oneof(bucketFields, plainLog, leasedFields), { minLength: 1, maxLength: 3 });

const few = fc.oneof(fc.nat(4), fc.nat(40), fc.constant(1));
const step = fc.record({
  afterMs: fc.oneof(
    fc.constant(0),
    fc.nat(20),
    fc.nat(2_000),
    fc.integer({ min: -300, max: 0 }),
    fc.nat(20_000),
  ),
  op: fc.constantFrom(
    "limit",
    "limit",
    "limit",
    "hold",
    "hold",
    "settle",
    "settle",
    "renew",
    "refund",
    "uncharge",
    "uncharge",
    "peek",
    "reset",
  ),
  cost: fc.array(few, { minLength: 3, maxLength: 3 }),
  used: fc.array(few, { minLength: 3, maxLength: 3 }),
  ttlMs: fc.oneof(fc.integer({ min: 1, max: 3_000 }), fc.constant(40_000)),
  /** Which of the holds before. */
  which: fc.nat(5),
  request: fc.oneof({ weight: 4, arbitrary: fc.constant(undefined) }, fc.constantFrom("a", "b")),
  answerName: fc.constantFrom("x", "y"),
  /** Which of the charges before: by name, or with "x" a call that was repeated. */
  charge: fc.oneof(fc.constant(undefined), fc.nat(5)),
  /** Of a holder's message, if it is one. */
  holder: fc.oneof({ weight: 2, arbitrary: fc.constant(undefined) }, fc.constantFrom("r1", "r2", "r3")),
  turnsOn: fc.constantFrom(1, 1, 1, 1, 1, 2, 0, -1),
  isFresh: fc.integer({ min: 0, max: 15 }).map((each) => each === 0),
  /** Of what it has: how much it has used, and keeps. */
  usedShare: fc.constantFrom(0, 0.3, 0.5, 1, 1),
  keptShare: fc.constantFrom(0, 0.5, 1, 1, 1.2),
  wanted: fc.array(fc.nat(60), { minLength: 3, maxLength: 3 }),
  isShort: fc.boolean(),
  lifetimeMs: fc.constantFrom(1_000, 2_000, 8_000),
  queueLength: fc.constantFrom(0, 0, 0, 2),
  plan: fc.constantFrom("", "", "pro", "quick"),
});
/** Of charges, most of which are given back soon. */
const chargeStep = fc
  .record({
    step,
    afterMs: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(400)),
    op: fc.constantFrom("limit", "limit", "limit", "uncharge", "uncharge", "refund", "hold", "settle"),
    charge: fc.nat(4),
    units: fc.oneof(fc.integer({ min: 1, max: 4 }), fc.nat(40)),
  })
  .map(({ step: given, units, ...changed }) => ({
    ...given,
    ...changed,
    cost: changed.op === "refund" ? [1, 1, 1] : [units, units, units],
    holder: undefined,
  }));
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

/** A holder as the histories have it: what it thinks that it has. */
class Region {
  turn = 0;
  used: number[] = [];
  has: number[] = [];
  seen: PoolMark | undefined;
}

function holdingIn(given: Step, region: Region, count: number) {
  region.turn += given.turnsOn;
  if (given.isFresh) region.used = [];
  const indexes = Array.from({ length: count }, (_, index) => index);
  const spent = indexes.map((index) => Math.floor((region.has[index] ?? 0) * given.usedShare));
  region.used = indexes.map((index) => (region.used[index] ?? 0) + (spent[index] ?? 0));
  const left = indexes.map((index) => (region.has[index] ?? 0) - (spent[index] ?? 0));
  return holdingOf({
    holder: given.holder ?? "",
    turn: region.turn,
    isFresh: given.isFresh,
    ...(region.seen && { seen: region.seen }),
    used: region.used,
    kept: left.map((units) => Math.floor(units * given.keptShare)),
    wanted: given.wanted.slice(0, count),
    isShort: given.isShort,
    lifetime: { ttlMs: given.lifetimeMs, heldMs: given.lifetimeMs + 1_000 },
    shortest: { ttlMs: 1_000, heldMs: 2_000 },
    queueLength: given.queueLength,
  });
}

type Fields = Readonly<Record<string, unknown>> & { readonly limit: number };

/** What plans multiply. */
const PLANS = { "": [1, 1], pro: [3, 3], quick: [10, 1] } as const;

function rulesOf(fields: readonly Fields[], plan: keyof typeof PLANS) {
  const [limits, bursts] = PLANS[plan];
  return fields.map((each, index) => {
    const own = { ...each, limit: each.limit * limits };
    const bucket = { ...own, window: Number(each["window"]), burst: Number(each["burst"]) * bursts };
    const name = `rule ${index}`;
    return { ...ruleOf("burst" in each ? reachable(bucket) : own), name, unit: name };
  });
}

/** @param plans of which some call may name one */
async function compare(
  fields: readonly Fields[],
  steps: readonly Step[],
  isShared: boolean,
  plans: readonly (keyof typeof PLANS)[] = [""],
) {
  const planned = new Map(plans.map((plan) => [plan, rulesOf(fields, plan)]));
  const rules = rulesOf(fields, "");
  const pooled = Object.fromEntries([...planned].map(([plan, each]) => [plan, each.map(poolRule)]));
  const pool = pools.create(rules.map(poolRule));
  const model = new PoolModel(rules);
  const regions = new Map<string, Region>();
  let [nowMs, ids, charges] = [START_MS, 0, 0];
  for (const [index, given] of steps.entries()) {
    nowMs += given.afterMs;
    const { ttlMs } = given;
    const plan = planned.has(given.plan) ? given.plan : "";
    model.rules = planned.get(plan) ?? rules;
    pool.rules = model.rules.map(poolRule);
    const isNamed = given.op === "uncharge";
    const op = given.op === "uncharge" ? "refund" : given.op;
    // Half of the limits are charges of their own, so that there is something to give back by name.
    const isCharge = op === "limit" && given.charge !== undefined;
    if (isCharge) charges += 1;
    const request = isCharge ? `charge ${charges}` : isNamed ? `uncharge ${index}` : given.request;
    const answerName = isCharge || isNamed ? (request ?? "") : given.answerName;
    const chargeName = given.charge === undefined ? "x" : `charge ${Math.max(0, charges - given.charge)}`;
    if (op === "hold") ids += 1;
    const id = op === "hold" ? `${ids}` : `${Math.max(0, ids - given.which)}`;
    const byId = op === "hold" || op === "settle" || op === "renew";
    const isRepeatable = op === "limit" || op === "hold" || op === "refund";
    const region = regions.get(given.holder ?? "") ?? new Region();
    const isReport = isShared && given.holder !== undefined && op === "limit";
    if (isReport) regions.set(given.holder ?? "", region);
    const holding = isReport ? holdingIn(given, region, rules.length) : undefined;
    const call = {
      op,
      cost: given.cost.slice(0, rules.length),
      ...(byId && { id, ttlMs, used: given.used.slice(0, rules.length) }),
      ...(isRepeatable && request !== undefined && { request: `${op} ${request}`, answerName }),
      ...(isNamed && { isNamed, chargeName }),
      ...(op === "refund" &&
        request === undefined && { request: `refund ${index}`, answerName: `refund ${index}` }),
      ...(holding && { holding }),
      ...(isNamed && { plans: pooled }),
      ...(isRepeatable && request !== undefined && plans.length > 1 && { plan }),
    } as PartOfCall;
    const { plan: _, ...answer } = await pool.call(call, nowMs);
    expect(answer, `step ${index}: ${JSON.stringify(call)}`).toEqual(model.call(call, nowMs));
    if (answer.granted?.overtakenBy !== undefined) region.turn = answer.granted.overtakenBy;
    else if (answer.granted !== undefined) {
      const isAdmitted = answer.rules?.every(({ success }) => success) === true;
      const { isNew, units, mark } = answer.granted;
      region.seen = mark;
      region.has = rules.map(({ lease }, rule) => {
        const kept = isNew && lease === undefined ? 0 : (holding?.kept[rule] ?? 0);
        return kept + (units[rule] ?? 0) + (isAdmitted ? (call.cost?.[rule] ?? 0) : 0);
      });
    }
  }
}

test("every history of calls is answered alike", { timeout: 300_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(policy, fc.array(step, { maxLength: 30 }), (fields, steps) =>
      compare(fields, steps, false),
    ),
    { numRuns: HISTORIES },
  );
});

test("and so is every history of charges that are given back by name", { timeout: 300_000 }, async () => {
  const rates = fc.array(fc.oneof(bucketFields, logFields), { minLength: 1, maxLength: 2 });
  await fc.assert(
    fc.asyncProperty(rates, fc.array(chargeStep, { minLength: 5, maxLength: 40 }), (fields, steps) =>
      compare(fields, steps, false),
    ),
    { numRuns: HISTORIES },
  );
});

test("and so is every history with holders", { timeout: 300_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(sharedPolicy, fc.array(step, { maxLength: 30 }), (fields, steps) =>
      compare(fields, steps, true),
    ),
    { numRuns: HISTORIES },
  );
});

test("and so are histories whose calls name plans", { timeout: 300_000 }, async () => {
  const plans = ["", "pro", "quick"] as const;
  const buckets = fc.array(bucketFields, { minLength: 1, maxLength: 2 });
  await fc.assert(
    fc.asyncProperty(sharedPolicy, fc.array(step, { maxLength: 40 }), (fields, steps) =>
      compare(fields, steps, true, plans),
    ),
    { numRuns: 2 * HISTORIES },
  );
  await fc.assert(
    fc.asyncProperty(buckets, fc.array(chargeStep, { minLength: 5, maxLength: 40 }), (fields, steps) =>
      compare(fields, steps, false, plans),
    ),
    { numRuns: 2 * HISTORIES },
  );
});
