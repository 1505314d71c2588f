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

/** Bits for each number: one in so many of new keys is looked for in all segments. */
const BITS = 16;

/** Says of most new keys at once that no segment has them: where a thousand come a second there are over 100 segments. */
export class FirstLook {
  readonly #seed: string;
  readonly #isMixed: boolean;
  readonly #shift: number;
  readonly #bits: Uint8Array;

  constructor(segments: readonly Segment[]) {
    this.#seed = segments[0]?.seed ?? "";
    this.#isMixed = segments.some(({ seed }) => seed !== this.#seed);
    const count = segments.reduce((sum, { hashes }) => sum + hashes.length, 1);
    this.#shift = Math.clz32(BITS * count);
    this.#bits = new Uint8Array(2 ** (29 - this.#shift));
    for (const { hashes } of segments)
      for (const number of hashes) {
        const [byte, bit] = this.#place(number);
        this.#bits[byte] = (this.#bits[byte] ?? 0) | bit;
      }
  }

  mayFind(idempotencyKey: string): boolean {
    if (this.#isMixed) return true;
    const [byte, bit] = this.#place(hash(this.#seed + idempotencyKey));
    return ((this.#bits[byte] ?? 0) & bit) !== 0;
  }

  #place(number: number): readonly [byte: number, bit: number] {
    const place = number >>> this.#shift;
    return [place >>> 3, 1 << (place & 7)];
  }
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
