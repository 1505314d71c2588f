/** The shape of `Ratelimit` of @upstash/ratelimit. */
import type { Limiter, PolicyName } from "../client/limiter.ts";
import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import type { Decision } from "../core/protocol/decision.ts";
import {
  describe,
  requireGiven,
  requireKnownOptions,
  requireMethods,
  requireText,
  requireTime,
} from "../core/violations.ts";

/** The options of `Ratelimit`: a policy instead of an algorithm. */
export interface RatelimitConfig {
  readonly limiter: Pick<Limiter, "limit" | "peek" | "reset">;
  /** Absent: the limiter's own policy. */
  readonly policy?: PolicyName;
  /** The clock and the timers, for tests. Absent: the real ones. */
  readonly time?: Time;
}

/** The answer to `limit`. */
export interface RatelimitResponse {
  success: boolean;
  limit: number;
  remaining: number;
  /** When a denied call may be repeated, or else when the quota is full again: milliseconds since the Unix epoch. */
  reset: number;
  /** Already resolved. It is there because programs pass it to `waitUntil`. */
  pending: Promise<unknown>;
  /** `timeout`: the limiter did not answer, so `onFailure` decided. `cacheBlock`: the denial was cached in this process. */
  reason?: "timeout" | "cacheBlock" | "denyList";
}

/** The options of a call. Only `rate`, the cost, counts; the others are accepted and ignored. */
export interface LimitOptions {
  readonly rate?: number;
  readonly ip?: string;
  readonly userAgent?: string;
  readonly country?: string;
  readonly geo?: object;
}

/** The name of the option in `weir-limiter/testing`. */
const SYNONYMS = new Map([["clock", "time"]]);

/** A limiter with the interface of `Ratelimit` of @upstash/ratelimit. A policy decides. */
export class Ratelimit {
  readonly #limiter: RatelimitConfig["limiter"];
  readonly #named: { readonly policy?: PolicyName };
  readonly #time: Time;

  /** @throws TypeError that names the option, its value and what is allowed */
  constructor(config: RatelimitConfig) {
    requireKnownOptions(config, ["limiter", "policy", "time"], SYNONYMS);
    const { limiter, policy, time = SYSTEM_TIME } = config;
    requireGiven("limiter", limiter, "a limiter, as createLimiter makes one");
    requireMethods("limiter", limiter, ["limit", "peek", "reset"], "a limiter, as createLimiter makes one");
    requireText("policy", policy, "the name of a policy");
    requireTime("time", time);
    this.#limiter = limiter;
    this.#named = policy === undefined ? {} : { policy };
    this.#time = time;
  }

  // All are properties, as theirs: programs read them off the object and call them alone.

  /** Takes the cost (by default 1) if it fits. */
  limit = async (identifier: string, { rate }: LimitOptions = {}): Promise<RatelimitResponse> => {
    return this.#responseOf(await this.#decide(identifier, rate));
  };

  /**
   * Takes one unit as soon as it is available, or answers the denial if that would be after `timeout` milliseconds.
   *
   * @throws Error that begins as theirs does, if the timeout is not positive and finite
   */
  blockUntilReady = async (identifier: string, timeout: number): Promise<RatelimitResponse> => {
    if (!Number.isFinite(timeout) || timeout <= 0) {
      const allowed = "timeout must be positive, and a finite number of milliseconds";
      throw new Error(`${allowed}: it is ${describe(timeout)}`);
    }
    const endsAtMs = this.#time.nowMs() + timeout;
    for (;;) {
      const decision = await this.#decide(identifier);
      const waitMs = decision.retryAfterMs ?? Infinity;
      if (decision.success || this.#time.nowMs() + waitMs > endsAtMs) return this.#responseOf(decision);
      await new Promise<void>((done) => this.#time.after(waitMs, done));
    }
  };

  /** What is left. Takes nothing. */
  getRemaining = async (identifier: string): Promise<{ remaining: number; reset: number; limit: number }> => {
    const report = await this.#limiter.peek({ ...this.#named, key: identifier });
    const { remaining, reset, limit } = this.#responseOf(report);
    return { remaining, reset, limit };
  };

  /** Resets the key to an untouched quota. */
  resetUsedTokens = async (identifier: string): Promise<void> => {
    await this.#limiter.reset({ ...this.#named, key: identifier });
  };

  #decide(key: string, cost?: number): Promise<Decision> {
    return this.#limiter.limit({ ...this.#named, key, ...(cost !== undefined && { cost }) });
  }

  #responseOf(decision: Decision): RatelimitResponse {
    const { success, limit, remaining = 0, resetAfterMs = 0, retryAfterMs, reason, source } = decision;
    const inMs = success ? resetAfterMs : (retryAfterMs ?? resetAfterMs);
    const quota = { success, limit, remaining, reset: this.#time.nowMs() + inMs };
    const pending = Promise.resolve();
    if (reason === "degraded") return { ...quota, pending, reason: "timeout" };
    if (!success && source === "isolate") return { ...quota, pending, reason: "cacheBlock" };
    return { ...quota, pending };
  }
}
