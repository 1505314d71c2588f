import type { HeldPolicy, HeldRule } from "../policies/held-policy.ts";
import type { Decided, Reserved, RuleDecision } from "../protocol/answers.ts";
import { heldMs } from "./sizing.ts";

/** What was known when a question was asked: whatever changed since may make its answer out of date. */
export interface Asked {
  /** How often denials were forgotten, and how many answers were heard. */
  readonly forgotten: number;
  readonly heard: number;
}

/** What the object said last of one rule. */
interface Word {
  /** Units that neither this holder nor another one had. */
  readonly free: number;
  /** By how many more they are after each step of `stepMs` since `atMs`, if nobody takes any. */
  readonly gains: readonly number[];
  readonly stepMs: number;
  readonly atMs: number;
  /** When the quota is whole, whatever this holder still uses of its units. Infinity: the object did not say. */
  readonly wholeAtMs: number;
}

const UNKNOWN: Word = { free: 0, gains: [], stepMs: 1, atMs: 0, wholeAtMs: -Infinity };

/**
 * A holder's best knowledge of a quota: what the object said last, less what the holder has used since, plus what time
 * has given back. That is what the object had left, plus the units that the holder still has itself.
 *
 * While nobody else calls, `remaining` is never more than the object and the holder have together, and `resetAfterMs`
 * never too short. Others may have used units since; only the next answer tells.
 */
export class Figures {
  readonly #policy: HeldPolicy;
  #words: readonly Word[];
  #heard = 0;

  constructor(policy: HeldPolicy) {
    this.#policy = policy;
    this.#words = policy.rules.map(() => UNKNOWN);
  }

  /** How many answers were heard. Of questions that overlap nobody knows which answer is the later one. */
  get heard(): number {
    return this.#heard;
  }

  /**
   * Takes over what an answer says.
   *
   * @param heardBefore as `heard` was when the question was asked; when another answer has come since, the worse of
   * both counts
   */
  hear(
    rules: readonly RuleDecision[],
    reserved: Reserved | undefined,
    heardBefore: number,
    nowMs: number,
  ): void {
    if (rules.length !== this.#words.length) return;
    const isLatest = heardBefore === this.#heard;
    this.#heard += 1;
    this.#words = rules.map((said, index) => {
      const word = wordOf(said, reserved, nowMs);
      const before = this.#words[index];
      if (isLatest || before === undefined || before === UNKNOWN) return word;
      const wholeAtMs = Math.max(word.wholeAtMs, before.wholeAtMs);
      return { ...word, ...lesser(word, freeAt(before, nowMs)), wholeAtMs };
    });
  }

  /** Units of each rule go home with a message: the object has them when it answers. */
  sendHome(units: readonly number[]): void {
    this.#words = this.#words.map((word, index) => ({ ...word, free: word.free + (units[index] ?? 0) }));
  }

  /** Forgets what was said: units went home that the object has not answered for. */
  forget(): void {
    this.#words = this.#words.map(() => UNKNOWN);
  }

  /** The largest cost that would pass now, as far as is known. */
  remaining(rule: HeldRule, index: number, units: number, nowMs: number): number {
    return Math.min(rule.capacity, freeAt(this.#words[index] ?? UNKNOWN, nowMs) + units);
  }

  /**
   * What every rule says of a cost that was just spent from units that the holder had.
   *
   * @param units by rule, the units that it still has
   * @param settledAtMs by when it settles with the object: until then used units are missing, and unused ones come back
   */
  admitted(units: readonly number[], settledAtMs: number, nowMs: number): RuleDecision[] {
    return this.#policy.rules.map((rule, index) => {
      const { name, capacity: limit } = rule;
      const remaining = this.remaining(rule, index, units[index] ?? 0, nowMs);
      const resetAfterMs = this.#wholeAfterMs(rule, index, limit - remaining, settledAtMs, nowMs);
      return { name, success: true, limit, remaining, resetAfterMs, retryAfterMs: 0, reason: "ok" };
    });
  }

  /** What is known of a rule whose cost is denied; `units`: those that the holder has. */
  denied(rule: HeldRule, index: number, units: number, nowMs: number) {
    const remaining = this.remaining(rule, index, units, nowMs);
    const saidMs = this.#saidAfterMs(index, nowMs);
    // Of a denied key more may be missing than its capacity. Only the object knows.
    const resetAfterMs =
      saidMs < Infinity ? saidMs : this.#wholeAfterMs(rule, index, rule.capacity, nowMs, nowMs);
    return { remaining, resetAfterMs };
  }

  #wholeAfterMs(rule: HeldRule, index: number, missing: number, settledAtMs: number, nowMs: number): number {
    if (missing === 0) return 0;
    const { pool, reservation } = this.#policy;
    // A region settles what its isolates have used, and then the pool has to be told.
    const laterMs = pool === undefined ? 0 : heldMs(reservation.mostMs);
    const settledMs = Math.max(0, settledAtMs - nowMs) + laterMs;
    const refilledMs = settledMs + rule.algorithm.wholeFromMs(rule.config, missing);
    return Math.min(this.#saidAfterMs(index, nowMs), refilledMs);
  }

  /** Infinity: the object did not say. */
  #saidAfterMs(index: number, nowMs: number): number {
    return Math.max(0, (this.#words[index] ?? UNKNOWN).wholeAtMs - nowMs);
  }
}

/** An admission by the object with units that the holder has besides. */
export function withUnits(decided: Decided, units: readonly number[]): Decided {
  if (units.every((each) => each === 0) || decided.rules.some(({ success }) => !success)) return decided;
  const rules = decided.rules.map((said, index) => {
    const remaining = Math.min(said.limit, said.remaining + (units[index] ?? 0));
    return { ...said, remaining };
  });
  return { ...decided, rules };
}

function wordOf(
  { name, remaining, resetAfterMs }: RuleDecision,
  reserved: Reserved | undefined,
  atMs: number,
) {
  if (reserved === undefined)
    return { free: remaining, gains: [], stepMs: 1, atMs, wholeAtMs: atMs + resetAfterMs };
  const { units, prospects = {}, ttlMs } = reserved;
  const granted = Object.hasOwn(units, name) ? (units[name] ?? 0) : 0;
  const prospect = Object.hasOwn(prospects, name) ? prospects[name] : undefined;
  const gains = prospect?.gains ?? [];
  const wholeAtMs = atMs + (prospect?.resetAfterMs ?? Infinity);
  return { free: Math.max(0, remaining - granted), gains, stepMs: ttlMs / gains.length, atMs, wholeAtMs };
}

/**
 * What is free as far as both words say. The other one counts as it is now, and gains nothing: the gains of one are
 * of units that the other may have counted already.
 */
function lesser({ free, gains }: Word, other: number): Pick<Word, "free" | "gains"> {
  const least = Math.min(free, other);
  return { free: least, gains: gains.map((gain) => Math.min(free + gain, other) - least) };
}

function freeAt({ free, gains, stepMs, atMs }: Word, nowMs: number): number {
  if (gains.length === 0) return free;
  const steps = Math.min(gains.length, Math.floor((nowMs - atMs) / stepMs));
  return free + (steps > 0 ? (gains[steps - 1] ?? 0) : 0);
}
