import { expect, test } from "vitest";
import { ownKey } from "../../../core/protocol/names.ts";
import { type KnownHolder, Holders } from "../../../durable-objects/keys/holders.ts";

const wanting = (wanted: number): KnownHolder => ({
  turn: 1,
  hold: "hold",
  atMs: 0,
  rules: new Map([["rule", { used: 0, wanted, demand: wanted, mayHave: 0 }]]),
  untilMs: 1_000,
});
const holder = wanting(1);

test("one caller's clients leave room for isolates and for other callers, and those that are there stay", () => {
  const holders = new Holders();
  const of = (caller: string, index: number) => ownKey(caller, `h${index}`);
  let [one, isolates] = [0, 0];
  for (; holders.hasRoomFor(of("one", one)) && one < 2_000; one += 1) holders.set(of("one", one), holder);
  expect(one).toBe(500);
  expect(holders.hasRoomFor(of("one", 0))).toBe(true);
  expect(holders.hasRoomFor(of("other", 0))).toBe(true);
  for (; holders.hasRoomFor(`isolate.${isolates}`) && isolates < 9_000; isolates += 1)
    holders.set(`isolate.${isolates}`, holder);
  expect(isolates).toBe(3_500);
  expect(holders.hasRoomFor(of("other", 0))).toBe(false);
});

test("one caller's clients count whole for each other, and for others as four that want all", () => {
  const holders = new Holders();
  const of = (index: number) => ownKey("one", `h${index}`);
  for (let index = 0; index < 10; index += 1) holders.set(of(index), wanting(100));
  const wantedBeside = (id: string) => holders.others(id, "rule", 100, 0).wanted;
  expect(wantedBeside(of(0))).toBe(900);
  expect(wantedBeside("isolate.1")).toBe(400);
  expect(wantedBeside(ownKey("other", "h"))).toBe(400);
});

test("holders that come at once are sent to their regions though they are few by then: more may wait behind them", () => {
  const holderAt = (atMs: number) => ({ turn: 1, atMs, hold: "h", untilMs: 10_000, rules: new Map() });
  const areSent = (everyMs: number) => {
    const holders = new Holders();
    for (let index = 0; index < 130; index += 1) {
      holders.set(String(index), holderAt(index * everyMs));
      if (holders.areForRegions(256, false, index * everyMs)) return true;
    }
    return false;
  };
  expect([areSent(1), areSent(5)]).toEqual([true, false]);
});

test("what holders need that wait for their first answer is left for them", () => {
  const holders = new Holders();
  holders.expected = new Map([["b", new Map([["rule", 3]])]]);
  expect(holders.shareOf("a", "rule", { said: 1, rate: 10 }, 0).share).toBe(1 / 4);
  expect(holders.shareOf("b", "rule", { said: 3, rate: 10 }, 0).share).toBe(1);
});
