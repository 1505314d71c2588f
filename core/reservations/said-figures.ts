/**
 * What the object has said of a key, in answers that may arrive in another order than they were made. It made an answer
 * between its call and its arrival. So an answer is superseded by one whose call was sent after it arrived, and of those
 * that no other supersedes the most careful figure is true.
 *
 * Of answers that overlap without end two lists are kept, and one is dropped with each answer to a call that was sent after
 * all of that list had arrived: so a figure that was too careful lasts for two ways and back.
 */

/** Answers that have arrived, of all keys. */
let arrived = 0;

/** When a call is sent, for `hear`. */
export function sentNow(): number {
  return arrived;
}

/** Of a call whose answer may repeat an earlier one. */
export const SENT_BEFORE = -1;

/** What remains, and when all is free if nobody comes. */
type Figures = readonly [remaining: number, wholeAtMs: number];

const NOTHING: Figures = [Infinity, -Infinity];

export class SaidFigures {
  /** Of the answers of each list. Those of the first one arrived before the second one began. */
  #older = NOTHING;
  #newer = NOTHING;
  #olderUntil = 0;
  #last = 0;

  get remaining(): number {
    return Math.min(this.#older[0], this.#newer[0]);
  }

  get wholeAtMs(): number {
    return Math.max(this.#older[1], this.#newer[1]);
  }

  /** @param sent what `sentNow` returned when the call was sent */
  hear(remaining: number, wholeAtMs: number, sent: number): void {
    if (sent >= this.#olderUntil) {
      this.#older = sent >= this.#last ? NOTHING : this.#newer;
      this.#newer = NOTHING;
      this.#olderUntil = this.#last;
    }
    this.#newer = [Math.min(this.#newer[0], remaining), Math.max(this.#newer[1], wholeAtMs)];
    arrived += 1;
    this.#last = arrived;
  }

  /** A lease that the object knows ends then, or earlier. */
  endsAt(atMs: number): void {
    this.hear(Infinity, atMs, SENT_BEFORE);
  }
}
