/** The shape of `Ratelimit` of @upstash/ratelimit. */
import type { Limiter } from "../client/limiter.ts";
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

/** Which policy stands for the algorithm. */
export interface RatelimitConfig {
  readonly limiter: Pick<Limiter, "limit" | "peek" | "reset">;
  /** Absent: the limiter's own. */
  readonly policy?: string;
  /** The clock and the timers, for tests. Absent: the real ones. */
  readonly time?: Time;
}

/** What is answered to `limit`. */
export interface RatelimitResponse {
  success: boolean;
  limit: number;
  remaining: number;
  /** When a denied call may be made again, and else when the quota is whole: milliseconds since the Unix epoch. */
  reset: number;
  /** There is nothing to wait for: it is there because programs hand it to `waitUntil`. */
  pending: Promise<unknown>;
  /** `timeout`: nobody could decide, and the policy has. `cacheBlock`: the denial was known in this process. */
  reason?: "timeout" | "cacheBlock" | "denyList";
}

/** What a call may say. Only `rate`, the cost, counts; the others are there because programs give them. */
export interface LimitOptions {
  readonly rate?: number;
  readonly ip?: string;
  readonly userAgent?: string;
  readonly country?: string;
  readonly geo?: object;
}

/** As `weir/testing` calls it. */
const SYNONYMS = new Map([["clock", "time"]]);
/** A call that waits is told so when no instant is known at which it could pass. */
const NO_INSTANT = Infinity;

/** What is called as `Ratelimit` of @upstash/ratelimit is, decided under a policy. */
export class Ratelimit {
  readonly #limiter: RatelimitConfig["limiter"];
  readonly #named: { readonly policy?: string };
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

  // All are properties, as theirs: programs take them out of the object.

  /** Takes the cost (by default 1) if it fits. */
  limit = async (identifier: string, { rate }: LimitOptions = {}): Promise<RatelimitResponse> => {
    return this.#responseOf(await this.#decide(identifier, rate));
  };

  /**
   * Takes one unit as soon as it is there, or answers the denial when that would be after `timeout` milliseconds.
   *
   * @throws Error that begins as theirs does, when such a wait could not end
   */
  blockUntilReady = async (identifier: string, timeout: number): Promise<RatelimitResponse> => {
    if (!Number.isFinite(timeout) || timeout <= 0) {
      const allowed = "timeout must be positive, and a finite number of milliseconds";
      throw new Error(`${allowed}: it is ${describe(timeout)}`);
    }
    const endsAtMs = this.#time.nowMs() + timeout;
    for (;;) {
      const decision = await this.#decide(identifier);
      const waitMs = decision.retryAfterMs ?? NO_INSTANT;
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

  /** Makes the key as new. */
  resetUsedTokens = async (identifier: string): Promise<void> => {
    await this.#limiter.reset({ ...this.#named, key: identifier });
  };

  #decide(key: string, cost?: number): Promise<Decision> {
    return this.#limiter.limit({ ...this.#named, key, ...(cost !== undefined && { cost }) });
  }

  #responseOf(decision: Decision): RatelimitResponse {
    const { success, limit, remaining = 0, resetAfterMs = 0, retryAfterMs, reason, source } = decision;
    const inMs = success ? resetAfterMs : (retryAfterMs ?? resetAfterMs);
    const figures = { success, limit, remaining, reset: this.#time.nowMs() + inMs };
    const pending = Promise.resolve();
    if (reason === "degraded") return { ...figures, pending, reason: "timeout" };
    const isKnown = !success && source === "isolate";
    return isKnown ? { ...figures, pending, reason: "cacheBlock" } : { ...figures, pending };
  }
}
