/** Calls a Redis over Upstash's REST API. The module is loaded when a policy with a pool is first asked for. */
import { Redis } from "@upstash/redis/cloudflare";
import {
  BrokenCircuitError,
  circuitBreaker,
  ConsecutiveBreaker,
  handleAll,
  type CircuitBreakerPolicy,
} from "cockatiel";
import type { Time } from "../../../core/clock.ts";
import type { Pool, PoolAnswer, PoolCall } from "../protocol.ts";
import { POOL_SIZING } from "../share-demand.ts";
import { POOL_SCRIPT } from "./script.ts";
import type { PoolAddress } from "./secrets.ts";
import { SendQueue } from "./send-queue.ts";

/**
 * After so many failures in a row the pool is not called for `PAUSE_MS`: more calls would not help a Redis that is
 * away or overloaded.
 */
const FAILURES = 5;
const PAUSE_MS = 1_000;
/** The most characters of an error's text that are kept, since it ends with the whole command. */
const MAX_SAID = 200;

type Script = ReturnType<Redis["createScript"]>;

/** A pool in Redis. Each object has its own, since no request may wait for I/O of another object. */
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
    // The breaker is behind the queue: it counts the time from when a call is sent, and the caller from now on.
    const send = () => this.#breaker.execute(() => this.#send(keys, call, deadlineMs));
    try {
      return await this.#queue.run(send, deadlineMs);
    } catch (error) {
      // Logged once for each caller that got no answer. Calls that the breaker stops would say nothing new.
      if (!(error instanceof BrokenCircuitError)) console.warn(`no answer from the pool: ${String(error)}`);
      throw error;
    }
  }

  async #send(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer> {
    // The client sends the script's digest, and the whole script when the server does not know it.
    const asked = this.#script(deadlineMs).exec(
      [...keys],
      [JSON.stringify(call), JSON.stringify(POOL_SIZING)],
    );
    return readPoolAnswer(await asked.catch(briefly));
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

/**
 * Shortens an error of the client for the log. It quotes the command, which may be the whole script and contains
 * callers' keys.
 */
function briefly(error: unknown): never {
  const [said = ""] = String(error).split(", command was:");
  throw new Error(said.slice(0, MAX_SAID));
}

/**
 * Reads an answer of the script.
 *
 * @throws when the text is something else: a proxy's page, say, or the value of another program's key
 */
export function readPoolAnswer(text: unknown): PoolAnswer {
  const answer: unknown = typeof text === "string" ? JSON.parse(text) : undefined;
  const isAnswer = typeof answer === "object" && answer !== null && !Array.isArray(answer);
  if (isAnswer && ["rules", "missing", "conflict", "full", "expiresAfterMs"].some((field) => field in answer))
    return answer;
  throw new Error(`not an answer of a pool: ${String(text).slice(0, MAX_SAID)}`);
}
