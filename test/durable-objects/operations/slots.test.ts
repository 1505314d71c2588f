/** The protocol by which a holder has slots, message by message. */
import { expect, test } from "vitest";
import type { Decided } from "../../../core/protocol/answers.ts";
import type { SlotsCall } from "../../../core/protocol/calls.ts";
import { ownKey } from "../../../core/protocol/names.ts";
import { LeasedKey as Key, LIMIT } from "../../support/leased-key.ts";

test("a message for another memory of the object changes nothing, however late it comes", () => {
  const key = new Key();
  const { memory, given } = key.take("holder-a", 8);
  expect(given).toMatchObject({ more: 8, isNew: false, isHome: false });
  key.crash();
  expect(key.slots({ turn: 2, memory, kept: 0 }).given).toBeUndefined();
  expect(key.peeked.outstanding).toBe(8);
  const { memory: now } = key.slots({ turn: 3, memory, kept: 8, wanted: 8 });
  expect(key.slots({ turn: 4, memory: now, kept: 8, wanted: 8 }).given).toMatchObject({
    more: 0,
    isNew: false,
  });
  expect(key.slots({ turn: 2, memory: now, kept: 0 }).given).toBeUndefined();
  expect(key.peeked.outstanding).toBe(8);
});

test("a holder whose claim has ended is told so until it hears, also if an answer is lost", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 8);
  key.nowMs += 60_000;
  for (const id of ["b1", "b2", "b3", "b4", "b5", "b6", "b7"]) expect(key.lease(id)).toBe(true);
  const first = key.slots({ turn: 2, memory, kept: 8, wanted: 8 }).given;
  expect(first).toMatchObject({ isNew: true, more: 3 });
  expect(key.slots({ turn: 3, memory, kept: 8, wanted: 8 }).given).toMatchObject({ isNew: true, more: 3 });
  expect(key.peeked.outstanding).toBe(LIMIT);
});

test("slots outlast a crash after a reset, and after their holder has come back", () => {
  for (const before of ["reset", "return"]) {
    const key = new Key();
    const { memory } = key.take("holder-a", 8);
    if (before === "reset") key.call({ op: "reset" });
    else key.nowMs += 60_000;
    key.slots({ turn: 2, memory, kept: before === "reset" ? 8 : 0, wanted: 8 });
    for (let turn = 3; turn < 30; turn += 1) {
      key.nowMs += 500;
      key.slots({ turn, heard: turn - 1, memory, kept: 8, wanted: 8, leased: 8 });
      expect(key.lease(`other-${turn}`, 3)).toBe(false);
    }
    key.crash();
    expect(key.peeked).toMatchObject({ outstanding: 8 });
  }
});

test("each holder is told that waits were ended until it has heard so, also one that only a row says", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 4);
  key.take("holder-b", 4);
  const agoMs = (call: Partial<SlotsCall>) =>
    key.slots({ memory, kept: 4, wanted: 4, ...call }).given?.waitsEndedAgoMs;
  expect(agoMs({ turn: 2, heard: 1 })).toBeUndefined();
  key.call({ op: "endWaits" });
  key.nowMs += 10;
  expect(agoMs({ turn: 3, heard: 2 })).toBe(10);
  expect(agoMs({ turn: 2, heard: 1, holder: "holder-b" })).toBe(10);
  // The answer to the third message is lost, that to the fourth is not.
  key.nowMs += 10;
  expect(agoMs({ turn: 4, heard: 2 })).toBe(20);
  expect(agoMs({ turn: 5, heard: 4 })).toBeUndefined();
  // A later end is told even if an earlier one is not heard of.
  key.call({ op: "endWaits" });
  expect(agoMs({ turn: 3, heard: 1, holder: "holder-b" })).toBe(0);
  key.crash();
  key.call({ op: "endWaits" });
  const now = key.slots({ turn: 6, heard: 5, memory, kept: 4, wanted: 4 }).memory;
  expect(agoMs({ turn: 7, heard: 5, memory: now })).toBe(0);
});

test("a holder whose key is forgotten is refused once, and has new slots with its next message", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 8);
  key.nowMs += 60_000;
  key.call({ op: "reset" });
  key.crash();
  const refused = key.slots({ turn: 2, memory, kept: 8, wanted: 8 });
  expect(refused).toEqual({ memory: expect.any(String) });
  expect(key.slots({ turn: 3, memory: refused.memory, kept: 8, wanted: 8 }).given).toMatchObject({
    more: 8,
    isNew: true,
  });
});

test("a lease that was handed over before a reset ends with it, also if the message arrives after the reset", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 8);
  key.nowMs += 3_000;
  key.call({ op: "reset" });
  key.nowMs += 10;
  const lease = (id: string, heldMs: number) =>
    ({ id, units: 1, ttlMs: 9_000, leftMs: 9_000, heldMs, fencingToken: 1 }) as const;
  const handed = [lease("hold-before", 2_000), lease("hold-after", 5)];
  const { given } = key.slots({ turn: 2, heard: 1, memory, kept: 6, wanted: 6, handed });
  expect(given).toMatchObject({ isNew: false, resetAgoMs: 10 });
  // Six are the holder's, and one is the lease that was granted since.
  expect(key.peeked.outstanding).toBe(7);
});

test("after a crash too each holder is told of a reset", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 8);
  key.crash();
  key.call({ op: "reset" });
  key.nowMs += 10;
  const { memory: now } = key.slots({ turn: 2, heard: 1, memory, kept: 8, wanted: 8 });
  expect(key.slots({ turn: 3, heard: 1, memory: now, kept: 8, wanted: 8 }).given?.resetAgoMs).toBe(10);
});

test("a tenth of the slots may rest, while a further tenth is free and nobody waits", () => {
  const key = new Key("many");
  const rest = { units: 60, ms: 12_000 };
  const { memory, given } = key.slots({ turn: 1, rest });
  expect(given).toMatchObject({ more: 60, restMs: 12_000, tokens: [expect.any(Number), expect.any(Number)] });
  // Of many rests none is longer than the longest, and a holder that is refused one gets what it needs without.
  expect(key.slots({ holder: "holder-b", turn: 1, wanted: 3, rest }).given).toMatchObject({ more: 3 });
  expect(
    key.slots({ holder: "holder-b", turn: 2, memory, heard: 1, kept: 3, rest }).given?.restMs,
  ).toBeUndefined();
  const long = key.slots({ holder: "holder-c", turn: 1, rest: { units: 40, ms: 99_000 } }).given;
  expect(long).toMatchObject({ more: 40, restMs: 15_000, lifeMs: 17_000 });
  for (let taken = 0; taken < 790; taken += 1) expect(key.lease(`lease-${taken}`)).toBe(true);
  const again = { turn: 2, memory, heard: 1, kept: 60 };
  expect(key.slots({ ...again, rest }).given).toMatchObject({ more: 0, restMs: 12_000 });
  key.lease("lease-of-many", 50);
  expect(key.slots({ ...again, turn: 3, rest }).given?.restMs).toBeUndefined();
});

test("a client and a holder of a small limit do not rest", () => {
  const rest = { units: 1, ms: 10_000 };
  const [few, many] = [new Key("few"), new Key("many")];
  expect(few.slots({ turn: 1, rest }).given).toMatchObject({ more: 0 });
  expect(many.slots({ holder: ownKey("caller", "process"), turn: 1, rest }).given).toMatchObject({ more: 0 });
});

test("slots of a holder that rests are taken until its life and the longest of its leases are over, also by a crash", () => {
  for (const crashes of [false, true]) {
    const key = new Key("many");
    const { given } = key.slots({ turn: 1, rest: { units: 5, ms: 12_000 } });
    key.nowMs += (given?.lifeMs ?? 0) + 10_000;
    if (crashes) key.crash();
    expect(key.peeked.outstanding).toBe(5);
    key.nowMs += 60_000;
    expect(key.peeked.outstanding).toBe(0);
  }
});

test("after a crash a holder that rests is told of an end that came elsewhere, also after a long silence", () => {
  const key = new Key("many");
  key.slots({ holder: "hold-a", turn: 1, rest: { units: 5, ms: 12_000 } });
  key.crash();
  const id = "holdlease";
  expect(key.call({ op: "renew", id, mayBeYoung: true })).toEqual({ young: true });
  key.nowMs += 11_000;
  expect(key.call({ op: "release", id, mayBeYoung: true })).toEqual({ released: true });
  const { memory } = key.slots({ holder: "hold-a", turn: 2, heard: 1, kept: 5 });
  const { given } = key.slots({ holder: "hold-a", turn: 3, heard: 1, memory, kept: 5, leased: 1 });
  expect(given?.ended).toEqual([id]);
});

test("a lease that is handed over is the object's, once, and ends by its id", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 5);
  const lease = { id: "holdlease", units: 2, ttlMs: 10_000, leftMs: 9_000, fencingToken: 5 };
  key.slots({ turn: 2, memory, kept: 3, wanted: 3, handed: [lease] });
  expect(key.peeked.outstanding).toBe(5);
  expect(key.call({ op: "release", id: lease.id })).toEqual({ released: true });
  // The answer was lost: it is handed over again.
  key.slots({ turn: 3, memory, kept: 3, wanted: 3, handed: [lease] });
  expect(key.peeked.outstanding).toBe(3);
  expect(key.call({ op: "release", id: lease.id })).toEqual({ missing: true });
});

test("a lease that ended elsewhere before it is handed over frees its slot, and its holder hears of it", () => {
  const key = new Key();
  const { memory } = key.take("hold-a", 5);
  const lease = { id: "holdlease", units: 1, ttlMs: 10_000, leftMs: 9_000, fencingToken: 5 };
  expect(key.call({ op: "renew", id: lease.id, mayBeYoung: true })).toEqual({ young: true });
  expect(key.call({ op: "release", id: lease.id, mayBeYoung: true })).toEqual({ released: true });
  expect(key.call({ op: "release", id: lease.id, mayBeYoung: true })).toEqual({ missing: true });
  const of = { holder: "hold-a", memory, kept: 4, wanted: 4 };
  expect(key.slots({ ...of, turn: 2, heard: 1, handed: [lease] }).given?.ended).toEqual([lease.id]);
  expect(key.peeked.outstanding).toBe(4);
  expect(key.slots({ ...of, turn: 3, heard: 2 }).given?.ended).toEqual([]);
});

test("of many holders each is heard of rarely, and its lease may be young for as long", () => {
  const key = new Key("many");
  for (let each = 0; each < 300; each += 1) key.take(`other-${each}`, 1);
  const { memory } = key.take("hold-a", 1);
  const renew = { op: "renew", id: "holdlease", mayBeYoung: true };
  const of = { holder: "hold-a", memory, kept: 1, wanted: 1 };
  expect(key.slots({ ...of, turn: 2, heard: 1 }).given?.paceMs).toBe(1_204);
  expect(key.call(renew)).toEqual({ young: true });
  for (const [afterMs, answer] of [
    [1_204, { young: true }],
    [1_204, { young: true }],
    [1_204, { missing: true }],
  ] as const) {
    key.nowMs += afterMs;
    key.slots({ ...of, turn: 2 + key.nowMs, heard: 2 });
    expect(key.call(renew)).toEqual(answer);
  }
});

test("while calls of others wait, slots go home; a holder's own calls that wait do not send them away", async () => {
  const key = new Key();
  const { memory } = key.take("hold-a", 9);
  key.lease("last", 1);
  const waiting = { op: "lease", cost: 1, ttlMs: 10_000, waitMs: 5_000 };
  const own = key.call({ ...waiting, id: "one", mark: "hold" }) as Promise<Decided>;
  const of = { holder: "hold-a", memory, wanted: 9 };
  expect(key.slots({ ...of, turn: 2, kept: 9 }).given).toMatchObject({ isHome: false, most: 9 });
  const others = key.call({ ...waiting, id: "two", mark: "else" }) as Promise<Decided>;
  expect(key.slots({ ...of, turn: 3, kept: 9 }).given).toMatchObject({ isHome: true, most: 0 });
  key.slots({ ...of, turn: 4, kept: 7, leased: 7 });
  expect((await own).lease?.id).toBe("one");
  expect((await others).lease?.id).toBe("two");
});

/** Holders of callers' clients, as the worker names them. */
const client = (caller: string, name: string) => ownKey(caller, name);

test("a client has what it was given: if it says more it has that anew, and nothing is owed to it", () => {
  const key = new Key();
  const holder = client("a", "client");
  const { memory, given } = key.take(holder, 100);
  expect(given).toMatchObject({ more: 9, most: 9 });
  const lying = { holder, memory, wanted: 100, leased: 9, ttlMs: 0 };
  expect(key.slots({ ...lying, turn: 2, kept: 10 }).given).toMatchObject({ isNew: true, more: 9 });
  expect(key.lease("other", 1)).toBe(true);
  for (let other = 0; other < 20; other += 1)
    key.slots({ holder: client("a", `${other}`), turn: 1, wanted: 100 });
  key.call({ op: "release", id: "other" });
  expect(key.lease("another", 1)).toBe(true);
  expect(key.peeked.outstanding).toBe(LIMIT);
});

test("a client's slots are free at the end of its time, however long its leases would last", () => {
  const key = new Key();
  const { given } = key.take(client("a", "client"), 8);
  const isolate = new Key();
  isolate.take("holder-a", 8);
  const atMs = key.nowMs;
  const { lifeMs } = key.slots({ holder: client("a", "client"), turn: 1 }).given ?? given;
  for (const [afterMs, outstanding] of [
    [lifeMs, 8],
    [lifeMs + 300, 0],
  ] as const) {
    key.nowMs = atMs + afterMs;
    key.lease(`look-${afterMs}`, 0);
    expect(key.peeked.outstanding).toBe(outstanding);
  }
  isolate.nowMs += lifeMs + 300;
  expect(isolate.peeked.outstanding).toBe(8);
});

test("the rows of a key without calls end with its slots, at the cost of a row for each holder that gave none back", () => {
  for (const [holder, endMs, isSilent] of [
    [client("a", "client"), 300, true],
    ["holder-a", 10_300, true],
    [client("a", "client"), 300, false],
  ] as const) {
    const key = new Key();
    const ttlMs = endMs - 300;
    const { memory, given } = key.take(holder, 8);
    const { rows } = key.traces;
    // Each message makes its life longer, and no row is written.
    for (let turn = 2; turn < 8; turn += 1) {
      key.rest(1_000);
      key.slots({
        holder,
        ttlMs,
        turn,
        heard: turn - 1,
        memory,
        kept: 8,
        leased: 8,
        wanted: 8,
        granted: turn,
      });
    }
    expect(key.traces).toMatchObject({ rows, timers: 1 });
    if (!isSilent) key.slots({ holder, ttlMs, turn: 8, heard: 7, memory, kept: 0 });
    const before = key.traces.rows;
    key.rest(given.lifeMs + 300);
    expect(key.traces).toEqual({ rows: before + Number(isSilent), timers: 0 });
    key.crash();
    key.rest(endMs - 301);
    if (isSilent && endMs > 300) expect(key.peeked.outstanding).toBe(8);
    key.rest(1);
    expect(key.peeked.outstanding).toBe(0);
  }
});

test("slots that were free at the end of a client's time, and are leased to others, are not its own after a crash", () => {
  const key = new Key();
  const holder = client("a", "client");
  const { memory, given } = key.take(holder, 6);
  key.nowMs += given.lifeMs + 300;
  for (let each = 0; each < 7; each += 1)
    key.call({ op: "lease", id: `lease-${each}`, cost: 1, ttlMs: 5_000, waitMs: 0 });
  key.crash();
  expect(key.peeked.outstanding).toBe(7);
  const late = { holder, turn: 2, heard: 1, kept: 6, wanted: 6, ttlMs: 0 };
  const { memory: next } = key.slots({ ...late, memory });
  expect(key.slots({ ...late, memory: next, turn: 3 }).given).toMatchObject({ isNew: true, more: 3 });
});

test("the clients of one caller have half of the slots while others want some, however many they are", () => {
  const key = new Key();
  key.take("holder-a", 4);
  let units = 0;
  for (let each = 0; each < 10; each += 1) units += key.take(client("a", `client-${each}`), 1_000).given.more;
  expect(units).toBe(LIMIT / 2);
});

test("a lease of a client that is released elsewhere is told to it, by the mark in its name", () => {
  const key = new Key();
  const holder = client("a", "hold-client");
  const { memory } = key.take(holder, 5);
  expect(key.call({ op: "release", id: "holdlease", mayBeYoung: true })).toEqual({ released: true });
  const { given } = key.slots({ holder, memory, turn: 2, heard: 1, kept: 5, leased: 1, wanted: 5, ttlMs: 0 });
  expect(given?.ended).toEqual(["holdlease"]);
});

test("a holder has fencing tokens for more leases than it grants between two messages, and none is given twice", () => {
  const key = new Key();
  let { memory, given } = key.take("holder-a", 8);
  const counts: number[] = [];
  let granted = 0;
  for (let turn = 2; turn < 12; turn += 1) {
    const [from = 0, end = 0] = given.tokens;
    counts.push(end - from);
    granted += Math.min(end - from, 6_000);
    key.nowMs += 500;
    const said = key.slots({ turn, heard: turn - 1, memory, kept: 8, wanted: 8, granted, released: granted });
    if (said.given === undefined) throw new Error("nothing was given");
    expect(said.given.tokens[0]).toBeGreaterThanOrEqual(end);
    ({ given, memory } = { given: said.given, memory: said.memory });
  }
  expect(counts.slice(0, 4)).toEqual([1_000, 4_000, 16_000, 24_000]);
  // Without leases they become fewer again, as many were given in vain.
  for (let turn = 12; turn < 20; turn += 1) {
    const said = key.slots({ turn, heard: turn - 1, memory, kept: 8, wanted: 8, granted, released: granted });
    if (said.given !== undefined) given = said.given;
  }
  expect((given.tokens[1] ?? 0) - (given.tokens[0] ?? 0)).toBe(1_000);
});

test("a holder that says too many leases moves fencing tokens ahead of the clock by little", () => {
  const key = new Key();
  const { memory } = key.take("holder-a", 8);
  let [lastEnd, granted] = [0, 0];
  for (let turn = 2; turn < 200; turn += 1) {
    granted += 1e12;
    const { given } = key.slots({ turn, heard: turn - 1, memory, kept: 8, wanted: 8, granted });
    lastEnd = given?.tokens[1] ?? 0;
  }
  expect(lastEnd / 1_000 - key.nowMs).toBeLessThan(1_000 + 66 + 200);
});

test("a holder is told when the last lease ends that is not its own, also of those that it hands over", () => {
  const key = new Key();
  const { memory, given } = key.take("holder-a", 4);
  expect(given).toMatchObject({ remaining: LIMIT - 4, resetAfterMs: 0 });
  key.lease("b1");
  key.nowMs += 2_000;
  const lease = { id: "a1", units: 1, ttlMs: 10_000, leftMs: 3_000, fencingToken: 1 };
  const again = { memory, kept: 3, wanted: 3 };
  expect(key.slots({ ...again, turn: 2, handed: [lease] }).given?.resetAfterMs).toBe(58_000);
  key.call({ op: "release", id: "b1" });
  key.nowMs += 1_000;
  expect(key.slots({ ...again, turn: 3 }).given?.resetAfterMs).toBe(2_000);
});
