/** Asking a Redis, over Upstash's REST API. Loaded when a policy with a pool is first asked for. */
import { Redis } from "@upstash/redis/cloudflare";
import { circuitBreaker, ConsecutiveBreaker, handleAll, type CircuitBreakerPolicy } from "cockatiel";
import type { Pool, PoolAnswer, PoolCall } from "../protocol.ts";
import { POOL_SIZING } from "../share-sizing.ts";
import { POOL_SCRIPT } from "./script.ts";
import type { PoolAddress } from "./secrets.ts";

/** After so many failures in a row nothing is asked for a moment: whoever is away or overloaded is not helped by more. */
const FAILURES = 5;
const PAUSE_MS = 1_000;
/** Of an error's text, which ends with the whole command. */
const MOST_SAID = 200;

type Script = ReturnType<Redis["createScript"]>;

/** A pool in Redis. One for each object, since nobody may wait for what another object asked. */
export class RedisPool implements Pool {
  readonly #address: PoolAddress;
  readonly #breaker: CircuitBreakerPolicy;
  /** By the deadline, which the client has for all its calls. */
  readonly #scripts = new Map<number, Script>();

  constructor(address: PoolAddress) {
    this.#address = address;
    const breaker = new ConsecutiveBreaker(FAILURES);
    this.#breaker = circuitBreaker(handleAll, { halfOpenAfter: PAUSE_MS, breaker });
  }

  call(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer> {
    return this.#breaker.execute(async () => {
      // The script by its digest, and whole when the server does not have it.
      const asked = this.#script(deadlineMs).exec(
        [...keys],
        [JSON.stringify(call), JSON.stringify(POOL_SIZING)],
      );
      try {
        return readPoolAnswer(await asked.catch(briefly));
      } catch (error) {
        // Once for each call that was made; those that the breaker keeps back say nothing new.
        console.warn(`no answer from the pool: ${String(error)}`);
        throw error;
      }
    });
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

/** The client's errors quote the command, which may be the whole script and has the keys of callers in it: not for a log. */
function briefly(error: unknown): never {
  const [said = ""] = String(error).split(", command was:");
  throw new Error(said.slice(0, MOST_SAID));
}

/** @throws when it is no answer of the script: a proxy's page, say, or another program's key */
export function readPoolAnswer(text: unknown): PoolAnswer {
  const answer: unknown = typeof text === "string" ? JSON.parse(text) : undefined;
  const isAnswer = typeof answer === "object" && answer !== null && !Array.isArray(answer);
  if (isAnswer && ["rules", "missing", "conflict", "expiresAfterMs"].some((field) => field in answer))
    return answer;
  throw new Error(`not an answer of a pool: ${String(text).slice(0, MOST_SAID)}`);
}
