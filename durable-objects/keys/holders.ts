/**
 * What the object knows of a holder, an isolate that reserves units of a key. Only memory has it: a crash forgets it, and
 * the key's record covers what was reserved (write-behind.ts).
 */
export interface Holder {
  /** The last message that counted; earlier ones that arrive later do not. */
  readonly turn: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** By rule: units that the holder has reported as used since it began, and those it wanted last. */
  readonly used: readonly number[];
  readonly wanted: readonly number[];
  /** The holder competes with others for units until this instant, unless it asks again. */
  readonly untilMs: number;
}

/** More holders than this find no room to reserve, and ask for each decision. */
const MOST_HOLDERS = 1_000;
/** A holder is remembered for so long after its end, since messages that it sent before may come later. */
const REMEMBERED_MS = 5_000;
/** About what a holder takes in memory, beside its hold. */
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
    return this.#holders.has(id) || this.#holders.size < MOST_HOLDERS;
  }

  put(id: string, holder: Holder): void {
    this.#holders.set(id, holder);
  }

  /** The key is another object in memory now: its holders go on. */
  takeOver(others: Holders): void {
    for (const [id, holder] of others.#holders) this.#holders.set(id, holder);
  }

  /** Forgets those whose end was so long ago that no message of theirs can come any more. */
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
