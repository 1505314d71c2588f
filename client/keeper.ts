/** Background work of requests that gives units back when their lifetimes end. */
import type { Time } from "../core/clock.ts";
import { MOST_TTL_MS } from "../core/policies/lifetimes.ts";
import type { Holding } from "./caller.ts";
import type { ReservationCache } from "./reservation-cache.ts";
import { giveBack, split } from "./transports/endings.ts";

/** The work of one request. */
interface Shift {
  readonly untilMs: number;
  lookedAtMs: number;
  /** Messages that it may still send. */
  left: number;
}

/** A request works for so long, then another one takes over. The runtime ends background work after 30 s. */
const KEEP_MS = 20_000;
/**
 * It looks this often for reservations to give back, and for a clock that was put back, which would make lifetimes
 * longer. It must look within the last part of a lifetime, in which nothing is spent (MOST_MARGIN_MS in
 * core/reservations/sizing.ts).
 */
const LOOK_MS = 200;
/** A request that has not looked for so long has died. */
const SILENT_MS = 2_000;
/**
 * A request sends so many messages, then another one takes over. On Cloudflare's free plan an invocation may make 1,000
 * calls to objects, and some are the request's own, or those that it sends for others.
 */
export const MOST_SHIFT_MESSAGES = 250;

/** Gives back the units of one isolate: one of its requests works at a time. */
export class Keeper {
  readonly #cache: ReservationCache;
  #shift: Shift | undefined;
  #isLeft = false;

  constructor(cache: ReservationCache) {
    this.#cache = cache;
  }

  /** Whether a request has sent all that it may, and units are left to give back: the next request takes over. */
  get isLeft(): boolean {
    return this.#isLeft;
  }

  /** Makes sure that some request works, for at least the longest lifetime from now. */
  keep(caller: Holding, nowMs: number): void {
    const shift = this.#shift;
    const isKept = shift !== undefined && nowMs < shift.lookedAtMs + SILENT_MS;
    if (isKept && nowMs + MOST_TTL_MS <= shift.untilMs) return;
    this.#shift = { untilMs: nowMs + KEEP_MS, lookedAtMs: nowMs, left: MOST_SHIFT_MESSAGES };
    this.#isLeft = false;
    caller.inBackground(this.#work(caller, this.#shift));
  }

  async #work({ objects, time }: Holding, shift: Shift): Promise<void> {
    const look = this.#cache.watch();
    look(0, time.nowMs());
    const { mostAtOnce = Infinity } = objects;
    let isBehind = false;
    while (this.#shift === shift && shift.lookedAtMs < shift.untilMs && this.#cache.isHolding) {
      const lookMs = isBehind ? 0 : Math.max(1, Math.min(LOOK_MS, this.#cache.shortestMs / 4));
      if (!isBehind) await pause(time, lookMs);
      const readMs = time.nowMs();
      look(lookMs, readMs);
      shift.lookedAtMs = this.#cache.now(readMs);
      const { first, rest } = split(this.#cache.endDue(shift.lookedAtMs), mostAtOnce);
      // When this request dies meanwhile, another one finds the rest.
      this.#cache.putBack(rest);
      isBehind = rest.length > 0;
      if (first.length > 0 && mostAtOnce < Infinity) shift.left -= mostAtOnce;
      await giveBack(objects, first);
      if (shift.left > 0) continue;
      this.#isLeft = this.#shift === shift && this.#cache.isHolding;
      break;
    }
    if (this.#shift === shift) this.#shift = undefined;
  }
}

async function pause(time: Time, ms: number): Promise<void> {
  await new Promise<void>((done) => {
    if (time.idle === undefined) time.after(ms, done);
    else time.idle(ms, done);
  });
}
