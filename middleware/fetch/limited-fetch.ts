/**
 * A `fetch` within a partner's limit. Requests queue at the limiter. If the partner answers 429 or 503 with
 * Retry-After, all requests of the key wait that long, and this one is repeated.
 */
import type { CallFields, Limiter, LimitRequest } from "../../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { sleep } from "../callers.ts";
import { type Given, type GivenFields, requireFetchOptions, valuesOf } from "../options.ts";
import { pause, pausedForMs, pauseOf } from "./pauses.ts";

export type Fetch = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

type FetchArgs = [input: string | URL | Request, init: RequestInit | undefined];

export type LimitedFetchOptions = GivenFields<FetchArgs, CallFields<"takes", "plan" | "cost" | "group">> & {
  readonly limiter: Pick<Limiter, "limit">;
  readonly key: Given<FetchArgs, string>;
  /** The longest total wait of a request, in milliseconds. The policy must allow it with `maxWait`. */
  readonly waitMs: number;
  /** The most times that a request is sent. Absent: 3. */
  readonly attempts?: number;
  /** Absent: the runtime's own. */
  readonly fetch?: Fetch;
  /** For tests. Absent: the real clock and timers. */
  readonly time?: Time;
};

/** A request was abandoned, since its turn would come too late. */
export class FetchLimitedError extends Error {
  override readonly name = "FetchLimitedError";
  /** Milliseconds until the request may be tried again; `null`: unknown, or never. */
  readonly retryAfterMs: number | null;
  readonly decision: Decision | undefined;
  /** The partner's answer, if the partner denied. Its body has not been read. */
  readonly response: Response | undefined;

  constructor(
    detail: string,
    retryAfterMs: number | null,
    { decision, response }: { readonly decision?: Decision; readonly response?: Response } = {},
  ) {
    const wait =
      retryAfterMs === null ? "it is not known when it would pass" : `it would pass in ${retryAfterMs} ms`;
    super(`request given up: ${detail}; ${wait}`);
    this.retryAfterMs = retryAfterMs;
    this.decision = decision;
    this.response = response;
  }
}

const DEFAULT_ATTEMPTS = 3;

/** A `fetch` that waits for its turn. It throws a `FetchLimitedError` if that would come too late. */
export function limitedFetch(options: LimitedFetchOptions): Fetch {
  requireFetchOptions(options);
  const { limiter, waitMs, attempts = DEFAULT_ATTEMPTS, time = SYSTEM_TIME } = options;
  return async (input, init) => {
    const send = options.fetch ?? fetch;
    const args = [input, init] as FetchArgs;
    const request = await valuesOf<LimitRequest>(options, ["policy", "cost", "plan", "group", "key"], args);
    const turn = new Turn(limiter, request, time.nowMs() + waitMs, time, signalOf(input, init));
    for (let attempt = 1; ; attempt += 1) {
      await turn.come();
      const response = await send(input, init);
      const nowMs = time.nowMs();
      const pauseMs = pauseOf(response, nowMs);
      if (pauseMs === undefined) return response;
      pause(limiter, turn.name, nowMs + pauseMs);
      const { status } = response;
      if (attempt >= attempts || turn.isTooLate(pauseMs) || !isRepeatable(input, init, status))
        throw new FetchLimitedError(`the server answered ${status}`, pauseMs, { response });
      await response.body?.cancel();
    }
  };
}

/** The signal that `fetch` obeys: that of `init`, even if it is `null`, which means none. */
function signalOf(...[input, init]: FetchArgs): AbortSignal | undefined {
  if (init?.signal !== undefined) return init.signal ?? undefined;
  return typeof input === "object" && "signal" in input ? input.signal : undefined;
}

class Turn {
  readonly name: string;
  readonly #limiter: Pick<Limiter, "limit">;
  readonly #request: Parameters<Limiter["limit"]>[0];
  readonly #endsAtMs: number;
  readonly #time: Time;
  readonly #signal: AbortSignal | undefined;

  constructor(
    limiter: Pick<Limiter, "limit">,
    request: Parameters<Limiter["limit"]>[0],
    endsAtMs: number,
    time: Time,
    signal: AbortSignal | undefined,
  ) {
    this.name = JSON.stringify([request.policy, request.key]);
    this.#limiter = limiter;
    this.#request = request;
    this.#endsAtMs = endsAtMs;
    this.#time = time;
    this.#signal = signal;
  }

  /** Waits until the request may be sent. @throws FetchLimitedError if that would be too late */
  async come(): Promise<void> {
    // Units are lost if a pause begins during the wait: not all waiting requests may be sent when it ends.
    do {
      for (let leftMs = this.#pauseMs(); leftMs > 0; leftMs = this.#pauseMs()) {
        if (this.isTooLate(leftMs)) throw new FetchLimitedError("the server asked for a pause", leftMs);
        await sleep(this.#time, leftMs, this.#signal);
      }
      await this.#take();
    } while (this.#pauseMs() > 0);
  }

  isTooLate(inMs: number): boolean {
    return this.#time.nowMs() + inMs > this.#endsAtMs;
  }

  #pauseMs(): number {
    return pausedForMs(this.#limiter, this.name, this.#time.nowMs());
  }

  async #take(): Promise<void> {
    const signal = this.#signal;
    signal?.throwIfAborted();
    const waitMs = Math.max(0, this.#endsAtMs - this.#time.nowMs());
    // With the signal, an aborted call leaves the queue instead of taking units for an unsent request.
    const decision = await this.#limiter.limit({
      ...this.#request,
      ...(waitMs > 0 && { waitMs }),
      ...(signal !== undefined && { signal }),
    });
    const { success, reason, retryAfterMs = null, delayMs = 0 } = decision;
    if (!success) throw new FetchLimitedError(`the limiter said ${reason}`, retryAfterMs, { decision });
    await sleep(this.#time, delayMs, signal);
  }
}

/** Methods that may be repeated after a 503, which leaves open whether the request was executed. */
const IDEMPOTENT = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"];
/** Bodies that can be sent again. Others, such as streams, may be partly read. */
const REPEATABLE_BODIES = [
  ArrayBuffer,
  Blob,
  FormData,
  URLSearchParams,
  Object.getPrototypeOf(Uint8Array) as typeof Uint8Array,
];

/** Whether a request that got this status can be sent again. */
function isRepeatable(input: string | URL | Request, init: RequestInit | undefined, status: number): boolean {
  const request = typeof input === "object" && "method" in input ? input : undefined;
  const method = (init?.method ?? request?.method ?? "GET").toUpperCase();
  if (status === 503 && !IDEMPOTENT.includes(method)) return false;
  const body: unknown = init?.body ?? request?.body ?? null;
  return body === null || typeof body === "string" || REPEATABLE_BODIES.some((type) => body instanceof type);
}
