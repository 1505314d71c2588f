import { seededRandom } from "../support/random.ts";
import type { Fate } from "./network.ts";

/** The random events of a history. The same seed repeats it. */
export class Dice {
  readonly #random: () => number;

  constructor(seed: number) {
    this.#random = seededRandom(seed);
  }

  chance(share: number): boolean {
    return this.#random() < share;
  }

  upTo(most: number): number {
    return Math.floor(this.#random() * (most + 1));
  }

  of<Value>(values: readonly Value[]): Value {
    return values[Math.floor(this.#random() * values.length)] as Value;
  }

  /**
   * The fate of a message. Most take a moment; some are lost, some very late, some doubled.
   * @param usualMs the longest usual delay in milliseconds
   * @param lateMs the longest delay of a late message in milliseconds
   */
  fate(isFaulty: boolean, usualMs: number, lateMs: number): Fate {
    const delayMs = () => (isFaulty && this.chance(0.06) ? this.upTo(lateMs) : this.upTo(usualMs));
    const isLost = () => isFaulty && this.chance(0.05);
    return {
      ...(!isLost() && { thereMs: delayMs() }),
      ...(!isLost() && { backMs: delayMs() }),
      ...(isFaulty && this.chance(0.04) && { againMs: delayMs() }),
    };
  }
}
