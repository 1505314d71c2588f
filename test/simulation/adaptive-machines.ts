/**
 * Ten machines call one upstream whose capacity halves after a minute and recovers after another. Every call
 * takes from an adaptive limit of the production code: shared, as an object has it, or one for each machine.
 */
import { type Report, UNTOUCHED, advance, endLease, place } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import type { Rule } from "../../core/policies/policy.ts";
import { decide } from "../support/decide.ts";
import { seededRandom } from "../support/random.ts";
import { ruleOf } from "../support/rules.ts";
import { Events, Upstream } from "./upstream.ts";

export const MACHINES = 10;
export const CAPACITY = 40;
export const HALVED_AT_S = 60;
export const RECOVERED_AT_S = 120;
export const END_S = 180;
/** Offered calls of all machines in a second. The upstream serves 800, or 400 while it is halved. */
export const OFFERED_PER_S = 700;
/** After this time a caller gives up, and reports the call as dropped. */
export const PATIENCE_MS = 500;
/** The round trip to an object, in milliseconds. A machine's own limit costs nothing. */
const ROUND_TRIP_MS = 4;
const FIRST_LIMIT = 20;
const MAX_LIMIT = 200;
const START_MS = 1_760_000_000_000;

export type Adapt = "aimd" | "vegas" | "gradient2";
/** `shared`: one limit. `own`: one per machine. `divided`: own, a tenth of the ceiling. `none`: no limit. */
export type Who = "shared" | "own" | "divided" | "none";

export interface Second {
  /** Calls that were answered in time, given up, and refused by the limit. */
  good: number;
  lost: number;
  refused: number;
  /** Durations of the answered and the lost calls for their callers, in milliseconds. */
  readonly tookMs: number[];
  limit: number;
}

/** A rule with Netflix's defaults, except for AIMD, which needs a duration from which calls are slow. */
export function ruleFor(adapt: Adapt, who: Who): Rule {
  const slow = adapt === "aimd" ? { timeout: "200ms" } : {};
  const limit = who === "divided" ? MAX_LIMIT / MACHINES : MAX_LIMIT;
  const initial = who === "shared" ? FIRST_LIMIT : FIRST_LIMIT / MACHINES;
  return ruleOf({ algorithm: "adaptive-concurrency", adapt, limit, initial, ...slow });
}

class Slots {
  readonly #rule: Rule;
  #account: Account = UNTOUCHED;
  #ids = 0;

  constructor(rule: Rule) {
    this.#rule = rule;
  }

  take(atMs: number): string | undefined {
    const nowMs = Math.floor(atMs);
    this.#account = advance(this.#rule, this.#account, nowMs);
    const decision = decide(this.#rule, this.#account, nowMs, 1);
    if (!decision.allowed) return undefined;
    this.#ids += 1;
    const id = `${this.#ids}`;
    this.#account = place(decision.account, { id, units: 1, expiresAtMs: nowMs + 60_000 });
    return id;
  }

  end(id: string, atMs: number, report: Report): void {
    this.#account = endLease(this.#rule, this.#account, Math.floor(atMs), id, report);
  }

  limit(atMs: number): number {
    return this.#rule.algorithm.limitNow?.(this.#rule.config, this.#account.state, Math.floor(atMs)) ?? 0;
  }
}

/** Runs the three minutes, and returns the results of each second. */
export function simulate(adapt: Adapt, who: Who, seed: number): Second[] {
  const random = seededRandom(seed);
  const exponential = (mean: number) => -mean * Math.log(1 - random());
  const events = new Events(START_MS);
  const upstream = new Upstream(events, CAPACITY, () => 40 + exponential(10));
  const seconds = Array.from({ length: END_S }, (): Second => ({
    good: 0,
    lost: 0,
    refused: 0,
    tookMs: [],
    limit: 0,
  }));
  const secondOf = (atMs: number) => seconds[Math.floor((atMs - START_MS) / 1_000)];
  const count = { shared: 1, own: MACHINES, divided: MACHINES, none: 0 }[who];
  const slots = Array.from({ length: count }, () => new Slots(ruleFor(adapt, who)));
  const oneWayMs = who === "shared" ? ROUND_TRIP_MS / 2 : 0;

  const call = (mine: Slots | undefined) => {
    const askedMs = events.nowMs;
    events.after(oneWayMs, () => {
      const id = mine?.take(events.nowMs);
      if (mine !== undefined && id === undefined) {
        const second = secondOf(events.nowMs);
        if (second !== undefined) second.refused += 1;
        return;
      }
      events.after(oneWayMs, () => {
        const begunMs = events.nowMs;
        let isOver = false;
        const end = (outcome: "ok" | "dropped") => {
          if (isOver) return;
          isOver = true;
          const second = secondOf(events.nowMs);
          if (second !== undefined) {
            second[outcome === "ok" ? "good" : "lost"] += 1;
            second.tookMs.push(events.nowMs - askedMs);
          }
          const report = { outcome, durationMs: events.nowMs - begunMs };
          events.after(oneWayMs, () => id !== undefined && mine?.end(id, events.nowMs, report));
        };
        upstream.ask(() => end("ok"));
        events.after(PATIENCE_MS, () => end("dropped"));
      });
    });
  };

  // Some machines are busier than others: the second has half of the first one's calls, the third a third.
  const weights = Array.from({ length: MACHINES }, (_, machine) => 1 / (machine + 1));
  const all = weights.reduce((sum, weight) => sum + weight, 0);
  for (const [machine, weight] of weights.entries()) {
    const meanMs = (1_000 * all) / (OFFERED_PER_S * weight);
    const next = () => {
      call(slots[machine % Math.max(1, count)]);
      events.after(exponential(meanMs), next);
    };
    events.after(exponential(meanMs), next);
  }
  events.after(HALVED_AT_S * 1_000, () => void (upstream.capacity = CAPACITY / 2));
  events.after(RECOVERED_AT_S * 1_000, () => {
    upstream.capacity = CAPACITY;
    upstream.serve();
  });
  for (const [index, second] of seconds.entries()) {
    events.run(START_MS + (index + 1) * 1_000);
    second.limit = slots.reduce((sum, each) => sum + each.limit(events.nowMs), 0);
  }
  return seconds;
}

/** Averages per second over a range of seconds. */
export interface Summary {
  readonly goodPerS: number;
  readonly lostPerS: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly limit: number;
}

export function summaryOf(seconds: readonly Second[], fromS: number, toS: number): Summary {
  const part = seconds.slice(fromS, toS);
  const mean = (of: (second: Second) => number) =>
    part.reduce((sum, second) => sum + of(second), 0) / Math.max(1, part.length);
  const tookMs = part.flatMap((second) => second.tookMs).toSorted((a, b) => a - b);
  const quantile = (share: number) => tookMs[Math.floor(tookMs.length * share)] ?? NaN;
  return {
    goodPerS: mean(({ good }) => good),
    lostPerS: mean(({ lost }) => lost),
    p50Ms: quantile(0.5),
    p99Ms: quantile(0.99),
    limit: mean(({ limit }) => limit),
  };
}
