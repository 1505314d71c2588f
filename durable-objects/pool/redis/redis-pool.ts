import { Redis } from "@upstash/redis/cloudflare";
import {
  BrokenCircuitError,
  circuitBreaker,
  type CircuitBreakerPolicy,
  ConsecutiveBreaker,
  handleAll,
} from "cockatiel";
import type { Time } from "../../../core/clock.ts";
import type { Pool, PoolAddress, PoolAnswer, PoolCall } from "../protocol.ts";
import { POOL_SIZING } from "../share.ts";
import { POOL_SCRIPT } from "./script.ts";

/** After this many failures in a row a dead or overloaded Redis gets no calls for `PAUSE_MS`. */
const FAILURES = 5;
const PAUSE_MS = 1_000;
const MAX_TEXT = 200;

type Script = ReturnType<Redis["createScript"]>;

/** A pool in Redis, over Upstash's REST API. Each object has its own: I/O cannot be shared across objects. */
export class RedisPool implements Pool {
  readonly #address: PoolAddress;
  readonly #breaker: CircuitBreakerPolicy;
  readonly #queue: SendQueue;
  /** By the deadline, since a client has one deadline for all its calls. */
  readonly #scripts = new Map<number, Script>();

  constructor(address: PoolAddress, time: Time) {
    this.#address = address;
    this.#queue = new SendQueue(time);
    const breaker = new ConsecutiveBreaker(FAILURES);
    this.#breaker = circuitBreaker(handleAll, { halfOpenAfter: PAUSE_MS, breaker });
  }

  async call(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer> {
    // The breaker is behind the queue: it counts the time from the sending of a call, the caller from now.
    const send = () => this.#breaker.execute(() => this.#send(keys, call, deadlineMs));
    try {
      return await this.#queue.run(send, deadlineMs);
    } catch (error) {
      // Logged once per caller without an answer. Calls that the breaker stops would add nothing.
      if (!(error instanceof BrokenCircuitError)) console.warn(`no answer from the pool: ${String(error)}`);
      throw error;
    }
  }

  async #send(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer> {
    const args = [JSON.stringify(call), JSON.stringify(POOL_SIZING)];
    // The client sends the script's digest, and the script itself if the server does not know it.
    const text = this.#script(deadlineMs).exec([...keys], args);
    return readPoolAnswer(await text.catch(throwShortened));
  }

  #script(deadlineMs: number): Script {
    const known = this.#scripts.get(deadlineMs);
    if (known !== undefined) return known;
    const redis = new Redis({
      ...this.#address,
      // `retry: false` would try twice (1.39.0).
      retry: { retries: 0 },
      signal: () => AbortSignal.timeout(deadlineMs),
      automaticDeserialization: false,
      responseEncoding: false,
      readYourWrites: false,
      enableTelemetry: false,
      enableAutoPipelining: false,
    });
    const script = redis.createScript(POOL_SCRIPT);
    this.#scripts.set(deadlineMs, script);
    return script;
  }
}

/** Errors of the client quote the command, which may be the script and contains callers' keys. */
function throwShortened(error: unknown): never {
  const [text = ""] = String(error).split(", command was:");
  throw new Error(text.slice(0, MAX_TEXT));
}

/** @throws when the text is not the script's: a proxy's page, or the value of another program's key */
export function readPoolAnswer(text: unknown): PoolAnswer {
  const answer: unknown = typeof text === "string" ? JSON.parse(text) : undefined;
  const isAnswer = typeof answer === "object" && answer !== null && !Array.isArray(answer);
  if (isAnswer && ["rules", "missing", "conflict", "full", "expiresAfterMs"].some((field) => field in answer))
    return answer;
  throw new Error(`not an answer of a pool: ${String(text).slice(0, MAX_TEXT)}`);
}

/** The runtime silently delays further connections: unsent calls, whose timers run, look like a dead Redis. */
const MAX_UNDER_WAY = 6;

/** The weight of one call in the mean duration of calls: about the last round of calls decides. */
const WEIGHT = 1 / MAX_UNDER_WAY;

interface Waiting {
  readonly untilMs: number;
  begin(): void;
  refuse(): void;
}

/**
 * Sends an object's calls to a pool, at most as many at a time as the runtime, in order of arrival. A caller
 * waits for its turn and its answer together until its deadline. A call whose caller leaves before its turn
 * is not sent. After that it keeps its place until it ends: its connection is in use.
 *
 * A caller whose turn comes with less time left than calls take at present is refused. Otherwise an overload
 * sends calls just before their callers leave, and charges them in vain: of 100 calls a second that took 100
 * ms each and had 500, 7 a second were answered in time. With this rule 54 are.
 */
export class SendQueue {
  readonly #time: Time;
  #underWay = 0;
  /** The recent mean duration of a call from its sending, in milliseconds. Absent: none has ended yet. */
  #tookMs: number | undefined;
  /** By order of arrival. While any wait, `MAX_UNDER_WAY` calls are under way. */
  readonly #waiting = new Set<Waiting>();

  constructor(time: Time) {
    this.#time = time;
  }

  /** The result of `send`, called in its turn. It must end. @throws Error without an answer within `maxMs` */
  run<Result>(send: () => Promise<Result>, maxMs: number): Promise<Result> {
    return new Promise((resolve, reject) => {
      const untilMs = this.#time.nowMs() + maxMs;
      const leave = () => {
        if (this.#waiting.delete(waiting)) waiting.refuse();
        else reject(new Error(`sent, and not answered within ${maxMs} ms`));
      };
      const cancel = this.#time.after(maxMs, leave);
      const begin = () => void this.#begin(send).then(resolve, reject).finally(cancel);
      const refuse = () => {
        cancel();
        reject(new Error(`not sent within ${maxMs} ms, behind ${MAX_UNDER_WAY} others`));
      };
      const waiting: Waiting = { untilMs, begin, refuse };
      // A call that need not wait is always sent, so the duration of calls gets known.
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
      // The clock has full milliseconds, so calls may take up to one longer than measured.
      if (waiting.untilMs - nowMs < (this.#tookMs ?? 0) + 1) waiting.refuse();
      else waiting.begin();
    }
  }
}
