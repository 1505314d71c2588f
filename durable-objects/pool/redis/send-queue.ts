import type { Time } from "../../../core/clock.ts";

/**
 * The most calls that one object has under way at a time. The runtime allows an object six connections that wait for
 * their answer. It keeps further ones back without a word, and a timer that has begun for them goes on meanwhile: then
 * calls that were never sent look like calls to a Redis that is away. With fewer than six, a free connection would be
 * left unused.
 */
export const MOST_UNDER_WAY = 6;

/**
 * Sends an object's calls to a pool, as many at a time as the runtime does, and the others in the order in which they
 * came. A caller waits for its turn and its answer together until its own deadline. If it leaves before its turn, its
 * call is not sent. If it leaves later, the call goes on without it and keeps its place until it ends: its connection
 * is in use, and how long Redis took is not known before.
 */
export class SendQueue {
  readonly #time: Time;
  #underWay = 0;
  /** By order of arrival. */
  readonly #waiting = new Set<() => void>();

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
      const begin = () => {
        this.#underWay += 1;
        void send()
          .then(resolve, reject)
          .finally(() => {
            this.#underWay -= 1;
            cancel();
            this.#beginNext();
          });
      };
      const leave = () => {
        const isUnsent = this.#waiting.delete(begin);
        const why = isUnsent ? `not sent, behind ${MOST_UNDER_WAY} others` : "sent, and not answered";
        reject(new Error(`after ${mostMs} ms: ${why}`));
      };
      const cancel = this.#time.after(mostMs, leave);
      this.#waiting.add(begin);
      this.#beginNext();
    });
  }

  #beginNext(): void {
    const [begin] = this.#waiting;
    if (begin === undefined || this.#underWay >= MOST_UNDER_WAY) return;
    this.#waiting.delete(begin);
    begin();
  }
}
