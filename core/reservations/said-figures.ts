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

export class SaidFigures {
  /** The least that is free. Those of the first list arrived before the second one began. */
  #older = Infinity;
  #newer = Infinity;
  #olderUntil = 0;
  #last = 0;

  get remaining(): number {
    return Math.min(this.#older, this.#newer);
  }

  /** @param sent what `sentNow` returned when the call was sent */
  hear(remaining: number, sent: number): void {
    arrived += 1;
    if (sent >= this.#olderUntil) {
      this.#older = sent >= this.#last ? Infinity : this.#newer;
      this.#newer = remaining;
      this.#olderUntil = this.#last;
    } else this.#newer = Math.min(this.#newer, remaining);
    this.#last = arrived;
  }
}
