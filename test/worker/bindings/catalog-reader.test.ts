/** What an isolate does when the catalog answers, is slow, fails, or answers out of turn. Time is virtual. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { CatalogChanges } from "../../../core/catalog/calls.ts";
import { PoliciesInForce } from "../../../core/catalog/policies-in-force.ts";
import { parseDeployment } from "../../../core/policies/parse-policies.ts";
import { ASK_AFTER_MS, CatalogReader, MAX_AGE_MS } from "../../../worker/bindings/catalog-reader.ts";
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
  const asked: { since: number; answer: (limit: number, revision: number) => void; fail: () => void }[] = [];
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
            answer: (limit, revision) =>
              resolve({
                revision,
                isWhole: since === 0,
                policies: [{ name: "api", version: revision, fields: fields(limit) }],
                overrides: [],
                tokens: [],
              }),
            fail: () => reject(new Error("killed")),
          });
        }),
    }),
    inBackground: (work) => void work,
    onTokens: () => undefined,
  });
  const limit = () => inForce.named.get("api")?.rules[0].capacity;
  /** Lets so much time pass; a call begins at its end. Returns after how long it may go on, in milliseconds. */
  const callAfter = (ms: number) => {
    const begun = { waitedMs: undefined as number | undefined };
    time.at(time.nowMs + ms, () => {
      const sinceMs = time.nowMs;
      const late = reader.freshen();
      if (late === undefined) begun.waitedMs = 0;
      else void late.then(() => (begun.waitedMs = time.nowMs - sinceMs));
    });
    return begun;
  };
  const pass = (ms: number) => time.run(time.nowMs + ms, () => undefined);
  return { asked, limit, callAfter, pass, time };
}

test("the first call waits for the answer, and those after it go on by that for five seconds", async () => {
  const { asked, limit, callAfter, pass, time } = isolate();
  const first = callAfter(0);
  time.at(30, () => asked[0]?.answer(7, 1));
  const next = callAfter(ASK_AFTER_MS - 1);
  await pass(ASK_AFTER_MS);
  expect([first.waitedMs, next.waitedMs, asked.length, limit()]).toEqual([30, 0, 1, 7]);
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

test("a catalog that hangs holds up calls for a second, once, and is asked again without anybody waiting", async () => {
  const { asked, limit, callAfter, pass, time } = isolate();
  const first = callAfter(0);
  await pass(DEADLINE_MS + 1);
  expect([first.waitedMs, limit()]).toEqual([DEADLINE_MS, 100]);
  expect(console.warn).toHaveBeenCalledOnce();
  const calls = Array.from({ length: 20 }, (_, second) => callAfter(1_000 * second));
  await pass(25_000);
  expect(calls.map(({ waitedMs }) => waitedMs)).toEqual(calls.map(() => 0));
  // Every five seconds at most.
  expect(asked.length).toBeLessThanOrEqual(6);
  const last = callAfter(2 * ASK_AFTER_MS);
  time.at(time.nowMs + 2 * ASK_AFTER_MS + 1, () => asked.at(-1)?.answer(7, 1));
  await pass(3 * ASK_AFTER_MS);
  expect([last.waitedMs, limit()]).toEqual([0, 7]);
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
