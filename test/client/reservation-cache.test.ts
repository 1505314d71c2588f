import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { forPriority, type Policy } from "../../core/policies/policy.ts";
import { ofGroup } from "../../core/policies/seen-policy.ts";
import type { Reservation } from "../../core/reservations/reservation.ts";
import { marginMs, spendableMs } from "../../core/reservations/sizing.ts";
import { depth } from "../support/depth.ts";
import { parsePolicies } from "../support/milliseconds.ts";

const TTL_MS = 1_000;
const ENDS_MS = spendableMs(TTL_MS);
const FIELDS = { algorithm: "token-bucket", limit: 1_000, window: "1s", reservation: { ttl: TTL_MS } };
const POLICIES = parsePolicies({ one: FIELDS, other: FIELDS });
const ONE = policyOf("one");
const MAX_KEYS = 16_384;
const MAX_NAME_LENGTH = 2 ** 21;
/** Three times as many as it keeps, before the memory is measured. */
const BEFORE = 50_000;
// Of so many more what would leak is 30 MB, twice what is allowed, or 150 MB.
const SCANNED = BEFORE + depth(60_000, 300_000);

function policyOf(name: string): Policy {
  const policy = POLICIES.get(name);
  if (policy === undefined) throw new Error("no policy");
  return policy;
}

function makeCache(): ReservationCache {
  let made = 0;
  return new ReservationCache(() => {
    made += 1;
    return `isolate-${made}`;
  });
}

/** Opens a key and gets units for it, of which it uses one. */
function holdUnits(cache: ReservationCache, key: string, nowMs = 0): Reservation {
  const reservation = cache.open(ONE, key, nowMs);
  reservation.note(5, nowMs);
  const message = reservation.ask(0, nowMs);
  cache.hold(reservation);
  reservation.answered(
    message,
    { rules: [], reserved: { ttlMs: TTL_MS, isNew: false, units: { one: 5 } } },
    nowMs,
  );
  expect(reservation.spend(1, nowMs)).toBe(true);
  return reservation;
}

test("a reservation goes on in a later version that says the same, and ends when another candidate says it", () => {
  const cache = makeCache();
  const inForce = { version: 2, fields: "{}", candidate: 2 };
  const [first, later, other] = [
    inForce,
    { ...inForce, version: 3 },
    { ...inForce, version: 5, candidate: 5 },
  ];
  const reservation = cache.open({ ...ONE, inForce: first }, "a", 0);
  expect(cache.open({ ...ONE, inForce: later }, "a", 0)).toBe(reservation);
  expect(cache.open({ ...ONE, inForce: other }, "a", 0)).not.toBe(reservation);
});

const keysIn = (ended: ReturnType<ReservationCache["endDue"]>) => ended.map(({ returned }) => returned.key);

test("a key has one reservation, and another policy's is another one", () => {
  const cache = makeCache();
  const made = cache.open(ONE, "a", 0);
  expect(cache.open(ONE, "a", 1)).toBe(made);
  expect(cache.find(ONE, "a")).toBe(made);
  expect(cache.open(policyOf("other"), "a", 1)).not.toBe(made);
  expect(cache.find(ONE, "b")).toBeUndefined();
  expect(cache.size).toBe(2);
});

test("in a burst on a key each call finds its reservation, until all end or the key has to go", () => {
  const cache = makeCache();
  const burst = () => {
    const opened = [1, 2, 3].map(() => cache.open(ONE, "a", 0));
    expect(new Set(opened).size).toBe(1);
    return opened[0];
  };
  const first = burst();
  expect(cache.open(policyOf("other"), "a", 0)).not.toBe(first);
  expect(burst()).toBe(first);
  cache.endAll();
  const second = burst();
  expect(second).not.toBe(first);
  for (let key = 0; key < MAX_KEYS; key += 1) cache.open(ONE, `other ${key}`, 0);
  expect(cache.find(ONE, "a")).toBeUndefined();
  expect(burst()).not.toBe(second);
});

test("the least recently used goes first, and its units are among what has to go back", () => {
  const cache = makeCache();
  const used = holdUnits(cache, "used");
  const gone = holdUnits(cache, "gone");
  for (let index = 2; index < MAX_KEYS; index += 1) cache.open(ONE, `key-${index}`, 0);
  expect(cache.open(ONE, "used", 1)).toBe(used);
  expect(cache.endDue(1)).toEqual([]);
  cache.open(ONE, "one more", 1);
  expect(cache.find(ONE, "used")).toBe(used);
  expect(cache.find(ONE, "gone")).toBeUndefined();
  expect(cache.isHolding).toBe(true);
  const returned = { key: "gone", holder: gone.holder, turn: 2, used: { one: 1 } };
  expect(cache.endDue(1)).toEqual([{ policy: ONE, returned }]);
  expect(cache.endDue(1)).toEqual([]);
  expect(gone.spend(1, 1)).toBe(false);
  expect(used.spend(1, 1)).toBe(true);
});

test("looking for a key without using it does not make it last", () => {
  const cache = makeCache();
  for (let index = 0; index < MAX_KEYS; index += 1) cache.open(ONE, `key-${index}`, 0);
  expect(cache.find(ONE, "key-0")).toBeDefined();
  cache.open(ONE, "one more", 0);
  expect(cache.find(ONE, "key-0")).toBeUndefined();
  expect(cache.find(ONE, "key-1")).toBeDefined();
});

test("it has so many keys and no more, and their names so many characters, however often they come and go", () => {
  const cache = makeCache();
  const long = (index: number) => `${index}`.padStart(512, "0");
  const mostLong = Math.floor(MAX_NAME_LENGTH / (512 + "one/".length));
  for (let round = 0; round < 2; round += 1) {
    for (let index = 0; index < 2 * mostLong; index += 1) cache.open(ONE, long(index), 0);
    expect(cache.size).toBe(mostLong);
    for (let index = 0; index < 2 * MAX_KEYS; index += 1) cache.open(ONE, `${index}`, 0);
    expect(cache.size).toBe(MAX_KEYS);
  }
  cache.endAll();
  for (let index = 0; index < 2 * mostLong; index += 1) cache.open(ONE, long(index), 0);
  expect(cache.size).toBe(mostLong);
});

test("a key that is used again and again counts once", () => {
  const cache = makeCache();
  const name = "k".repeat(512);
  for (let index = 0; index < 10_000; index += 1) cache.open(ONE, name, index);
  cache.open(ONE, "another", 10_000);
  expect(cache.find(ONE, name)).toBeDefined();
  expect(cache.size).toBe(2);
});

/** The collector of garbage, if this process lets one call it. */
function collector(): (() => void) | undefined {
  setFlagsFromString("--expose-gc");
  const collect: unknown = runInNewContext("globalThis.gc");
  return typeof collect === "function" ? (collect as () => void) : undefined;
}

test(`a scan of ${SCANNED} keys leaves the number of keys and the memory as they were`, () => {
  const cache = makeCache();
  const collect = collector();
  const heapBytes = () => {
    collect?.();
    return process.memoryUsage().heapUsed;
  };
  let beforeBytes = 0;
  for (let index = 0; index < SCANNED; index += 1) {
    if (index === BEFORE) beforeBytes = heapBytes();
    const reservation = cache.open(ONE, `key-${index}`, 0);
    // Every eighth has units that have to go back, and somebody sees to it now and then.
    if (index % 8 === 0) {
      reservation.ask(0, 0);
      cache.hold(reservation);
    }
    if (index % 1_000 === 0) cache.endDue(0);
  }
  expect(cache.size).toBe(MAX_KEYS);
  // A leak of all that came since would be half a kilobyte each: 500 MB of a million.
  if (collect !== undefined) expect(heapBytes() - beforeBytes).toBeLessThan(2 ** 24);
});

test("reservations end when their lifetime does, once, and not before", () => {
  const cache = makeCache();
  holdUnits(cache, "early", 0);
  holdUnits(cache, "late", 100);
  expect(cache.endDue(Math.ceil(ENDS_MS) - 1)).toEqual([]);
  expect(keysIn(cache.endDue(Math.ceil(ENDS_MS)))).toEqual(["early"]);
  expect(keysIn(cache.endDue(ENDS_MS + 200))).toEqual(["late"]);
  expect(cache.isHolding).toBe(false);
  expect(cache.endDue(ENDS_MS + 300)).toEqual([]);
});

test("one that waits for an answer does not end, and one whose answer never came does", () => {
  const cache = makeCache();
  const reservation = cache.open(ONE, "asking", 0);
  reservation.ask(0, 0);
  cache.hold(reservation);
  expect(cache.endDue(ONE.deadlineMs - 1)).toEqual([]);
  expect(cache.isHolding).toBe(true);
  expect(keysIn(cache.endDue(ONE.deadlineMs))).toEqual(["asking"]);
});

test("one that is ended by itself is settled there and nowhere else", () => {
  const cache = makeCache();
  const reservation = holdUnits(cache, "a");
  expect(cache.end(reservation)).toMatchObject({ key: "a", used: { one: 1 } });
  expect(cache.end(reservation)).toBeUndefined();
  expect(cache.isHolding).toBe(false);
  expect(cache.endDue(ENDS_MS)).toEqual([]);
});

test("a clock that is put back by more than the margin ends everything", () => {
  const cache = makeCache();
  const nowMs = cache.now(10_000);
  const held = ["a", "b"].map((key) => holdUnits(cache, key, nowMs));
  cache.open(ONE, "idle", nowMs);
  const backMs = nowMs - marginMs(TTL_MS) - 1;
  expect(cache.now(backMs)).toBe(backMs);
  expect(cache.size).toBe(0);
  expect(held.map((reservation) => reservation.spend(1, backMs))).toEqual([false, false]);
  expect(keysIn(cache.endDue(backMs))).toEqual(["a", "b"]);
  expect(cache.open(ONE, "a", backMs)).not.toBe(held[0]);
});

test("a clock that jitters by request ends nothing: the largest reading counts", () => {
  const cache = makeCache();
  const held = holdUnits(cache, "a", cache.now(10_000));
  for (const readMs of [10_003, 9_999, 10_001, 10_003 - marginMs(TTL_MS)])
    expect(cache.now(readMs)).toBe(10_003);
  expect(cache.open(ONE, "a", 10_003)).toBe(held);
  expect(held.spend(1, 10_003)).toBe(true);
});

test("a clock that is put back by a little, again and again, ends everything when it is too much together", () => {
  const cache = makeCache();
  const look = cache.watch();
  look(0, 10_000);
  const held = holdUnits(cache, "a", cache.now(10_000));
  const stepMs = marginMs(TTL_MS) / 2;
  // It stands still: each step of the timer puts it back by as much.
  const isSpent = [1, 2, 3].map(() => {
    look(stepMs, 10_000);
    return held.spend(1, cache.now(10_000));
  });
  expect(isSpent).toEqual([true, true, false]);
});

test("timers that are late, and a machine that sleeps, are no jump", () => {
  const cache = makeCache();
  const look = cache.watch();
  holdUnits(cache, "a", cache.now(10_000));
  let nowMs = 10_000;
  for (const lateMs of [0, 5, 40_000, 0, 3, 700]) {
    nowMs += 100 + lateMs;
    look(100, nowMs);
  }
  expect(cache.find(ONE, "a")).toBeDefined();
});

test("a clock that stands still ends nothing", () => {
  const cache = makeCache();
  const held = holdUnits(cache, "a", 1_000);
  expect(cache.open(ONE, "a", 1_000)).toBe(held);
});

test("no two holders have the same id: not of two keys, not of one key twice, not in two isolates", () => {
  const ids = new Set<string>();
  const caches = [new ReservationCache(() => "one"), new ReservationCache(() => "two")];
  for (const cache of caches) {
    for (let index = 0; index < MAX_KEYS + 10; index += 1) ids.add(cache.open(ONE, `key-${index}`, 0).holder);
    ids.add(cache.open(ONE, "key-0", 0).holder);
    ids.add(cache.open(policyOf("other"), "key-0", 0).holder);
    cache.endAll();
    ids.add(cache.open(ONE, "key-0", 0).holder);
  }
  expect(ids.size).toBe(2 * (MAX_KEYS + 13));
  expect([...ids].every((id) => /^(one|two)\./.test(id))).toBe(true);
});

test("nothing is random before the first key comes, and once is enough", () => {
  let made = 0;
  const cache = new ReservationCache(() => {
    made += 1;
    return "id";
  });
  expect(made).toBe(0);
  for (const key of ["a", "b"]) cache.open(ONE, key, 0);
  cache.endAll();
  cache.open(ONE, "c", 0);
  expect(made).toBe(1);
});

test("each group of a key has a reservation, whatever the names, and all of them are found by the key", () => {
  const cache = makeCache();
  const fair = parsePolicies({ one: { ...FIELDS, fair: true, reserve: { high: "20%" } } }).get("one");
  if (fair === undefined) throw new Error("no policy");
  const names = ["a", "a/b", "b", "b/c", "1:a", ":", ""];
  const views = names.map((group) => (group === "" ? fair : ofGroup(fair, { group })));
  const seen = views.flatMap((view) => [view, forPriority(view, "high")]);
  const opened = seen.flatMap((view) => ["a", "b/c", "/c"].map((key) => cache.open(view, key, 0)));
  expect(new Set(opened).size).toBe(cache.size);
  expect(cache.size).toBe(opened.length);
  for (const key of ["a", "b/c", "/c"]) {
    const ofKey = opened.filter((each) => each.key === key);
    expect(new Set(cache.all(fair, key))).toEqual(new Set(ofKey));
  }
  // Two callers that name one group share what is held for it.
  const [one, other] = ["one", "other"].map((namedBy) => ofGroup(fair, { group: "same", namedBy }));
  expect(cache.open(one ?? fair, "a", 0).holder).toBe(cache.open(other ?? fair, "a", 1).holder);
});
