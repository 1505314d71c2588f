import type { Policy, Rule } from "../policies/policy.ts";
import type { Decided, RuleDecision } from "../protocol/answers.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import { MOST_DENIED_MS } from "./sizing.ts";

/** A denial that the object answered. */
interface Denial {
  /** The units that were asked for, by rule. */
  readonly costs: readonly number[];
  readonly rules: readonly RuleDecision[];
  readonly atMs: number;
  /** It is repeated before this instant only. */
  readonly untilMs: number;
}

/** Calls on a denied key mostly have the same cost, or one of a few costs. */
const MOST_DENIALS = 4;

/**
 * Denials of one key. A denial is remembered until the first of the rules that denied would admit the cost, but for
 * one second at most. Only the same cost is denied again: a smaller cost may fit, and only the object knows the exact
 * wait for a larger one.
 */
export class Denials {
  /** Newest first. */
  #denials: readonly Denial[] = [];

  /** Remembers the answer to a cost if it is a denial. After an admission, forgets denials of that cost. */
  learn(policy: Policy, cost: Cost, rules: readonly RuleDecision[], nowMs: number): void {
    if (!policy.localDecisions.denies || rules.length !== policy.rules.length) return;
    const costs = policy.rules.map((rule) => costOf(rule, cost));
    const others = this.#denials.filter((each) => nowMs < each.untilMs && !isSame(each.costs, costs));
    const waits = rules.filter(({ success }) => !success).map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
    const denial = { costs, rules, atMs: nowMs, untilMs: nowMs + Math.min(MOST_DENIED_MS, ...waits) };
    this.#denials = waits.length === 0 ? others : [denial, ...others].slice(0, MOST_DENIALS);
  }

  /**
   * The denial of the same cost as an answer for now; `undefined`: the object has to be asked.
   *
   * @param units by rule, the units that may be spent here
   * @param figuresOf what is known of a rule now
   */
  find(
    policy: Policy,
    cost: Cost,
    units: readonly number[],
    nowMs: number,
    figuresOf: (rule: Rule, index: number) => Pick<RuleDecision, "remaining" | "resetAfterMs">,
  ): Decided | undefined {
    if (this.#denials.length === 0) return undefined;
    const denial = this.#denials.find(
      ({ costs, untilMs }) =>
        nowMs < untilMs && policy.rules.every((rule, index) => costs[index] === costOf(rule, cost)),
    );
    if (denial === undefined) return undefined;
    const { rules, costs, atMs } = denial;
    // Units that were granted since then may be enough now.
    const hasRoom = rules.some(
      ({ success }, index) => !success && (units[index] ?? 0) >= (costs[index] ?? 0),
    );
    if (hasRoom) return undefined;
    return {
      rules: policy.rules.map((rule, index) => {
        const before = rules[index] as RuleDecision;
        const { success, retryAfterMs } = before;
        const { remaining, resetAfterMs } = figuresOf(rule, index);
        // What is known of a quota may be newer than the denial, and is no reason to go back on it.
        const most = success ? Infinity : Math.max(0, (costs[index] ?? 0) - 1);
        return {
          ...before,
          remaining: Math.min(remaining, most),
          resetAfterMs,
          retryAfterMs: success || retryAfterMs === null ? retryAfterMs : atMs + retryAfterMs - nowMs,
        };
      }),
    };
  }

  /** Forgets all denials. */
  forget(): void {
    this.#denials = [];
  }
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.every((each, index) => each === b[index]);
}
