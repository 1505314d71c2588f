import { expect, test, vi } from "vitest";
import { candidateCalls } from "../../client/objects/candidate-calls.ts";

const counter = { compared: () => undefined };
const calls = (background: Promise<unknown>[] = []) =>
  candidateCalls({ inBackground: (work) => void background.push(work), counter }, () => "client");

test("whoever called hears nothing of what goes wrong with a candidate", async () => {
  const warned = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  const background: Promise<unknown>[] = [];
  const candidates = calls(background);
  const thrown = () => {
    throw new Error("at once");
  };
  expect(candidates.make(thrown)).toBe(true);
  expect(candidates.make(() => Promise.reject(new Error("later")))).toBe(true);
  await Promise.all(background);
  expect(warned.mock.calls.map(([text]) => text as string)).toEqual([
    "a call to a candidate has failed: Error: at once",
    "a call to a candidate has failed: Error: later",
  ]);
  warned.mockRestore();
});

test("100 calls of a caller are with candidates at a time, and others when those are answered", async () => {
  const background: Promise<unknown>[] = [];
  const candidates = calls(background);
  let answer = () => undefined as void;
  const answered = new Promise<void>((done) => (answer = done));
  const made = Array.from({ length: 120 }, () => candidates.make(() => answered));
  expect(made.filter(Boolean)).toHaveLength(100);
  // What is decided at once takes no room, and finds none either.
  expect(candidates.make(() => undefined)).toBe(false);
  answer();
  await Promise.all(background);
  expect(candidates.make(() => answered)).toBe(true);
});

test("where nobody counts no call is made", () => {
  const ask = vi.fn();
  const candidates = candidateCalls({ inBackground: () => undefined, counter: undefined }, () => "client");
  expect(candidates.make(ask)).toBe(true);
  expect(ask).not.toHaveBeenCalled();
});
