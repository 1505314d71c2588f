import { type Cost, costOf, type PolicyView, type RuleView } from "../policies/policy.ts";
import type { Decided, RuleDecision } from "../protocol/answers.ts";
import { FLOOD_MS, MAX_DENIED_MS, REQUEST_WAIT_MS } from "./sizing.ts";

interface Denial {
  readonly costs: readonly number[];
  readonly rules: readonly RuleDecision[];
  readonly atMs: number;
  /** It is repeated only before this instant. */
  untilMs: number;
  /** Present: it stands as long as its object lifts no denial, but not for longer than this after that was known last. */
  standing?: { readonly epoch: Epoch; readonly forMs: number; readonly endsAtMs: number };
  /** When it was repeated last, and since when a call has been in flight for it. */
  repeatedAtMs: number;
  requestedAtMs: number;
}

/** An object's epoch (`Decided.epoch`): when it was last known that no denial had been lifted. */
export interface Epoch {
  sureAtMs: number;
}

/** Clocks may run at rates that differ by so much, so the end of a long wait is asked for. */
const DRIFT = 0.001;
/** Calls on a denied key mostly have one of a few costs. */
const MAX_DENIALS = 4;

/**
 * Denials of one key. A denial is repeated until the first of the rules that denied would admit the cost: for at most
 * one second, or as long as the answer guarantees it, within the policy's `denialTtl` of the last answer of the object's
 * epoch. Only the same cost is denied again: a smaller one may fit, and the wait for a larger one is unknown here.
 *
 * With many holders the answer says how long a holder denies by itself (`Decided.quietMs`).
 *
 * After that, if calls are many, one of them goes to the object; until its answer comes the others are denied with a
 * short wait instead of queueing. So a flood costs the object one call at a time.
 */
export class Denials {
  #denials: readonly Denial[] = [];

  /** Remembers a denial. An admission forgets denials of that cost. */
  learn(
    policy: PolicyView,
    cost: Cost,
    rules: readonly RuleDecision[],
    nowMs: number,
    firmForMs = 0,
    quietMs = 0,
  ): void {
    const { localDecisions, denialTtlMs, deadlineMs } = policy;
    if (!localDecisions.denies || denialTtlMs === 0 || rules.length !== policy.rules.length) return;
    const isUseful = ({ untilMs, requestedAtMs }: Denial) =>
      nowMs < Math.max(untilMs, requestedAtMs + deadlineMs) + FLOOD_MS;
    const others = this.#denials.filter((each) => isUseful(each) && !isOf(policy, each, cost));
    const waits = rules.filter(({ success }) => !success).map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
    const maxMs = Math.min(denialTtlMs, Math.max(MAX_DENIED_MS, firmForMs));
    const denial: Denial = {
      costs: policy.rules.map((rule) => costOf(rule, cost)),
      rules,
      atMs: nowMs,
      untilMs: nowMs + Math.max(Math.min(maxMs, ...waits), Math.min(denialTtlMs, quietMs)),
      repeatedAtMs: -Infinity,
      requestedAtMs: -Infinity,
    };
    this.#denials = waits.length === 0 ? others : [denial, ...others].slice(0, MAX_DENIALS);
  }

  /** The denials of this answer stand while the epoch lasts. */
  stand({ rules, next, firmForMs = 0 }: Decided, epoch: Epoch): void {
    for (const denial of this.#denials) {
      if (firmForMs === 0 || (denial.rules !== rules && denial.rules !== next)) continue;
      const waits = denial.rules.map((each) => (each.success ? Infinity : (each.retryAfterMs ?? Infinity)));
      denial.standing = { epoch, forMs: firmForMs, endsAtMs: denial.atMs + (1 - DRIFT) * Math.min(...waits) };
    }
  }

  /**
   * The denial of the same cost, updated; `undefined`: only the level beneath can decide.
   *
   * @param units by rule, the units that may be spent here
   * @param isFresh the call is new: it is denied while another one with the same cost is in flight
   */
  find(
    policy: PolicyView,
    cost: Cost,
    units: readonly number[],
    nowMs: number,
    estimateOf: (rule: RuleView, index: number) => Pick<RuleDecision, "remaining" | "resetAfterMs">,
    isFresh = false,
  ): Decided | undefined {
    if (this.#denials.length === 0) return undefined;
    const denial = this.#denials.find((each) => isOf(policy, each, cost));
    if (denial === undefined) return undefined;
    const { rules, costs, atMs, standing } = denial;
    if (standing !== undefined) {
      const sureMs = standing.epoch.sureAtMs + Math.min(standing.forMs, policy.denialTtlMs);
      denial.untilMs = Math.max(denial.untilMs, Math.min(standing.endsAtMs, sureMs));
    }
    // Units granted since then may be enough now.
    const isEnough = rules.some(
      ({ success }, index) => !success && (units[index] ?? 0) >= (costs[index] ?? 0),
    );
    if (isEnough || !isRepeated(policy, denial, nowMs, isFresh)) return undefined;
    const minWaitMs = nowMs < denial.untilMs ? denial.untilMs - nowMs : REQUEST_WAIT_MS;
    return {
      rules: policy.rules.map((rule, index) => {
        const before = rules[index] as RuleDecision;
        const { success, retryAfterMs } = before;
        const { remaining, resetAfterMs } = estimateOf(rule, index);
        // Newer knowledge of a quota does not revoke the denial.
        const max = success ? Infinity : Math.max(0, (costs[index] ?? 0) - 1);
        const isKnown = success || retryAfterMs === null;
        return {
          ...before,
          remaining: Math.min(remaining, max),
          resetAfterMs,
          retryAfterMs: isKnown ? retryAfterMs : Math.max(minWaitMs, atMs + retryAfterMs - nowMs),
        };
      }),
    };
  }

  /** Without an answer, calls on an ended denial go to the object again, each for itself. */
  endRequests(): void {
    this.#denials = this.#denials.filter(({ requestedAtMs }) => requestedAtMs === -Infinity);
  }

  forget(): void {
    this.#denials = [];
  }
}

function isOf({ rules }: PolicyView, { costs }: Denial, cost: Cost): boolean {
  return rules.every((rule, index) => costs[index] === costOf(rule, cost));
}

/** Whether the denial answers a call. If not, and calls are many, that call goes to the object for all. */
function isRepeated(policy: PolicyView, denial: Denial, nowMs: number, isFresh: boolean): boolean {
  const isOver = nowMs >= denial.untilMs;
  if (isOver && !isFresh) return false;
  if (!isOver || nowMs < denial.requestedAtMs + policy.deadlineMs) {
    denial.repeatedAtMs = nowMs;
    return true;
  }
  // Without a flood all may be admitted now; with short waits, waiting for an answer would lose units.
  const isLong = denial.untilMs - denial.atMs >= FLOOD_MS;
  if (isLong && nowMs < denial.repeatedAtMs + FLOOD_MS) denial.requestedAtMs = nowMs;
  return false;
}
