import type { PolicyView, RuleView } from "../policies/policy.ts";
import type { Reserved, RuleDecision } from "../protocol/answers.ts";
import { heldMs } from "./sizing.ts";

interface ObjectReport {
  /** Units that no holder had. */
  readonly free: number;
  /** Growth of `free` after each step of `stepMs` since `atMs`, if none are taken. */
  readonly gains: readonly number[];
  readonly stepMs: number;
  readonly atMs: number;
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
      const remaining = this.remaining(rule, index, units[index] ?? 0, nowMs);
      const resetAfterMs = this.#fullAfterMs(rule, index, limit - remaining, settledAtMs, nowMs);
      return { name, success: true, limit, remaining, resetAfterMs, retryAfterMs: 0, reason: "ok" };
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

function reportOf(rule: RuleDecision, reserved: Reserved | undefined, atMs: number): ObjectReport {
  const { name, remaining, resetAfterMs } = rule;
  if (reserved === undefined)
    return { free: remaining, gains: [], stepMs: 1, atMs, fullAtMs: atMs + resetAfterMs };
  const { units, prospects = {}, ttlMs } = reserved;
  const granted = Object.hasOwn(units, name) ? (units[name] ?? 0) : 0;
  const prospect = Object.hasOwn(prospects, name) ? prospects[name] : undefined;
  const gains = prospect?.gains ?? [];
  const fullAtMs = atMs + (prospect?.resetAfterMs ?? Infinity);
  return { free: Math.max(0, remaining - granted), gains, stepMs: ttlMs / gains.length, atMs, fullAtMs };
}

function freeAt({ free, gains, stepMs, atMs }: ObjectReport, nowMs: number): number {
  if (gains.length === 0) return free;
  const steps = Math.min(gains.length, Math.floor((nowMs - atMs) / stepMs));
  return free + (steps > 0 ? (gains[steps - 1] ?? 0) : 0);
}
