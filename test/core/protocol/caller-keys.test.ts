import { expect, test } from "vitest";
import { randomId } from "../../../core/clock.ts";
import {
  type KeyRange,
  ownHoldId,
  ownKey,
  rangeOf,
  rangeOfEnds,
  sharedKey,
} from "../../../core/protocol/names.ts";

const [one, other] = [JSON.stringify({ token: "one" }), JSON.stringify({ token: "other" })];
const isWithin = (id: string, [from, to]: KeyRange) => from <= id && id < to;

test("a caller that writes its idempotency key as another's own key is stored does not find that one's answer", () => {
  const theirs = ownKey(other, "order");
  for (const written of [theirs, "\u0001order", "\u0001\u0001order"])
    expect(sharedKey(ownKey(one, written))).toBeUndefined();
  expect(sharedKey(ownKey(one, "order"))).toBe("order");
});

test("whatever a caller writes as an idempotency key is counted among its own", () => {
  for (const written of ["order", ownKey(other, "order"), "\u0002", "\u{10FFFF}", randomId()]) {
    expect(isWithin(ownKey(one, written), rangeOf(ownKey(one, "any")))).toBe(true);
    expect(isWithin(ownKey(one, written), rangeOf(ownKey(other, "any")))).toBe(false);
  }
});

test("ends of holds are counted with those of the same caller, and with nobody else's", () => {
  const ids = Array.from({ length: 1_000 }, () => ownHoldId(one, randomId()));
  expect(new Set(ids).size).toBe(1_000);
  expect(ids.every((id) => /^[\w-]{22}$/.test(id))).toBe(true);
  expect(ids.every((id) => isWithin(id, rangeOfEnds(ownHoldId(one, randomId()))))).toBe(true);
  for (const caller of [other, undefined])
    expect(ids.some((id) => isWithin(id, rangeOfEnds(ownHoldId(caller, randomId()))))).toBe(false);
});
