/** What an isolate does when the catalog answers, is slow, fails, or answers out of turn. Time is virtual. */
import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { CatalogChanges } from "../../../core/catalog/calls.ts";
import { PoliciesInForce } from "../../../core/catalog/policies-in-force.ts";
import { parseDeployment } from "../../../core/policies/parse-policies.ts";
import {
  ASK_AFTER_MS,
  CatalogReader,
  LOST_AFTER_MS,
  MAX_AGE_MS,
} from "../../../worker/bindings/catalog-reader.ts";
import { VirtualTime } from "../../simulation/virtual-time.ts";

const DEADLINE_MS = 1_000;
const { policies, tables, regions } = parseDeployment({
  policies: { api: { algorithm: "token-bucket", limit: 100, window: "1s" } },
});

beforeEach(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));
afterEach(() => void vi.restoreAllMocks());

/** An isolate, and the catalog that it asks: each message is answered by the test. */
function isolate() {
  const time = new VirtualTime();
  const asked: {
    since: number;
    atMs: number;
    answer: (limit: number, revision: number) => void;
    answerWith: (changes: CatalogChanges) => void;
    fail: () => void;
  }[] = [];
  const counted: (readonly [metric: string, value: unknown])[] = [];
  const prolongedMs: number[] = [];
  const inForce = new PoliciesInForce({ policies, tables, regions });
  const reader = new CatalogReader({
    policies: inForce,
    time: time.clock({ ms: 1_000_000 }),
    catalog: () => ({
      changes: (since) =>
        new Promise<CatalogChanges>((resolve, reject) => {
          const fields = (limit: number) => ({ algorithm: "token-bucket", limit, window: "1s" });
          asked.push({
            since,
            atMs: time.nowMs,
            answer: (limit, revision) =>
              resolve({
                revision,
                isWhole: since === 0,
                policies: [{ name: "api", version: revision, fields: fields(limit) }],
                overrides: [],
                tokens: [],
              }),
            answerWith: resolve,
            fail: () => reject(new Error("killed")),
          });
        }),
    }),
    inBackground: (work) => {
      const sinceMs = time.nowMs;
      void work.then(() => prolongedMs.push(time.nowMs - sinceMs));
    },
    onTokens: () => undefined,
    counter: {
      add: (metric, labels) => counted.push([metric, labels[0]]),
      lasted: (metric, _, ms) => counted.push([metric, ms]),
    },
  });
  const limit = () => inForce.named.get("api")?.rules[0].capacity;
  /** Lets so much time pass; a call begins at its end. Returns after how long it may go on, in milliseconds. */
  const callAfter = (ms: number, caller?: "stranger" | "holder") => {
    const begun = { waitedMs: undefined as number | undefined };
    time.at(time.nowMs + ms, () => {
      const sinceMs = time.nowMs;
      const late = reader.freshen(caller);
      if (late === undefined) begun.waitedMs = 0;
      else void late.then(() => (begun.waitedMs = time.nowMs - sinceMs));
    });
    return begun;
  };
  const pass = (ms: number) => time.run(time.nowMs + ms, () => undefined);
  return { asked, counted, prolongedMs, inForce, limit, callAfter, pass, reader, time };
}

test("the first call waits for the answer, and those after it go on by that for five seconds, less an eighth", async () => {
  const { asked, limit, callAfter, pass, time } = isolate();
  const first = callAfter(0);
  time.at(30, () => asked[0]?.answer(7, 1));
  const next = callAfter(0.875 * ASK_AFTER_MS - 1);
  await pass(0.875 * ASK_AFTER_MS - 1);
  expect([first.waitedMs, next.waitedMs, asked.length, limit()]).toEqual([30, 0, 1, 7]);
});

test("isolates that begin together ask at other times a minute later, and as often as every five seconds", async () => {
  const spread = new Set<number>();
  let messages = 0;
  for (let each = 0; each < 50; each += 1) {
    const { asked, callAfter, pass, time } = isolate();
    // Their first calls come within a second.
    const beganMs = 20 * each;
    for (let ms = 0; ms < 60_000; ms += 50) {
      const { length } = asked;
      callAfter(ms === 0 ? beganMs : 50);
      await pass(ms === 0 ? beganMs : 50);
      if (asked.length > length) time.at(time.nowMs, () => asked.at(-1)?.answer(7, asked.length));
    }
    const gaps = asked.slice(1).map(({ atMs }, index) => atMs - (asked[index]?.atMs ?? 0));
    expect(Math.min(...gaps)).toBeGreaterThanOrEqual(0.875 * ASK_AFTER_MS);
    expect(Math.max(...gaps)).toBeLessThanOrEqual(1.125 * ASK_AFTER_MS + 50);
    messages += gaps.length;
    spread.add(Math.floor(((asked.at(-1)?.atMs ?? 0) / 1_000) % 5));
  }
  expect(spread.size).toBe(5);
  expect(messages / 50).toBeGreaterThan(10.5);
  expect(messages / 50).toBeLessThan(12.5);
});

test("a call waits for nobody while the last answer is young, and does when it is old", async () => {
  const { asked, callAfter, pass, time } = isolate();
  callAfter(0);
  time.at(0, () => asked[0]?.answer(7, 1));
  const young = callAfter(MAX_AGE_MS - 1);
  await pass(MAX_AGE_MS);
  expect([young.waitedMs, asked.length]).toEqual([0, 2]);
  time.at(time.nowMs, () => asked[1]?.answer(8, 2));
  const old = callAfter(MAX_AGE_MS + 1);
  time.at(time.nowMs + MAX_AGE_MS + 51, () => asked[2]?.answer(9, 3));
  await pass(2 * MAX_AGE_MS);
  expect([old.waitedMs, asked.map(({ since }) => since)]).toEqual([50, [0, 1, 2]]);
});

test("a catalog that hangs holds up calls for a second, once, and its answer counts whenever it comes", async () => {
  const { asked, limit, callAfter, pass, time } = isolate();
  const first = callAfter(0);
  const calls = [300, 999, 1_000, 1_500, 2_999].map((ms) => callAfter(ms));
  time.at(3_000, () => asked[0]?.answer(7, 1));
  await pass(3_001);
  expect([first, ...calls].map(({ waitedMs }) => waitedMs)).toEqual([DEADLINE_MS, 700, 1, 0, 0, 0]);
  expect([asked.length, limit()]).toEqual([1, 7]);
  expect(console.warn).not.toHaveBeenCalled();
});

test("a message without an answer is lost after five seconds, and from then on nobody waits", async () => {
  const { asked, counted, limit, callAfter, pass, time } = isolate();
  callAfter(0);
  callAfter(LOST_AFTER_MS);
  await pass(LOST_AFTER_MS);
  expect(counted).toEqual([["catalog_failures", "file"]]);
  expect(console.warn).toHaveBeenCalledOnce();
  const calls = Array.from({ length: 100 }, (_, each) => callAfter(500 * each));
  await pass(50_000);
  expect(calls.map(({ waitedMs }) => waitedMs)).toEqual(calls.map(() => 0));
  time.at(time.nowMs, () => asked.at(-1)?.answer(7, 1));
  await pass(1);
  expect(limit()).toBe(7);
});

test("after a lost message the next call asks at once, and a change applies within ten seconds of the catalog's return", async () => {
  const { asked, limit, callAfter, pass, time } = isolate();
  callAfter(0);
  time.at(0, () => asked[0]?.answer(7, 1));
  const calls = Array.from({ length: 100 }, (_, each) => callAfter(500 + 500 * each));
  // Messages hang for a while, and the last of them was sent just before the catalog is back.
  const backAtMs = 25_100;
  for (let ms = 1; ms < backAtMs + 10_000; ms += 50)
    time.at(ms, () => {
      const latest = asked.at(-1);
      if ((latest?.atMs ?? 0) >= backAtMs) latest?.answer(8, 2);
    });
  await pass(backAtMs);
  expect(limit()).toBe(7);
  const gaps = asked.slice(2).map(({ atMs }, index) => atMs - (asked[index + 1]?.atMs ?? 0));
  expect(Math.max(...gaps)).toBeLessThanOrEqual(LOST_AFTER_MS + 500);
  await pass(8_000);
  expect(limit()).toBe(8);
  await pass(50_000);
  expect(Math.max(...calls.map(({ waitedMs }) => waitedMs ?? Infinity))).toBeLessThanOrEqual(DEADLINE_MS);
});

test("an overtaken answer brings nothing, an overtaken failure means nothing, and a late one undoes nothing", async () => {
  const { asked, counted, limit, pass, reader, time } = isolate();
  for (const ms of [0, 10, 20, 21]) time.at(ms, () => void reader.ask());
  time.at(22, () => asked[2]?.fail());
  time.at(30, () => asked[1]?.answer(8, 2));
  time.at(40, () => asked[0]?.answer(7, 1));
  await pass(50);
  expect([limit(), reader.askedAtMs, counted]).toEqual([8, 1_000_010, []]);
  time.at(60, () => asked[3]?.fail());
  await pass(20);
  expect([limit(), reader.askedAtMs, counted.length]).toEqual([8, 1_000_010, 2]);
});

test("a request whose caller holds a lease is prolonged by a second at most, and its message's answer counts", async () => {
  const { asked, counted, prolongedMs, limit, callAfter, pass, time } = isolate();
  callAfter(0, "holder");
  time.at(3_000, () => asked[0]?.answer(7, 1));
  await pass(3_000);
  expect([prolongedMs, limit(), counted]).toEqual([[DEADLINE_MS], 7, []]);
  callAfter(MAX_AGE_MS, "holder");
  // The request has ended, so a later one finds the message lost.
  callAfter(MAX_AGE_MS + LOST_AFTER_MS);
  await pass(MAX_AGE_MS + LOST_AFTER_MS);
  expect(counted.map(([metric]) => metric)).toEqual(["catalog_failures", "catalog_age_seconds"]);
});

test("a snapshot is in force when all its pages are there, however slowly they come, and is as old as the last message", async () => {
  const { asked, counted, inForce, limit, callAfter, pass, prolongedMs, reader, time } = isolate();
  const fields = { algorithm: "token-bucket", limit: 7, window: "1s" };
  const nothing = { revision: 3, isWhole: false, policies: [], overrides: [], tokens: [] };
  const everything = { ...nothing, isWhole: true, policies: [{ name: "api", version: 3, fields }] };
  const later = { ...nothing, revision: 4, policies: [{ name: "made", version: 4, fields }] };
  const text = JSON.stringify(everything);
  const [slowMs, length] = [0.8 * LOST_AFTER_MS, Math.ceil(text.length / 3)];
  callAfter(0);
  for (const [page, atMs] of [slowMs, 2 * slowMs, 3 * slowMs].entries()) {
    const part = text.slice(page * length, (page + 1) * length);
    const snapshot = { id: "one", page, pages: 3, text: part };
    time.at(atMs, () => asked[page]?.answerWith({ ...(page === 2 ? later : nothing), snapshot }));
    const call = callAfter(slowMs - 1);
    await pass(slowMs - 1);
    expect([limit(), inForce.isComplete, inForce.named.has("made")]).toEqual([100, false, false]);
    expect(call.waitedMs ?? 0).toBe(0);
    await pass(1);
  }
  expect([limit(), inForce.revision, inForce.named.has("made")]).toEqual([7, 4, true]);
  expect([asked.length, counted, reader.askedAtMs]).toEqual([3, [], 1_000_000 + 2 * slowMs]);
  // The runtime ends what a request still does when it is no longer kept.
  expect(prolongedMs).toEqual([3 * slowMs]);
});

test("an answer ends the pause after failures", async () => {
  const { asked, callAfter, pass, reader, time } = isolate();
  callAfter(0);
  time.at(0, () => asked[0]?.answer(7, 1));
  for (let each = 0; each < 100; each += 1) {
    const { length } = asked;
    callAfter(1_000);
    await pass(1_000);
    if (asked.length > length) time.at(time.nowMs, () => asked.at(-1)?.fail());
    await pass(0);
  }
  const { length } = asked;
  time.at(time.nowMs, () => void reader.ask());
  time.at(time.nowMs, () => asked[length]?.answer(8, 2));
  callAfter(ASK_AFTER_MS);
  await pass(ASK_AFTER_MS);
  expect(asked).toHaveLength(length + 2);
});

test("a caller who only the catalog may know waits for it, also after failures, until it was reached once", async () => {
  const { asked, callAfter, pass, time } = isolate();
  callAfter(0);
  time.at(1, () => asked[0]?.fail());
  const known = callAfter(ASK_AFTER_MS);
  const stranger = callAfter(ASK_AFTER_MS, "stranger");
  time.at(ASK_AFTER_MS + 20, () => asked[1]?.answer(7, 1));
  await pass(ASK_AFTER_MS + 20);
  expect([known.waitedMs, stranger.waitedMs, asked.length]).toEqual([0, 20, 2]);
  const old = callAfter(MAX_AGE_MS);
  time.at(time.nowMs + MAX_AGE_MS + 10, () => asked[2]?.fail());
  const later = callAfter(MAX_AGE_MS + ASK_AFTER_MS + 10, "stranger");
  await pass(MAX_AGE_MS + ASK_AFTER_MS + 10);
  expect(old.waitedMs).toBe(10);
  expect([later.waitedMs, asked.length]).toEqual([0, 4]);
});

test("after each failure an isolate asks again in time for changes to apply; sooner while it knows only the file", async () => {
  for (const [isWarm, pausesMs] of [
    [false, [1_000, 2_000, 4_000, 5_000, 5_000, 5_000]],
    [true, [5_000, 5_000, 5_000, 5_000, 5_000, 5_000]],
  ] as const) {
    const { asked, counted, callAfter, pass, time } = isolate();
    callAfter(0);
    time.at(0, () => (isWarm ? asked[0]?.answer(7, 1) : asked[0]?.fail()));
    await pass(0);
    const failedAtMs: number[] = isWarm ? [] : [0];
    for (let each = 0; each < 300_000; each += 100) {
      const { length } = asked;
      callAfter(100);
      await pass(100);
      if (asked.length === length) continue;
      time.at(time.nowMs, () => asked.at(-1)?.fail());
      await pass(0);
      failedAtMs.push(asked.at(-1)?.atMs ?? 0);
    }
    const pauses = failedAtMs.slice(1).map((ms, index) => ms - (failedAtMs[index] ?? 0));
    for (const [index, ms] of pausesMs.entries()) {
      expect(pauses[index]).toBeGreaterThanOrEqual(0.75 * ms);
      expect(pauses[index]).toBeLessThanOrEqual(ms + 100);
    }
    // Those that failed at other instants come again at others.
    expect(new Set(pausesMs.map((ms, index) => ms - (pauses[index] ?? 0))).size).toBeGreaterThan(3);
    const failures = counted.filter(([metric]) => metric === "catalog_failures");
    expect(failures).toEqual(failedAtMs.map(() => ["catalog_failures", isWarm ? "catalog" : "file"]));
    // A line in ten seconds at most.
    expect(vi.mocked(console.warn).mock.calls.length).toBeLessThanOrEqual(1 + time.nowMs / 10_000);
    vi.mocked(console.warn).mockClear();
    const ages = counted.filter(([metric]) => metric === "catalog_age_seconds").map(([, ms]) => ms);
    expect(ages).toEqual(isWarm ? failedAtMs : []);
  }
});

/** How a message ends, and after how many milliseconds. */
const fate = fc.record({
  ending: fc.constantFrom("answer", "answer", "failure", "silence"),
  afterMs: fc.oneof(fc.integer({ min: 0, max: 50 }), fc.integer({ min: 0, max: 2 * LOST_AFTER_MS })),
});
const gap = fc.oneof(fc.integer({ min: 0, max: 500 }), fc.integer({ min: 0, max: 20_000 }));

test("however messages end: one at a time, no call waits over a second, and the latest answer is in force", async () => {
  const runs = fc.asyncProperty(
    fc.array(fate, { maxLength: 40 }),
    fc.array(gap, { minLength: 1, maxLength: 80 }),
    async (fates, gaps) => {
      const { asked, inForce, callAfter, pass, reader, time } = isolate();
      const open = new Set<number>();
      let latest = { turn: -1, atMs: -Infinity };
      const send = (turn: number) => {
        const { ending, afterMs } = (isWell ? undefined : fates[turn]) ?? { ending: "answer", afterMs: 0 };
        open.add(turn);
        const sent = asked[turn];
        if (sent === undefined || ending === "silence") return;
        time.at(time.nowMs + afterMs, () => {
          open.delete(turn);
          if (ending === "failure") return sent.fail();
          if (turn > latest.turn) latest = { turn, atMs: sent.atMs };
          sent.answer(100 + turn, 1 + turn);
        });
      };
      let [watched, isWell] = [0, false];
      const calls: ReturnType<typeof callAfter>[] = [];
      for (const [index, ms] of [...gaps, ...Array.from({ length: 100 }, () => 1_000)].entries()) {
        isWell = index >= gaps.length;
        const call = callAfter(ms);
        calls.push(call);
        await pass(ms);
        for (; watched < asked.length; watched += 1) {
          const young = [...open].filter((turn) => time.nowMs - (asked[turn]?.atMs ?? 0) < LOST_AFTER_MS);
          expect(young).toEqual([]);
          send(watched);
        }
        await pass(0);
        if (latest.turn >= 0) expect(inForce.named.get("api")?.rules[0].capacity).toBe(100 + latest.turn);
        expect(inForce.isComplete).toBe(latest.turn >= 0);
        expect(reader.askedAtMs).toBe(1_000_000 + latest.atMs);
      }
      await pass(LOST_AFTER_MS);
      for (const { waitedMs } of calls) expect(waitedMs).toBeLessThanOrEqual(DEADLINE_MS);
      // The catalog was well for longer than a message is under way and the longest pause lasts.
      expect(time.nowMs - latest.atMs).toBeLessThanOrEqual(2 * LOST_AFTER_MS);
    },
  );
  await fc.assert(runs, { numRuns: 100 });
});

test("a catalog that is killed leaves in force what was known", async () => {
  const { asked, limit, callAfter, pass, time } = isolate();
  callAfter(0);
  time.at(0, () => asked[0]?.answer(7, 1));
  const after = callAfter(60_000);
  time.at(60_010, () => asked[1]?.fail());
  await pass(61_000);
  expect([after.waitedMs, limit()]).toEqual([10, 7]);
});
