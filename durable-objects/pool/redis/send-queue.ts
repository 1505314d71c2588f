import type { Time } from "../../../core/clock.ts";

/**
 * The most calls that one object has under way at a time. The runtime allows an object six connections that wait for
 * their answer. It keeps further ones back without a word, and a timer that has begun for them goes on meanwhile: then
 * calls that were never sent look like calls to a Redis that is away. With fewer than six, a free connection would be
 * left unused.
 */
const MAX_UNDER_WAY = 6;

/** How much one call counts in the mean of how long calls take. So about the last round of calls decides. */
const WEIGHT = 1 / MAX_UNDER_WAY;

/** A caller that waits for its turn. */
interface Waiting {
  readonly untilMs: number;
  begin(): void;
  refuse(): void;
}

/**
 * Sends an object's calls to a pool, as many at a time as the runtime does, and the others in the order in which they
 * came. A caller waits for its turn and its answer together until its own deadline. If it leaves before its turn, its
 * call is not sent. If it leaves later, the call goes on without it and keeps its place until it ends: its connection
 * is in use, and how long Redis takes is not known before.
 *
 * When its turn comes and less time is left than calls take at present, the caller is refused. Otherwise, while more
 * ask than Redis can answer, calls are sent just before their callers leave, and are charged in vain: of 100 calls a
 * second that took 100 ms each and had 500, 7 a second were answered in time. With this rule 54 are.
 */
export class SendQueue {
  readonly #time: Time;
  #underWay = 0;
  /** How long calls took lately on average, in milliseconds, from when they were sent. Absent: none has ended yet. */
  #tookMs: number | undefined;
  /** By order of arrival. While any wait, `MAX_UNDER_WAY` calls are under way. */
  readonly #waiting = new Set<Waiting>();

  constructor(time: Time) {
    this.#time = time;
  }

  /**
   * Calls `send` when its turn comes, and returns what it returns.
   *
   * @param send makes the call. It must end, since it has one of the places until then.
   * @param mostMs how long the caller waits from now on, in milliseconds
   * @throws Error when there is no answer by then
   */
  run<Result>(send: () => Promise<Result>, mostMs: number): Promise<Result> {
    return new Promise((resolve, reject) => {
      const untilMs = this.#time.nowMs() + mostMs;
      const leave = () => {
        if (this.#waiting.delete(waiting)) waiting.refuse();
        else reject(new Error(`sent, and not answered within ${mostMs} ms`));
      };
      const cancel = this.#time.after(mostMs, leave);
      const begin = () => void this.#begin(send).then(resolve, reject).finally(cancel);
      const refuse = () => {
        cancel();
        reject(new Error(`not sent within ${mostMs} ms, behind ${MAX_UNDER_WAY} others`));
      };
      const waiting: Waiting = { untilMs, begin, refuse };
      // A call that need not wait is always sent, so how long calls take does not stay unknown.
      if (this.#underWay < MAX_UNDER_WAY) begin();
      else this.#waiting.add(waiting);
    });
  }

  async #begin<Result>(send: () => Promise<Result>): Promise<Result> {
    this.#underWay += 1;
    const sentAtMs = this.#time.nowMs();
    try {
      return await send();
    } finally {
      this.#underWay -= 1;
      const tookMs = this.#time.nowMs() - sentAtMs;
      const meanMs = this.#tookMs ?? tookMs;
      this.#tookMs = meanMs + WEIGHT * (tookMs - meanMs);
      this.#beginNext();
    }
  }

  #beginNext(): void {
    const nowMs = this.#time.nowMs();
    for (const waiting of this.#waiting) {
      if (this.#underWay >= MAX_UNDER_WAY) return;
      this.#waiting.delete(waiting);
      // The clock has whole milliseconds, so calls may take up to one longer than it said.
      if (waiting.untilMs - nowMs < (this.#tookMs ?? 0) + 1) waiting.refuse();
      else waiting.begin();
    }
  }
}
