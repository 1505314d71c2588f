/** The network between regions and the pool: messages are lost, late, doubled and overtaken. */
import type { Time } from "../../core/clock.ts";
import type { PoolAnswer, PoolCall, Pool } from "../../durable-objects/pool/protocol.ts";
import type { Fate } from "./network.ts";
import type { SimulatedPool } from "./pools-server.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** Changes calls and answers, to break a rule on purpose. */
export interface Tampering {
  readonly call?: (call: PoolCall) => PoolCall;
  readonly answer?: (answer: PoolAnswer, call: PoolCall) => PoolAnswer;
}

export class PoolWire {
  readonly pool: SimulatedPool;
  readonly #time: VirtualTime;
  readonly #clock: { readonly ms: number };
  readonly #fateOf: () => Fate;
  readonly #onCall: (region: string, call: PoolCall, answer: PoolAnswer, keys: readonly string[]) => void;
  readonly #tampering: Tampering;
  #pausedUntilMs = 0;

  constructor(
    parts: {
      readonly pool: SimulatedPool;
      readonly time: VirtualTime;
      readonly clock: { readonly ms: number };
      readonly fateOf: () => Fate;
      /** Called when the pool has executed a call. */
      readonly onCall: (region: string, call: PoolCall, answer: PoolAnswer, keys: readonly string[]) => void;
    },
    tampering: Tampering = {},
  ) {
    this.pool = parts.pool;
    this.#time = parts.time;
    this.#clock = parts.clock;
    this.#fateOf = parts.fateOf;
    this.#onCall = parts.onCall;
    this.#tampering = tampering;
  }

  get nowMs(): number {
    return Math.floor(this.#time.nowMs) + this.#clock.ms;
  }

  pause(ms: number): void {
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, this.#time.nowMs + ms);
  }

  /** The pool as one process reaches it. @param time the process's timers, which end with it */
  from(region: string, time: Time): Pool {
    return {
      call: (keys, given, deadlineMs) =>
        new Promise((resolve, reject) => {
          const cancel = time.after(deadlineMs, () => reject(new Error("no answer in time")));
          const call = this.#tampering.call?.(given) ?? given;
          const { thereMs, backMs, againMs } = this.#fateOf();
          const deliver = async () => {
            const answer = await this.pool.call(keys, call, this.nowMs);
            this.#onCall(region, call, answer, keys);
            if (backMs === undefined) return;
            time.after(backMs, () => {
              cancel();
              resolve(this.#tampering.answer?.(answer, call) ?? answer);
            });
          };
          if (thereMs !== undefined) this.#arrive(thereMs, deliver);
          if (againMs !== undefined) this.#arrive((thereMs ?? 0) + againMs, deliver);
        }),
    };
  }

  #arrive(afterMs: number, deliver: () => Promise<void>): void {
    this.#time.at(this.#time.nowMs + afterMs, () => {
      const pausedMs = this.#pausedUntilMs - this.#time.nowMs;
      return pausedMs > 0 ? this.#arrive(pausedMs, deliver) : deliver();
    });
  }
}
