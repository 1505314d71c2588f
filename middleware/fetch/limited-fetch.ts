/**
 * A `fetch` that keeps within a partner's limit. Each request waits for its turn with the limiter. When the partner asks
 * to be left alone all the same (429 or 503 with Retry-After), all requests of the key wait, and this one is repeated.
 */
import type { Limiter } from "../../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../../core/clock.ts";
import type { Cost } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { valueOf, type Given } from "../given.ts";
import { requireFetchOptions } from "../options.ts";
import { pause, pauseLeftMs } from "./pauses.ts";
import { askedPauseMs, isRepeatable } from "./retry-after.ts";

/** What is called as `fetch` is. */
export type Fetch = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

type FetchArgs = [input: string | URL | Request, init: RequestInit | undefined];

/** What `limitedFetch` is told. */
export interface LimitedFetchOptions {
  readonly limiter: Pick<Limiter, "limit">;
  /** Absent: the limiter's own. */
  readonly policy?: string;
  readonly key: Given<FetchArgs, string>;
  /** Absent: 1. */
  readonly cost?: Given<FetchArgs, Cost>;
  /** The longest that a request waits in all, in milliseconds. The policy must allow it with `maxWait`. */
  readonly waitMs: number;
  /** How often a request is sent at most. Absent: 3. */
  readonly attempts?: number;
  /** Absent: the runtime's own. */
  readonly fetch?: Fetch;
  /** The clock and the timers, for tests. Absent: the real ones. */
  readonly time?: Time;
}

/** A request was given up, since its turn would come too late. */
export class FetchLimitedError extends Error {
  override readonly name = "FetchLimitedError";
  /** How long to wait before it is tried again, in milliseconds; `null`: nobody knows, or it never passes. */
  readonly retryAfterMs: number | null;
  /** What the limiter decided, if it was the limiter that denied. */
  readonly decision: Decision | undefined;
  /** What the partner answered, if it was the partner. Its body has not been read. */
  readonly response: Response | undefined;

  constructor(
    detail: string,
    retryAfterMs: number | null,
    { decision, response }: { readonly decision?: Decision; readonly response?: Response } = {},
  ) {
    const wait =
      retryAfterMs === null ? "nobody knows when it would pass" : `it would pass in ${retryAfterMs} ms`;
    super(`request given up: ${detail}; ${wait}`);
    this.retryAfterMs = retryAfterMs;
    this.decision = decision;
    this.response = response;
  }
}

const USUAL_ATTEMPTS = 3;

/** A `fetch` that waits for its turn, and throws a `FetchLimitedError` when that would come too late. */
export function limitedFetch(options: LimitedFetchOptions): Fetch {
  requireFetchOptions(options);
  const { limiter, policy = "", waitMs, attempts = USUAL_ATTEMPTS, time = SYSTEM_TIME } = options;
  return async (input, init) => {
    const send = options.fetch ?? fetch;
    const key = await valueOf(options.key, [input, init]);
    const cost = options.cost === undefined ? undefined : await valueOf(options.cost, [input, init]);
    const asked = { ...(policy !== "" && { policy }), key, ...(cost !== undefined && { cost }) };
    const turn = new Turn(limiter, asked, time.nowMs() + waitMs, time, signalOf(input, init));
    for (let attempt = 1; ; attempt += 1) {
      await turn.come();
      const response = await send(input, init);
      const nowMs = time.nowMs();
      const pauseMs = askedPauseMs(response, nowMs);
      if (pauseMs === undefined) return response;
      turn.pause(nowMs + pauseMs);
      const { status } = response;
      if (attempt >= attempts || turn.isTooLate(pauseMs) || !isRepeatable(input, init, status))
        throw new FetchLimitedError(`the server answered ${status}`, pauseMs, { response });
      await response.body?.cancel();
    }
  };
}

/** The signal that `fetch` would hear. The one of `init` counts, also when it is `null`, which stands for none. */
function signalOf(...[input, init]: FetchArgs): AbortSignal | undefined {
  if (init?.signal !== undefined) return init.signal ?? undefined;
  return typeof input === "object" && "signal" in input ? input.signal : undefined;
}

/** The turn of one request, which may come several times. */
class Turn {
  readonly #limiter: Pick<Limiter, "limit">;
  readonly #asked: Parameters<Limiter["limit"]>[0];
  readonly #name: string;
  readonly #endsAtMs: number;
  readonly #time: Time;
  readonly #signal: AbortSignal | undefined;

  constructor(
    limiter: Pick<Limiter, "limit">,
    asked: Parameters<Limiter["limit"]>[0],
    endsAtMs: number,
    time: Time,
    signal: AbortSignal | undefined,
  ) {
    this.#limiter = limiter;
    this.#asked = asked;
    this.#name = JSON.stringify([asked.policy, asked.key]);
    this.#endsAtMs = endsAtMs;
    this.#time = time;
    this.#signal = signal;
  }

  /** Waits until the request may be sent. @throws FetchLimitedError when that would be too late */
  async come(): Promise<void> {
    // A pause that begins while this waits for its units costs them: those who waited must not all go when it ends.
    do {
      await this.#sitOut();
      await this.#take();
    } while (this.#pauseMs() > 0);
  }

  pause(untilMs: number): void {
    pause(this.#limiter, this.#name, untilMs);
  }

  isTooLate(inMs: number): boolean {
    return this.#time.nowMs() + inMs > this.#endsAtMs;
  }

  #pauseMs(): number {
    return pauseLeftMs(this.#limiter, this.#name, this.#time.nowMs());
  }

  async #sitOut(): Promise<void> {
    for (let leftMs = this.#pauseMs(); leftMs > 0; leftMs = this.#pauseMs()) {
      if (this.isTooLate(leftMs)) throw new FetchLimitedError("the server asked for a pause", leftMs);
      await this.#sleep(leftMs);
    }
  }

  async #take(): Promise<void> {
    const signal = this.#signal;
    signal?.throwIfAborted();
    const waitMs = Math.max(0, this.#endsAtMs - this.#time.nowMs());
    // Who is aborted while it waits leaves the line: else its units would be taken for a request that is never sent.
    const decision = await this.#limiter.limit({
      ...this.#asked,
      ...(waitMs > 0 && { waitMs }),
      ...(signal !== undefined && { signal }),
    });
    if (!decision.success)
      throw new FetchLimitedError(`the limiter said ${decision.reason}`, decision.retryAfterMs ?? null, {
        decision,
      });
    await this.#sleep(decision.delayMs ?? 0);
  }

  /** Sleeps; a request that is aborted meanwhile ends at once. */
  async #sleep(ms: number): Promise<void> {
    const signal = this.#signal;
    signal?.throwIfAborted();
    if (ms <= 0) return;
    await new Promise<void>((resolve, reject) => {
      const leave = () => {
        cancel();
        reject(signal?.reason as Error);
      };
      const cancel = this.#time.after(ms, () => {
        signal?.removeEventListener("abort", leave);
        resolve();
      });
      signal?.addEventListener("abort", leave, { once: true });
    });
  }
}
