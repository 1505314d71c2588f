/** How long leases were held: counted at once by an object, and by an isolate that grants them in numbers of its own. */
import { bucketOf, boundsOf, SUM } from "./counts.ts";
import type { Counter } from "./tally.ts";

const METRIC = "lease_held_seconds";
const BOUNDS_MS = boundsOf(METRIC);

export type LeaseCounter = Pick<Counter, "add" | "lasted">;

/** Counts a lease that has ended. @param grantedAtMs absent: an older build granted it */
export function countHeld(
  counter: LeaseCounter | undefined,
  policy: string,
  grantedAtMs: number | undefined,
  endedAtMs: number,
): void {
  if (grantedAtMs !== undefined) counter?.lasted(METRIC, [policy], endedAtMs - grantedAtMs);
}

/** Of an isolate's own leases of one key, until they are counted with its next message: a lease costs an addition. */
export class HeldTimes {
  readonly #counts = new Uint32Array(BOUNDS_MS.length + 1);
  #sumMs = 0;

  note(heldMs: number): void {
    const ms = Math.max(0, heldMs);
    let index = 0;
    while (index < BOUNDS_MS.length && ms > (BOUNDS_MS[index] ?? 0)) index += 1;
    this.#counts[index] = (this.#counts[index] ?? 0) + 1;
    this.#sumMs += ms;
  }

  count(counter: Pick<Counter, "add">, policy: string): void {
    let isAny = false;
    for (const [index, count] of this.#counts.entries()) {
      if (count === 0) continue;
      isAny = true;
      counter.add(METRIC, [policy, bucketOf(METRIC, BOUNDS_MS[index] ?? Infinity)], count);
    }
    if (isAny) counter.add(METRIC, [policy, SUM], this.#sumMs);
    this.#counts.fill(0);
    this.#sumMs = 0;
  }
}
