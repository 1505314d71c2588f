/** The calls that a test has seen, and what it asks of them. */
import type { Limiter } from "../client/limiter.ts";

/** The calls of a limiter, but not its end. */
export const METHODS = [
  "limit",
  "limitAll",
  "refund",
  "hold",
  "settle",
  "cancel",
  "acquire",
  "renew",
  "release",
  "peek",
  "reset",
  "policies",
] as const satisfies readonly (keyof Limiter)[];

/** The name of a call. */
export type Method = (typeof METHODS)[number];

/** One call that was made. */
export interface Call {
  readonly method: Method;
  /** What the caller said, as it was then: programs use an object again for the next call. */
  readonly asked: unknown;
  /** What it was answered. Absent: there is no answer yet, or it failed. */
  readonly answer?: unknown;
  /** What was thrown. */
  readonly error?: unknown;
}

/** A part of what a caller said. Fields that are not named may be anything. */
export type AskedLike = Readonly<Record<string, unknown>>;

/** The calls of this name that said this, among others. */
export function callsLike(calls: readonly Call[], method: Method, like: AskedLike = {}): readonly Call[] {
  return calls.filter((call) => call.method === method && isLike(call.asked ?? {}, like));
}

/**
 * A copy of what was said. What is no plain data stays what it is: a signal, or a function, is itself and no other.
 *
 * @param copies by what they are of: a circle comes back to its beginning
 */
export function copyOf(said: unknown, copies: Map<unknown, unknown> = new Map()): unknown {
  if (typeof said !== "object" || said === null) return said;
  const before = copies.get(said);
  if (before !== undefined) return before;
  const prototype: unknown = Object.getPrototypeOf(said);
  const isPlain = prototype === Object.prototype || prototype === null;
  if (!isPlain && !Array.isArray(said)) return said;
  const copy = Array.isArray(said) ? [] : (Object.create(prototype as object | null) as object);
  copies.set(said, copy);
  for (const [name, each] of Object.entries(said))
    Object.defineProperty(copy, name, { value: copyOf(each, copies), enumerable: true });
  return copy;
}

/** All calls as text, one a line. */
export function callsText(calls: readonly Call[]): string {
  const lines = calls.map(({ method, asked }) => `  ${method}(${JSON.stringify(asked) ?? ""})`);
  return lines.length === 0 ? "  nothing" : lines.join("\n");
}

/** Whether all that `like` has is the same in `value`. Arrays have to be as long. */
function isLike(value: unknown, like: unknown): boolean {
  if (typeof like !== "object" || like === null) return Object.is(value, like);
  if (typeof value !== "object" || value === null) return false;
  if (Array.isArray(like) && (!Array.isArray(value) || value.length !== like.length)) return false;
  const fields = value as Readonly<Record<string, unknown>>;
  return Object.entries(like).every(([name, each]) => isLike(fields[name], each));
}
