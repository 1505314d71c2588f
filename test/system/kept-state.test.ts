/** What earlier versions wrote, read by this one with nothing lost: see test/support/kept-state.ts. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  bucketFigures,
  laterBy,
  Reading,
  until,
  type Rate,
  type Read,
  type Span,
} from "../support/kept-reading.ts";
import {
  AHEAD,
  DAY_MS,
  HOLD_MS,
  HOT,
  HOT_LOG,
  idOf,
  KEPT_POLICIES,
  keptVersions,
  LEASE_MS,
  MIN_INTERVAL_MS,
  ODD_KEYS,
  RESERVED_CALLS,
  RUNS,
  WINDOW_MS,
} from "../support/kept-state.ts";

const MINUTE_MS = 60_000;
/** When all leases and holds have ended. */
const MONTH_MS = 30 * DAY_MS;
/** The process is killed after memory has been quiet for so long, so that storage is not behind it. */
const QUIET_MS = 2_500;

const LOG_LIMIT = KEPT_POLICIES.log.limit;
const { requests: REQUESTS } = KEPT_POLICIES.rules.rules;
const { rate: JOB_RATE } = KEPT_POLICIES.job.rules;

interface Consumption {
  readonly what: string;
  readonly policy: keyof typeof KEPT_POLICIES;
  readonly key: string;
  readonly units: number;
  /** The step that took the first of them. */
  readonly first: string;
}
const consumption = (
  policy: Consumption["policy"],
  key: string,
  units: number,
  first: string,
  what = first,
): Consumption => ({ policy, key, units, first, what });

/** Units of token buckets that were used up before the folder was left. */
const CONSUMED: readonly Consumption[] = [
  consumption("bucket", "plain", 3, "bucket"),
  consumption("burst", "key", 12, "burst"),
  ...ODD_KEYS.flatMap((key, index) =>
    (["bucket", "shared"] as const).map((policy) =>
      consumption(policy, key, index + 1, `${policy} of odd key ${index}`),
    ),
  ),
  consumption("visitor", "2001:db8:1:2:ffff::9", 2, "network of six"),
  consumption("visitor", "2001:db8:1:2::/64", 2, "network of six", "network of six by its prefix"),
  consumption("visitor", "192.0.2.7", 1, "address of four"),
  consumption("bucket", "idempotent", 2, "idempotent limit"),
  consumption("bucket", "refunded", 4, "before refund", "a refund"),
  consumption("bucket", "debt", 25, "debt"),
  consumption("budget", "ended", 4, "settled", "ended holds"),
  consumption("bucket", "of all", 2, "all", "the bucket of a call on several keys"),
  consumption("shared", "of all", 3, "all", "the shared key of a call on several keys"),
];

/** Idempotent steps whose answers are repeated to the letter. */
const REPEATED = [
  "idempotent limit",
  "idempotent refund",
  "idempotent rules",
  "after the brief hold",
  "log refund",
];
/** Idempotent steps, and what makes each another request. */
const OTHERWISE: Readonly<Record<string, object>> = {
  "idempotent limit": { cost: 3 },
  "idempotent refund": { units: 3 },
  "idempotent rules": { cost: { requests: 2, tokens: 31 } },
  "held idempotently": { units: 5 },
  "after the brief hold": { cost: 2 },
  "log refund": { units: 11 },
  "lease of a job": { units: 2 },
  all: { checks: [{ policy: "bucket", key: "of all", cost: 1 }] },
};
const IDEMPOTENT_LEASES = ["idempotent lease", "lease of a job"];

interface Lease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}
const leaseOf = (body: Read["body"]) => body["lease"] as Lease;

function expectWithin(value: unknown, [least, most]: readonly [number, number]): void {
  expect(value).toBeGreaterThanOrEqual(least);
  expect(value).toBeLessThanOrEqual(most);
}

/** Exact but for the milliseconds that calls were under way. */
function expectUntil(value: unknown, then: Span, now: Span): void {
  const { least, most } = until(then, now);
  expectWithin(value, [least, most]);
}

function expectBucket({ rules, now }: Read, name: string, rate: Rate, units: number, first: Span): void {
  const { remaining, resetAfterMs } = bucketFigures(rate, units, first, now);
  expectWithin(rules[name]?.remaining, remaining);
  expectWithin(rules[name]?.resetAfterMs, resetAfterMs);
}

/** Of a log: units that count, and when the last of them was taken. */
function expectLog({ rules, now }: Read, name: string, units: number, last: Span): void {
  expect(rules[name]?.remaining).toBe(LOG_LIMIT - units);
  expectUntil(rules[name]?.resetAfterMs, laterBy(last, WINDOW_MS), now);
}

/** Each of the kept runs leaves the window at its own millisecond; `since` were logged later. */
async function expectRuns(reading: Reading, since: number): Promise<void> {
  const free = LOG_LIMIT - RUNS - since;
  for (let run = 0; run < RUNS; run += 1) {
    const { rules, now } = await reading.limit("log", "runs", free + run + 1);
    const { log } = rules;
    expect(log).toMatchObject({ success: false, reason: "quota", remaining: free });
    expectUntil(log?.retryAfterMs, laterBy(reading.when("runs", run), WINDOW_MS), now);
  }
}

/** What holds however much later it is read. */
function claimsAtAnyTime(of: () => Reading): void {
  test.each(REPEATED)("%s is answered as before", async (name) => {
    const { status, body } = await of().again(name);
    expect(status).toBe(200);
    expect(body).toEqual(of().answered(name));
  });

  test("a call on several keys is answered as before where rates were charged", async () => {
    const { status, body } = await of().again("all");
    expect(status).toBe(200);
    const rates = (all: Read["body"]) => (all["decisions"] as unknown[]).slice(0, 2);
    expect(rates(body)).toEqual(rates(of().answered("all")));
  });

  test.each(Object.entries(OTHERWISE))("%s with another request is a conflict", async (name, others) => {
    const { status } = await of().again(name, others);
    expect(status).toBe(409);
  });

  test("a hold that was settled is answered as the first time, and cannot be cancelled", async () => {
    const id = idOf(of().kept.answers["held and settled"]);
    const { body } = await of().call("POST", `holds/${id}/settle`, { used: 6 });
    expect(body).toEqual(of().answered("settled"));
    expect((await of().call("DELETE", `holds/${id}`)).status).toBe(404);
  });

  test("a hold that was cancelled is known to be", async () => {
    const id = idOf(of().kept.answers["held and cancelled"]);
    expect((await of().call("DELETE", `holds/${id}`)).status).toBe(204);
    expect((await of().call("POST", `holds/${id}/settle`, { used: 3 })).status).toBe(404);
  });

  test("a hold that expired is known to have", async () => {
    const id = idOf(of().kept.answers["held briefly"]);
    expect((await of().call("DELETE", `holds/${id}`)).status).toBe(404);
    expect((await of().call("POST", `holds/${id}/settle`, { used: 0 })).status).toBe(200);
  });

  // After all the repetitions above, which charged nothing.
  test.each(CONSUMED)("$what: $units units of $policy are used", async ({ policy, key, units, first }) => {
    const read = await of().limit(policy, key, 0);
    expect(read.body["key"]).toBe(key.startsWith("2001:") ? "2001:db8:1:2::/64" : key);
    expectBucket(read, policy, KEPT_POLICIES[policy] as Rate, units, of().when(first));
  });

  test("what each rule of several has used is used", async () => {
    const read = await of().limit("rules", "key", 0);
    expectBucket(read, "requests", REQUESTS, 2, of().when("rules"));
    expectLog(read, "tokens", 300, of().when("rules"));
  });

  test("a debt is waited for", async () => {
    const { rules, now } = await of().limit("bucket", "debt", 1);
    const { limit } = KEPT_POLICIES.bucket;
    // 25 of 10 are used: for the next unit 16 have to come back.
    const then = laterBy(of().when("debt"), Math.ceil((16 * WINDOW_MS) / limit));
    expect(rules["bucket"]).toMatchObject({ success: false, reason: "quota", remaining: 0 });
    expectUntil(rules["bucket"]?.retryAfterMs, then, now);
  });

  test("of a log every run counts, and leaves at its own millisecond", async () => {
    const read = await of().limit("log", "runs", 0);
    expectLog(read, "log", RUNS, of().when("runs", RUNS - 1));
    await expectRuns(of(), 0);
  });

  test("what was given back to a log is free, the oldest first", async () => {
    const last = of().when("later log units");
    expectLog(await of().limit("log", "refunded", 0), "log", 6, last);
    const { rules, now } = await of().limit("log", "refunded", LOG_LIMIT - 5);
    expect(rules["log"]).toMatchObject({ success: false, reason: "quota" });
    expectUntil(rules["log"]?.retryAfterMs, laterBy(last, WINDOW_MS), now);
  });

  test("the least interval counts from the last call", async () => {
    const { rules, now } = await of().limit("spaced", "key", 1);
    expect(rules["spaced"]).toMatchObject({ success: false, reason: "min-interval" });
    expectUntil(rules["spaced"]?.retryAfterMs, laterBy(of().when("spaced"), MIN_INTERVAL_MS), now);
  });

  test("denials that were counted count", async () => {
    const looked = await of().peek("hammered", "key");
    const first = laterBy(of().when("denied and counted"), WINDOW_MS);
    expectUntil(looked.rules["hammered"]?.retryAfterMs, first, looked.now);
    // This one counts as well, so the newest two are it and the last of those before.
    const { rules, now } = await of().limit("hammered", "key", 1);
    const last = laterBy(of().when("denied and counted again"), WINDOW_MS);
    expect(rules["hammered"]).toMatchObject({ success: false, reason: "quota" });
    expectUntil(rules["hammered"]?.retryAfterMs, last, now);
  });
}

describe.each(keptVersions())("what version %s wrote", (version) => {
  describe("read a minute later", () => {
    const reading = new Reading(version, MINUTE_MS);
    const of = () => reading;
    const bodyOf = (name: string) => reading.kept.answers[name];
    beforeAll(() => reading.start());
    afterAll(() => reading.stop());

    test("what memory was ahead of storage by is missing at most, and nothing that was admitted is left", async () => {
      const taken = HOT.calls * HOT.units;
      const hot = await reading.limit("hot", "key", 0);
      const { remaining } = bucketFigures(KEPT_POLICIES.hot, taken, reading.when("hot"), hot.now);
      expectWithin(hot.rules["hot"]?.remaining, [remaining[0] - AHEAD.hot, remaining[1]]);
      const log = await reading.limit("log", "hot", 0);
      const left = LOG_LIMIT - HOT_LOG.calls * HOT_LOG.units;
      expectWithin(log.rules["log"]?.remaining, [left - AHEAD.log, left]);
      const reserved = await reading.limit("reserved", "key", 0);
      const first = reading.when("reserved calls");
      const spent = bucketFigures(KEPT_POLICIES.reserved, RESERVED_CALLS, first, reserved.now);
      const most = [spent.remaining[0] - AHEAD.reserved, spent.remaining[1]] as const;
      expectWithin(reserved.rules["reserved"]?.remaining, most);
    });

    claimsAtAnyTime(of);

    test("the rest of a call on several keys and a hold are answered as before", async () => {
      const all = await reading.again("all");
      const [before, after] = [reading.answered("all"), all.body].map(
        ({ decisions }) => decisions as { readonly lease?: { readonly expiresAfterMs: number } }[],
      );
      const leaseMs = after?.[2]?.lease?.expiresAfterMs ?? 0;
      expect(after?.slice(0, 2)).toEqual(before?.slice(0, 2));
      expect(after?.[2]).toEqual({
        ...before?.[2],
        lease: { ...before?.[2]?.lease, expiresAfterMs: leaseMs },
      });
      expectUntil(leaseMs, laterBy(reading.when("all"), LEASE_MS), all.now);
      const { body, now } = await reading.again("held idempotently");
      const { hold, ...decision } = reading.answered("held idempotently");
      const { expiresAfterMs } = body["hold"] as { readonly expiresAfterMs: number };
      expect(body).toEqual({ ...decision, hold: { ...(hold as object), expiresAfterMs } });
      expectUntil(expiresAfterMs, laterBy(reading.when("held idempotently"), HOLD_MS), now);
    });

    test("another request under the key of a lease is a conflict", async () => {
      expect((await reading.again("idempotent lease", { units: 2 })).status).toBe(409);
    });

    test("holds still keep their units apart", async () => {
      const { body } = await reading.peek("budget", "outstanding");
      expect(body).toMatchObject({ outstanding: 9, holds: 2, remaining: 31 });
      const { rules } = await reading.peek("rules", "held");
      expect(rules).toMatchObject({ requests: { remaining: 37 }, tokens: { remaining: 600 } });
    });

    test("holds can be settled and cancelled by their ids", async () => {
      const long = await reading.call("POST", `holds/${idOf(bodyOf("held for long"))}/settle`, { used: 1 });
      expect(long.body).toMatchObject({ success: true, remaining: 35 });
      const { status } = await reading.call("DELETE", `holds/${idOf(bodyOf("held idempotently"))}`);
      expect(status).toBe(204);
      expect((await reading.peek("budget", "outstanding")).body).toMatchObject({ holds: 0, remaining: 39 });
      const used = { requests: 1, tokens: 50 };
      const { rules } = await reading.call("POST", `holds/${idOf(bodyOf("held of rules"))}/settle`, { used });
      expect(rules).toMatchObject({ requests: { remaining: 39 }, tokens: { remaining: 950 } });
    });

    test("leases still have their slots, and the wait for one is exact", async () => {
      const { body } = await reading.peek("slots", "key");
      expect(body).toMatchObject({ leases: 2, outstanding: 3, remaining: 2, reclaimed: 0 });
      const { rules, now } = await reading.call("POST", "leases", { policy: "slots", key: "key", units: 3 });
      expect(rules["slots"]).toMatchObject({ success: false, reason: "quota" });
      expectUntil(rules["slots"]?.retryAfterMs, laterBy(reading.when("lease of two"), LEASE_MS), now);
    });

    test.each(IDEMPOTENT_LEASES)("%s is answered as before, with what is left of it", async (name) => {
      const { body, now } = await reading.again(name);
      const { lease: before, ...others } = reading.answered(name);
      const { expiresAfterMs, ...lease } = body["lease"] as Record<string, unknown>;
      expect({ ...body, lease }).toEqual({ ...others, lease });
      expect(before).toMatchObject(lease);
      expectUntil(expiresAfterMs, laterBy(reading.when(name), LEASE_MS), now);
    });

    test("a lease with rates has its slot and its rate, and one that expired was counted", async () => {
      const read = await reading.peek("job", "key");
      expect(read.body).toMatchObject({ leases: 2, outstanding: 2, reclaimed: 1 });
      expect(read.rules["slots"]?.remaining).toBe(1);
      expectBucket(read, "rate", JOB_RATE, 3, reading.when("lease of a job"));
    });

    test("a new lease has a higher token, made of the time", async () => {
      const { body, now } = await reading.call("POST", "leases", { policy: "slots", key: "key", units: 2 });
      expectWithin(leaseOf(body).fencingToken / 1_000, [now.fromMs, now.toMs]);
    });

    test("leases can be renewed and released by their ids, and one that was released cannot", async () => {
      const id = idOf(bodyOf("lease of two"));
      const renewed = await reading.call("POST", `leases/${id}/renew`, {});
      expect(renewed.body).toMatchObject({ id, expiresAfterMs: LEASE_MS });
      expect((await reading.call("DELETE", `leases/${id}`)).status).toBe(204);
      expect((await reading.call("DELETE", `leases/${id}`)).status).toBe(404);
      expect((await reading.peek("slots", "key")).body).toMatchObject({ leases: 2, outstanding: 3 });
      const released = idOf(bodyOf("lease to release"));
      expect((await reading.call("POST", `leases/${released}/renew`, {})).status).toBe(404);
    });

    test("the lease of a call on several keys can be released", async () => {
      const [, , last] = reading.answered("all")["decisions"] as {
        readonly lease?: { readonly id: string };
      }[];
      expect((await reading.peek("slots", "of all")).body).toMatchObject({ leases: 1, remaining: 4 });
      expect((await reading.call("DELETE", `leases/${last?.lease?.id}`)).status).toBe(204);
    });

    test("what this version adds stands beside it, after a crash too", async () => {
      const more = 70;
      for (let call = 0; call < more; call += 1) await reading.limit("log", "runs", 1);
      await reading.limit("bucket", "plain", 2);
      await sleep(QUIET_MS);
      await reading.crash();
      const { remaining = 0 } = (await reading.limit("log", "runs", 0)).rules["log"] ?? {};
      // A crash costs no more than an eighth of what was used.
      const lost = LOG_LIMIT - RUNS - more - remaining;
      expectWithin(lost, [0, more / 8]);
      await expectRuns(reading, more + lost);
      const read = await reading.limit("bucket", "plain", 0);
      expectBucket(read, "bucket", KEPT_POLICIES.bucket, 5, reading.when("bucket"));
      expect((await reading.again("idempotent limit")).body).toEqual(reading.answered("idempotent limit"));
    });
  });

  describe("read a month later", () => {
    const reading = new Reading(version, MONTH_MS);
    const bodyOf = (name: string) => reading.kept.answers[name];
    beforeAll(() => reading.start());
    afterAll(() => reading.stop());

    claimsAtAnyTime(() => reading);

    test("a hold that has ended is answered with its id all the same", async () => {
      const { status, body } = await reading.again("held idempotently");
      const { hold, ...decision } = reading.answered("held idempotently");
      expect(status).toBe(200);
      expect(body).toMatchObject({
        ...decision,
        hold: { id: (hold as { readonly id: string }).id, units: 4 },
      });
    });

    test("holds that expired count as used since then, and settling one changes nothing", async () => {
      const id = idOf(bodyOf("held for long"));
      const { status } = await reading.call("POST", `holds/${id}/settle`, { used: 0 });
      expect(status).toBe(200);
      expect((await reading.call("DELETE", `holds/${id}`)).status).toBe(404);
      const read = await reading.peek("budget", "outstanding");
      expect(read.body).toMatchObject({ outstanding: 0, holds: 0 });
      const first = laterBy(reading.when("held for long"), HOLD_MS);
      expectBucket(read, "budget", KEPT_POLICIES.budget, 9, first);
    });

    test("a hold of several rules counts as used by each", async () => {
      const read = await reading.limit("rules", "held", 0);
      const expired = laterBy(reading.when("held of rules"), HOLD_MS);
      expectBucket(read, "requests", REQUESTS, 3, expired);
      expectLog(read, "tokens", 400, expired);
    });

    test("leases have ended: their slots are free, and what was charged with them is charged", async () => {
      for (const name of ["lease of two", "idempotent lease", "lease of a job"]) {
        const id = idOf(bodyOf(name));
        expect((await reading.call("POST", `leases/${id}/renew`, {})).status).toBe(404);
        expect((await reading.call("DELETE", `leases/${id}`)).status).toBe(404);
      }
      expect((await reading.peek("slots", "key")).body).toMatchObject({ leases: 0, remaining: 5 });
      const read = await reading.peek("job", "key");
      expect(read.body).toMatchObject({ leases: 0, outstanding: 0, reclaimed: 3 });
      expectBucket(read, "rate", JOB_RATE, 3, reading.when("lease of a job"));
    });

    test.each(IDEMPOTENT_LEASES)("%s is a new one, with a higher token", async (name) => {
      const { body, now } = await reading.again(name);
      const lease = leaseOf(body);
      expect(lease.id).not.toBe(leaseOf(reading.answered(name)).id);
      expectWithin(lease.fencingToken / 1_000, [now.fromMs, now.toMs]);
    });
  });

  describe("read under a policy that reserves nothing any more", () => {
    const reserved = { ...KEPT_POLICIES.reserved, reservation: "off" };
    const reading = new Reading(version, MINUTE_MS, { ...KEPT_POLICIES, reserved });
    beforeAll(() => reading.start());
    afterAll(() => reading.stop());

    test("what isolates may still be spending is kept apart", async () => {
      const { body } = await reading.peek("reserved", "key");
      expectWithin(body["outstanding"], [1, AHEAD.reserved]);
    });
  });

  describe("read by a clock that was put back", () => {
    const reading = new Reading(version, -HOLD_MS);
    beforeAll(() => reading.start());
    afterAll(() => reading.stop());

    test("a new lease has a higher token than any before", async () => {
      const { body } = await reading.call("POST", "leases", { policy: "slots", key: "key" });
      const before = leaseOf(reading.answered("lease to release"));
      expect(leaseOf(body).fencingToken).toBe(before.fencingToken + 1);
    });
  });
});
