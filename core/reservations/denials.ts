import { type Cost, costOf, type PolicyView, type RuleView } from "../policies/policy.ts";
import type { Decided, RuleDecision } from "../protocol/answers.ts";
import { ASKING_WAIT_MS, FLOOD_MS, MAX_DENIED_MS } from "./sizing.ts";

/** A denial that the object answered. */
interface Denial {
  /** The units that were asked for, by rule. */
  readonly costs: readonly number[];
  readonly rules: readonly RuleDecision[];
  readonly atMs: number;
  /** It is repeated before this instant only. */
  readonly untilMs: number;
  /** When it was repeated last, and since when a call has been asking the object again. */
  repeatedAtMs: number;
  askedAtMs: number;
}

/** Calls on a denied key mostly have the same cost, or one of a few costs. */
const MAX_DENIALS = 4;

/**
 * Denials of one key. A denial is remembered until the first of the rules that denied would admit the cost: for one
 * second at most, or for as long as the object said that it stands, within the policy's `denialTtl`. Only the same cost
 * is denied again: a smaller cost may fit, and only the object knows the exact wait for a larger one.
 *
 * When that is over and calls are many, one of them asks the object. Until it has its answer the others are denied with
 * a short wait, instead of queueing behind it: so a flood costs the object one call at a time.
 */
export class Denials {
  /** Newest first. */
  #denials: readonly Denial[] = [];

  /**
   * Remembers the answer to a cost if it is a denial. After an admission, forgets denials of that cost.
   *
   * @param firmForMs for so long the denial stands before its wait is over; 0: units may come back at any time
   */
  learn(policy: PolicyView, cost: Cost, rules: readonly RuleDecision[], nowMs: number, firmForMs = 0): void {
    const { localDecisions, denialTtlMs } = policy;
    if (!localDecisions.denies || denialTtlMs === 0 || rules.length !== policy.rules.length) return;
    const costs = policy.rules.map((rule) => costOf(rule, cost));
    const others = this.#denials.filter((each) => nowMs < lastMs(policy, each) && !isSame(each.costs, costs));
    const waits = rules.filter(({ success }) => !success).map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
    const mostMs = Math.min(denialTtlMs, Math.max(MAX_DENIED_MS, firmForMs));
    const untilMs = nowMs + Math.min(mostMs, ...waits);
    const denial = { costs, rules, atMs: nowMs, untilMs, repeatedAtMs: -Infinity, askedAtMs: -Infinity };
    this.#denials = waits.length === 0 ? others : [denial, ...others].slice(0, MAX_DENIALS);
  }

  /**
   * The denial of the same cost as an answer for now; `undefined`: the object has to be asked.
   *
   * @param units by rule, the units that may be spent here
   * @param figuresOf what is known of a rule now
   * @param isFresh the call has just come: while another one asks the object for the same cost, it is denied
   */
  find(
    policy: PolicyView,
    cost: Cost,
    units: readonly number[],
    nowMs: number,
    figuresOf: (rule: RuleView, index: number) => Pick<RuleDecision, "remaining" | "resetAfterMs">,
    isFresh = false,
  ): Decided | undefined {
    if (this.#denials.length === 0) return undefined;
    const denial = this.#denials.find(({ costs }) =>
      policy.rules.every((rule, index) => costs[index] === costOf(rule, cost)),
    );
    if (denial === undefined) return undefined;
    const { rules, costs, atMs } = denial;
    // Units that were granted since then may be enough now.
    const hasRoom = rules.some(
      ({ success }, index) => !success && (units[index] ?? 0) >= (costs[index] ?? 0),
    );
    if (hasRoom || !isRepeated(policy, denial, nowMs, isFresh)) return undefined;
    return {
      rules: policy.rules.map((rule, index) => {
        const before = rules[index] as RuleDecision;
        const { success, retryAfterMs } = before;
        const { remaining, resetAfterMs } = figuresOf(rule, index);
        // What is known of a quota may be newer than the denial, and is no reason to go back on it.
        const most = success ? Infinity : Math.max(0, (costs[index] ?? 0) - 1);
        const leastMs = nowMs < denial.untilMs ? 0 : ASKING_WAIT_MS;
        return {
          ...before,
          remaining: Math.min(remaining, most),
          resetAfterMs,
          retryAfterMs:
            success || retryAfterMs === null ? retryAfterMs : Math.max(leastMs, atMs + retryAfterMs - nowMs),
        };
      }),
    };
  }

  /** Nobody answered, or nobody asks: calls on what is over ask again, each for itself. */
  giveUpAsking(): void {
    this.#denials = this.#denials.filter(({ askedAtMs }) => askedAtMs === -Infinity);
  }

  /** Forgets all denials. */
  forget(): void {
    this.#denials = [];
  }
}

/** Whether the denial answers a call; if not, and calls are many, that call is the one that asks for all. */
function isRepeated(policy: PolicyView, denial: Denial, nowMs: number, isFresh: boolean): boolean {
  const isOver = nowMs >= denial.untilMs;
  if (isOver && !isFresh) return false;
  const isAsked = nowMs < denial.askedAtMs + policy.deadlineMs;
  if (!isOver || isAsked) {
    denial.repeatedAtMs = nowMs;
    return true;
  }
  // Without a flood, calls that come together may all pass now. And where units come back faster than an answer, the
  // others would miss some: then all of them ask.
  const isLong = denial.untilMs - denial.atMs >= FLOOD_MS;
  if (isLong && nowMs < denial.repeatedAtMs + FLOOD_MS) denial.askedAtMs = nowMs;
  return false;
}

/** From when on the denial is of no use any more. */
function lastMs({ deadlineMs }: PolicyView, { untilMs, askedAtMs }: Denial): number {
  return Math.max(untilMs, askedAtMs + deadlineMs) + FLOOD_MS;
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.every((each, index) => each === b[index]);
}
