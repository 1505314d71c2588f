/** What a holder knows of a key from answers of the level beneath: what is denied, and what is left of the quota. */
import type { Share } from "../algorithms/algorithm.ts";
import { type Cost, costOf, type PolicyView, type RuleView } from "../policies/policy.ts";
import type { Decided, Reserved, RuleDecision } from "../protocol/answers.ts";
import { FLOOD_MS, heldMs, MAX_DENIED_MS, REQUEST_WAIT_MS } from "./sizing.ts";

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
  /** The last one, also after a call was admitted. */
  #latest: Denial | undefined;

  /** Remembers a denial. An admission forgets all: what it took makes the waits of other costs longer. */
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
    if (waits.length > 0) this.#latest = denial;
    this.#denials = waits.length === 0 ? [] : [denial, ...others].slice(0, MAX_DENIALS);
  }

  /** Units that the object had counted as free were spent here: other costs wait for longer than their denials say. */
  spent(policy: PolicyView, cost: Cost): void {
    if (this.#denials.length > 0) this.#denials = this.#denials.filter((each) => isOf(policy, each, cost));
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
   * @param isCrowded as many calls ask already as can find units: the last denial is repeated, though others were admitted since
   */
  find(
    policy: PolicyView,
    cost: Cost,
    units: readonly number[],
    nowMs: number,
    estimateOf: (rule: RuleView, index: number) => Pick<RuleDecision, "remaining" | "resetAfterMs">,
    isFresh = false,
    isCrowded = false,
  ): Decided | undefined {
    const known = isCrowded ? [...this.#denials, ...this.#recent(nowMs)] : this.#denials;
    if (known.length === 0) return undefined;
    const denial = known.find((each) => isOf(policy, each, cost));
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
    if (isEnough || !isRepeated(policy, denial, nowMs, isFresh, isCrowded)) return undefined;
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
    this.#latest = undefined;
  }

  #recent(nowMs: number): readonly Denial[] {
    return this.#latest !== undefined && nowMs < this.#latest.atMs + MAX_DENIED_MS ? [this.#latest] : [];
  }
}

function isOf({ rules }: PolicyView, { costs }: Denial, cost: Cost): boolean {
  return rules.every((rule, index) => costs[index] === costOf(rule, cost));
}

/** Whether the denial answers a call. If not, and calls are many, that call goes to the object for all. */
function isRepeated(
  policy: PolicyView,
  denial: Denial,
  nowMs: number,
  isFresh: boolean,
  isCrowded: boolean,
): boolean {
  const isOver = nowMs >= denial.untilMs;
  if (isOver && !isFresh && !isCrowded) return false;
  if (!isOver || isCrowded || nowMs < denial.requestedAtMs + policy.deadlineMs) {
    denial.repeatedAtMs = nowMs;
    return true;
  }
  // Without a flood all may be admitted now; with short waits, waiting for an answer would lose units.
  const isLong = denial.untilMs - denial.atMs >= FLOOD_MS;
  if (isLong && nowMs < denial.repeatedAtMs + FLOOD_MS) denial.requestedAtMs = nowMs;
  return false;
}

interface ObjectReport {
  /** Units that no holder had. */
  readonly free: number;
  /** Growth of `free` after each step of `stepMs` since `atMs`, if none are taken. */
  readonly gains: readonly number[];
  readonly stepMs: number;
  readonly atMs: number;
  /** The part of the group whose calls are decided. */
  readonly share?: Share | undefined;
  /** When the quota is full, whatever this holder still uses of its units; Infinity: not reported. */
  readonly fullAtMs: number;
}

const UNKNOWN: ObjectReport = { free: 0, gains: [], stepMs: 1, atMs: 0, fullAtMs: -Infinity };

/**
 * A holder's best knowledge of a quota: the object's last report, minus later use by the holder, plus what time has
 * returned: the object's remaining units plus the holder's.
 *
 * While no other holder calls, `remaining` is never more than the object and the holder have together, and
 * `resetAfterMs` never too short. Use by others shows only in the next answer.
 */
export class QuotaEstimate {
  readonly #policy: PolicyView;
  #reports: readonly ObjectReport[];
  /** Answers so far. Those of overlapping calls have no known order. */
  answers = 0;

  constructor(policy: PolicyView) {
    this.#policy = policy;
    this.#reports = policy.rules.map(() => UNKNOWN);
  }

  /** @param answersBefore `answers` when the call was sent; if others came since, the worse count is used */
  learn(
    rules: readonly RuleDecision[],
    reserved: Reserved | undefined,
    answersBefore: number,
    nowMs: number,
  ) {
    if (rules.length !== this.#reports.length) return;
    const isLatest = answersBefore === this.answers;
    this.answers += 1;
    this.#reports = rules.map((rule, index) => {
      const report = reportOf(rule, reserved, nowMs);
      const before = this.#reports[index];
      if (isLatest || before === undefined || before === UNKNOWN) return report;
      // The earlier report counts at its present value, without gains: the other may have counted the same units.
      const max = freeAt(before, nowMs);
      const free = Math.min(report.free, max);
      const gains = report.gains.map((gain) => Math.min(report.free + gain, max) - free);
      return { ...report, free, gains, fullAtMs: Math.max(report.fullAtMs, before.fullAtMs) };
    });
  }

  /** Units of each rule return with a message: the object has them when it answers. */
  addReturned(units: readonly number[]): void {
    this.#reports = this.#reports.map((report, index) => ({
      ...report,
      free: report.free + (units[index] ?? 0),
    }));
  }

  /** Forgets all reports: returned units are not in any answer yet. */
  forget(): void {
    this.#reports = this.#reports.map(() => UNKNOWN);
  }

  remaining(rule: RuleView, index: number, units: number, nowMs: number): number {
    return Math.min(rule.capacity, freeAt(this.#reports[index] ?? UNKNOWN, nowMs) + units);
  }

  /** @param settledAtMs when the holder settles with the object at the latest: until then used units are missing */
  admitted(units: readonly number[], settledAtMs: number, nowMs: number): RuleDecision[] {
    return this.#policy.rules.map((rule, index) => {
      const { name, capacity: limit } = rule;
      const { share } = this.#reports[index] ?? UNKNOWN;
      const remaining = this.remaining(rule, index, units[index] ?? 0, nowMs);
      const resetAfterMs = this.#fullAfterMs(rule, index, limit - remaining, settledAtMs, nowMs);
      return {
        name,
        success: true,
        limit,
        remaining,
        resetAfterMs,
        retryAfterMs: 0,
        reason: "ok",
        ...(share && { share: shareWith(share, units[index] ?? 0) }),
      };
    });
  }

  /** The knowledge of a rule whose cost is denied; `units`: those of the holder. */
  denied(rule: RuleView, index: number, units: number, nowMs: number) {
    const remaining = this.remaining(rule, index, units, nowMs);
    const reportedMs = this.#reportedAfterMs(index, nowMs);
    // A denied key may lack more than its capacity, known only to the object.
    const resetAfterMs =
      reportedMs < Infinity ? reportedMs : this.#fullAfterMs(rule, index, rule.capacity, nowMs, nowMs);
    return { remaining, resetAfterMs };
  }

  #fullAfterMs(rule: RuleView, index: number, missing: number, settledAtMs: number, nowMs: number): number {
    if (missing === 0) return 0;
    const { pool, reservation } = this.#policy;
    // A region settles what its isolates have used, and after that its pool.
    const laterMs = pool === undefined ? 0 : heldMs(reservation.mostMs);
    const settledMs = Math.max(0, settledAtMs - nowMs) + laterMs;
    const refilledMs = settledMs + rule.algorithm.refillMs(rule.config, missing);
    return Math.min(this.#reportedAfterMs(index, nowMs), refilledMs);
  }

  #reportedAfterMs(index: number, nowMs: number): number {
    return Math.max(0, (this.#reports[index] ?? UNKNOWN).fullAtMs - nowMs);
  }
}

/** A rule may have the name of a method of objects. */
export function ownValue<Value>(of: Readonly<Record<string, Value>>, name: string): Value | undefined {
  return Object.hasOwn(of, name) ? of[name] : undefined;
}

function reportOf(rule: RuleDecision, reserved: Reserved | undefined, atMs: number): ObjectReport {
  const { name, remaining, resetAfterMs, share } = rule;
  if (reserved === undefined)
    return { ...UNKNOWN, free: remaining, atMs, fullAtMs: atMs + resetAfterMs, share };
  const { units, prospects = {}, ttlMs } = reserved;
  const granted = ownValue(units, name) ?? 0;
  const prospect = ownValue(prospects, name);
  const gains = prospect?.gains ?? [];
  const fullAtMs = atMs + (prospect?.resetAfterMs ?? Infinity);
  const free = Math.max(0, remaining - granted);
  return {
    free,
    gains,
    stepMs: ttlMs / gains.length,
    atMs,
    fullAtMs,
    share: share && shareWith(share, -granted),
  };
}

/** What a group may take of its part is more by the units that its holder has. */
function shareWith({ group, limit, remaining }: Share, units: number): Share {
  return { group, limit, remaining: Math.max(0, Math.min(limit, remaining + units)) };
}

function freeAt({ free, gains, stepMs, atMs }: ObjectReport, nowMs: number): number {
  if (gains.length === 0) return free;
  const steps = Math.min(gains.length, Math.floor((nowMs - atMs) / stepMs));
  return free + (steps > 0 ? (gains[steps - 1] ?? 0) : 0);
}
