/**
 * A segment: a row with the answers to up to some hundred idempotent calls of one caller on one key. It also has a
 * number for each of their idempotency keys: a hash, with a seed that no caller knows, or many could be made
 * to have the same. All of this is stored: never change it.
 */
import { hash } from "../../core/protocol/names.ts";
import type { StoredAnswer } from "./records.ts";

export interface Segment {
  /** The beginning of the caller's range. */
  readonly from: string;
  /** It rises with each segment of the key. */
  readonly number: number;
  /** When its oldest answer was made, and its newest. */
  readonly startMs: number;
  readonly endMs: number;
  readonly seed: string;
  /** In ascending order. */
  readonly hashes: Uint32Array;
}

export type NamedSegment = Pick<Segment, "from" | "number" | "seed">;
export type Entry = readonly [idempotencyKey: string, request: string, answer: string, atMs: number];

/** Marks a segment's row among those of earlier versions: no request begins with it. */
export const MARK = "\u0003";
/** The digits of a number. */
const DIGITS = 7;

/** An answer that was removed. */
export const REMOVED: StoredAnswer = { request: "", answer: "", atMs: 0 };

export function answerIn([, request, answer, atMs]: Entry): StoredAnswer | undefined {
  return request === REMOVED.request ? undefined : { request, answer, atMs };
}

/** In place of an idempotency key. */
export function nameOf({ from, number }: Pick<Segment, "from" | "number">): string {
  return `${MARK}${from}${MARK}${number}`;
}

export function segmentNamed(name: string): Pick<Segment, "from" | "number"> | undefined {
  const end = name.lastIndexOf(MARK);
  return end > 0 ? { from: name.slice(1, end), number: Number(name.slice(end + 1)) } : undefined;
}

export function rowOf(segment: NamedSegment, entries: readonly Entry[]) {
  const times = entries.map(([, , , atMs]) => atMs);
  const numbers = entries.map(([id]) =>
    hash(segment.seed + id)
      .toString(36)
      .padStart(DIGITS, "0"),
  );
  return {
    idempotency_key: nameOf(segment),
    request: `${MARK}${Math.min(...times)} ${segment.seed} ${numbers.toSorted().join("")}`,
    answer: JSON.stringify(entries),
    at_ms: Math.max(...times),
  };
}

export function segmentIn(name: string, request: string, endMs: number): Segment {
  const { from = "", number = 0 } = segmentNamed(name) ?? {};
  const [startMs, seed = "", digits = ""] = request.slice(MARK.length).split(" ");
  const hashes = new Uint32Array(digits.length / DIGITS);
  for (let index = 0; index < hashes.length; index += 1)
    hashes[index] = Number.parseInt(digits.slice(index * DIGITS, (index + 1) * DIGITS), 36);
  return { from, number, startMs: Number(startMs), endMs, seed, hashes };
}

/** Whether a number is among these, which are in ascending order. */
export function includes(sorted: Uint32Array, number: number): boolean {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((sorted[middle] ?? 0) < number) low = middle + 1;
    else high = middle;
  }
  return sorted[low] === number;
}
