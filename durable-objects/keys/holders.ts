import { callerIn } from "../../core/protocol/caller-keys.ts";

/**
 * An isolate, or a client in its caller's process, that reserves units of a key. It is in memory only: a crash forgets it, and the units that it has reserved
 * are covered by the key's record (storage/write-behind.ts).
 */
export interface Holder {
  /** The number of the last message that was accepted. One that is not higher is late or repeated, and is ignored. */
  readonly turn: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** Of each rule: the units that it has reported as used since it began, and those that it wanted last. */
  readonly used: readonly number[];
  readonly wanted: readonly number[];
  /** Until this instant its wishes count when units are shared out, unless it asks again. */
  readonly untilMs: number;
}

/** The most holders of one key, at about 300 bytes each. Further isolates reserve nothing and ask each time. */
const MOST_HOLDERS = 1_000;
/** Of those, the most clients of one caller: it cannot keep isolates from reserving. */
const MOST_OF_CALLER = 500;
/** A holder is remembered for this long after its end, in milliseconds: messages that it has sent may arrive later. */
const REMEMBERED_MS = 5_000;
/** About the bytes of memory that a holder takes, beside its hold. */
const HOLDER_BYTES = 300;

/** The holders of one key, by their ids. */
export class Holders {
  readonly #holders = new Map<string, Holder>();

  get size(): number {
    return this.#holders.size;
  }

  get bytes(): number {
    return HOLDER_BYTES * this.#holders.size;
  }

  get(id: string): Holder | undefined {
    return this.#holders.get(id);
  }

  /** Whether there is room to remember a holder. */
  hasRoomFor(id: string): boolean {
    const { size } = this.#holders;
    if (this.#holders.has(id)) return true;
    return size < MOST_OF_CALLER || (size < MOST_HOLDERS && this.#ofCallerOf(id) < MOST_OF_CALLER);
  }

  /** How many holders the caller of this one has; 0 for an isolate. */
  #ofCallerOf(id: string): number {
    const caller = callerIn(id);
    if (caller === undefined) return 0;
    let count = 0;
    for (const each of this.#holders.keys()) if (callerIn(each) === caller) count += 1;
    return count;
  }

  put(id: string, holder: Holder): void {
    this.#holders.set(id, holder);
  }

  /** Forgets the holders whose end was so long ago that no message of theirs can still arrive. */
  forgetEnded(nowMs: number): void {
    for (const [id, { untilMs }] of this.#holders)
      if (untilMs + REMEMBERED_MS <= nowMs) this.#holders.delete(id);
  }

  /** Units of a rule (by its index) that all holders but one want now. */
  wantedByOthers(id: string | undefined, index: number, nowMs: number): number {
    let units = 0;
    for (const [each, { wanted, untilMs }] of this.#holders)
      if (each !== id && untilMs > nowMs) units += wanted[index] ?? 0;
    return units;
  }
}
