import { describe, expect, test } from "vitest";
import { plain, plainProblem } from "../../../worker/calls/plain-data.ts";

const detailOf = (argument: unknown) => plainProblem(argument)?.errors[0]?.detail;
const many = (count: number) =>
  Object.fromEntries(Array.from({ length: count }, (_, each) => [`u${each}`, 1]));

/** An array of so many items, of which none is there. */
function sparse(length: number): unknown[] {
  const items: unknown[] = [];
  items.length = length;
  return items;
}

describe("what a call over the binding is made of", () => {
  test("the largest call there is passes", () => {
    const check = { policy: "p".repeat(64), key: "k".repeat(512), cost: many(16), region: "eu" };
    expect(
      plainProblem({ checks: Array.from({ length: 16 }, () => check), idempotencyKey: "a" }),
    ).toBeUndefined();
  });

  test.each([
    [{ policy: "api", key: "a" }],
    [undefined],
    [null],
    [{ cost: undefined }],
    [Object.create(null)],
  ])("%j passes: what is wrong with it is the parser's to say", (argument) => {
    expect(plainProblem(argument)).toBeUndefined();
  });

  test.each([
    [{ cost: new Map([["requests", 5]]) }, "cost is a Map: must be plain data"],
    [{ cost: new Set([1]) }, "cost is a Set"],
    [{ key: new Date(0) }, "key is a Date"],
    [{ key: () => "a" }, "key is a function"],
    [{ key: 1n }, "key is a bigint"],
    [{ checks: [{ key: Symbol("a") }] }, "checks.0.key is a symbol"],
    [new URLSearchParams(), "the argument is a URLSearchParams"],
  ])("what JSON could not say is refused: %#", (argument, said) => {
    expect(detailOf(argument)).toContain(said);
  });

  test.each([
    [{ checks: sparse(3_000_000) }, "checks is an array of 3000000: must be one of at most 100"],
    [{ cost: many(3_000) }, "the call has over 2000 values"],
    [{ key: "k".repeat(100_000) }, "the call has over 16384 characters of text"],
    [{ a: { a: { a: { a: { a: { a: { a: { a: 1 } } } } } } } }, "a.a.a.a.a.a.a is over 7 levels deep"],
  ])("what HTTP could not carry is refused before it is looked at: %#", (argument, said) => {
    expect(detailOf(argument)).toContain(said);
  });

  test("a field that is undefined was left out, at any depth; all else is what it was", () => {
    const absent = { key: "a", cost: undefined, checks: [{ key: "b", region: undefined }, undefined, null] };
    expect(plain(absent)).toStrictEqual({ key: "a", checks: [{ key: "b" }, undefined, null] });
    expect(plain(undefined)).toBeUndefined();
    const whole = { key: "a", cost: { requests: 1 }, checks: [null] };
    expect(plain(whole)).toBe(whole);
    const hidden: unknown = JSON.parse('{ "__proto__": { "limit": 1 } }');
    expect(Object.keys(plain({ hidden: hidden as object, cost: undefined }).hidden)).toEqual(["__proto__"]);
  });

  test("a circle ends", () => {
    const circle: Record<string, unknown> = {};
    circle["self"] = circle;
    expect(detailOf(circle)).toContain("levels deep");
  });
});
