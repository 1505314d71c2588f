import type { Policy, Rule } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import type { Decided, RuleDecision } from "../protocol/messages.ts";
import { MOST_DENIED_MS } from "./sizing.ts";

/** A denial that the object gave, and until when it holds. */
interface Denial {
  /** By rule. */
  readonly costs: readonly number[];
  readonly rules: readonly RuleDecision[];
  readonly atMs: number;
  readonly untilMs: number;
}

/** Callers of a key that is denied mostly ask for the same, or for one of a few costs. */
const MOST_DENIALS = 4;

/**
 * Denials of one key, remembered until the first of the rules that denied would pass, or for a second. Only the same
 * cost is answered from it: a smaller one may fit, and the exact wait of a larger one only the object knows.
 */
export class Denials {
  /** Newest first. */
  #denials: readonly Denial[] = [];

  /** Remembers a denial; of what was admitted nothing. */
  learn(policy: Policy, cost: Cost, rules: readonly RuleDecision[], nowMs: number): void {
    if (!policy.localDecisions.denies || rules.length !== policy.rules.length) return;
    const costs = policy.rules.map((rule) => costOf(rule, cost));
    const others = this.#denials.filter((each) => nowMs < each.untilMs && !isSame(each.costs, costs));
    const waits = rules.filter(({ success }) => !success).map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
    const denial = { costs, rules, atMs: nowMs, untilMs: nowMs + Math.min(MOST_DENIED_MS, ...waits) };
    this.#denials = waits.length === 0 ? others : [denial, ...others].slice(0, MOST_DENIALS);
  }

  /**
   * The same denial again.
   *
   * @param units what is here of each rule: the floor of what remains
   * @param resetAfterMs the ceiling of the time until a rule's quota is whole
   */
  find(
    policy: Policy,
    cost: Cost,
    units: readonly number[],
    nowMs: number,
    resetAfterMs: (rule: Rule, index: number) => number,
  ): Decided | undefined {
    if (this.#denials.length === 0) return undefined;
    const denial = this.#denials.find(
      ({ costs, untilMs }) =>
        nowMs < untilMs && policy.rules.every((rule, index) => costs[index] === costOf(rule, cost)),
    );
    if (denial === undefined) return undefined;
    const { rules, costs, atMs } = denial;
    // Units that came since may have made room.
    const hasRoom = rules.some(
      ({ success }, index) => !success && (units[index] ?? 0) >= (costs[index] ?? 0),
    );
    if (hasRoom) return undefined;
    return {
      rules: policy.rules.map((rule, index) => {
        const before = rules[index] as RuleDecision;
        const { success, retryAfterMs } = before;
        return {
          ...before,
          remaining: units[index] ?? 0,
          resetAfterMs: resetAfterMs(rule, index),
          retryAfterMs: success || retryAfterMs === null ? retryAfterMs : atMs + retryAfterMs - nowMs,
        };
      }),
    };
  }

  forget(): void {
    this.#denials = [];
  }
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.every((each, index) => each === b[index]);
}
