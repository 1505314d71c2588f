import { type Cost, costOf, type PolicyView, type RuleView, versionOf } from "../policies/policy.ts";
import type { Decided, Reserved, RuleDecision } from "../protocol/answers.ts";
import type { ReserveCall, Returned } from "../protocol/messages.ts";
import { Holder, type PendingRequest } from "./holder.ts";
import { heldMs } from "./sizing.ts";

/** A message that asks an object for units. */
export type ReserveRequest = PendingRequest<ReserveCall>;

/**
 * What one isolate or process knows of one key: the units that it may spend without asking, its denials, and the
 * demand. The object's half is durable-objects/operations/reservations.ts.
 */
export class Reservation extends Holder<ReserveCall> {
  readonly key: string;
  /** By rule: units that are left, and units spent since the holder began. */
  #units: number[];
  readonly #used: number[];
  readonly #estimate: QuotaEstimate;
  #forgotten = 0;
  #requested: SentRequest | undefined;

  /** @param holder an id that cannot be guessed */
  constructor(policy: PolicyView, key: string, holder: string, nowMs: number) {
    super(policy, holder, nowMs);
    this.key = key;
    this.#units = policy.rules.map(() => 0);
    this.#used = this.#units.slice();
    this.#estimate = new QuotaEstimate(policy);
  }

  /** The instant at which unused units have to go back; `undefined`: the object keeps nothing apart. */
  get endsAtMs(): number | undefined {
    return this.isHeld ? this.spendableUntilMs : undefined;
  }

  /** Whether units should be reserved with the next call: the policy allows it, and the key is worth it. */
  get isWorthUnits(): boolean {
    return this.policy.localDecisions.admits && (super.isHot || this.isWarm);
  }

  /** Whether a call may wait for a message under way: the key has enough calls, so it brings units. */
  override get isHot(): boolean {
    return this.policy.localDecisions.admits && super.isHot;
  }

  /** By rule: units spent since the holder began. */
  get used(): readonly number[] {
    return this.#used;
  }

  /** By rule: units that may be spent at `nowMs`. */
  spendableAt(nowMs: number): readonly number[] {
    return nowMs < this.spendableUntilMs ? this.#units : this.#units.map(() => 0);
  }

  protected unitsLeft(index: number): number {
    return this.#units[index] ?? 0;
  }

  /** Takes a cost from the reserved units; `false`: too few are left, and nothing is taken. */
  spend(cost: Cost, nowMs: number): boolean {
    const { rules } = this.policy;
    if (nowMs >= this.spendableUntilMs) return false;
    if (!rules.every((rule, index) => costOf(rule, cost) <= (this.#units[index] ?? 0))) return false;
    // In place, and with no list of costs: this is what each call does.
    for (const [index, rule] of rules.entries()) {
      const units = costOf(rule, cost);
      this.#units[index] = (this.#units[index] ?? 0) - units;
      this.#used[index] = (this.#used[index] ?? 0) + units;
    }
    return true;
  }

  /** The decision on a cost that has been taken. Others may have called meanwhile: see `QuotaEstimate`. */
  admitted(nowMs: number): Decided {
    return { rules: this.#estimate.admitted(this.spendableAt(nowMs), this.settledAtMs, nowMs) };
  }

  /** An admission by the object, to which no units went home: what is here remains too. */
  withOwn(decided: Decided, nowMs: number): Decided {
    const units = this.spendableAt(nowMs);
    if (units.every((each) => each === 0) || decided.rules.some(({ success }) => !success)) return decided;
    const rules = decided.rules.map((rule, index) => {
      const remaining = Math.min(rule.limit, rule.remaining + (units[index] ?? 0));
      return { ...rule, remaining };
    });
    return { ...decided, rules };
  }

  /** Denies a cost as the object did before; `undefined`: only the object can decide. */
  deny(cost: Cost, nowMs: number, isFresh = false): Decided | undefined {
    const units = this.spendableAt(nowMs);
    const estimateOf = (rule: RuleView, index: number) =>
      this.#estimate.denied(rule, index, units[index] ?? 0, nowMs);
    return this.denials.find(this.policy, cost, units, nowMs, estimateOf, isFresh);
  }

  /**
   * A message that asks for units, whose lifetime begins at `sinceMs`. With the cost of a call all units that are left
   * go back in it, so that the object decides with everything there is. With a cost of 0 the isolate keeps them as far
   * as they are wanted.
   */
  ask(cost: Cost, nowMs: number, sinceMs = nowMs): ReserveRequest {
    const wanted = this.want(nowMs);
    const before = this.spendableAt(nowMs);
    const kept = before.map((units, index) => (cost === 0 ? Math.min(units, wanted.units[index] ?? 0) : 0));
    if (this.#units.some((units, index) => units > (kept[index] ?? 0))) this.forgetDenials();
    this.#estimate.sendHome(before.map((units, index) => units - (kept[index] ?? 0)));
    this.#units = kept;
    this.#requested = this.asked;
    this.turn += 1;
    const { key, holder, policy, turn } = this;
    const { ttlMs, isShort } = wanted;
    const about = { policy: policy.name, key, cost, priority: policy.priority, ...versionOf(policy) };
    const rules = this.#byRule((index) => ({
      used: this.#used[index] ?? 0,
      kept: kept[index] ?? 0,
      wanted: wanted.units[index] ?? 0,
    }));
    const call = { ...about, holder, turn, ttlMs, isShort, rules };
    return this.send(call, wanted, sinceMs);
  }

  /** Takes over the granted units. Only the answer to the last message counts, and only once. */
  answered(message: ReserveRequest, answer: Decided, nowMs: number): void {
    if (!this.ended(message)) return;
    const { call } = message;
    const { reserved } = answer;
    this.learn(call.cost, answer, nowMs, this.#requested);
    if (reserved === undefined) return;
    const names = this.policy.rules.map(({ name }) => name);
    for (const [index, name] of names.entries()) {
      const granted = Object.hasOwn(reserved.units, name) ? (reserved.units[name] ?? 0) : 0;
      this.#units[index] = (reserved.isNew ? 0 : (this.#units[index] ?? 0)) + granted;
      // Units spent since the message was sent came from units that the object counts as used anyway.
      if (reserved.isNew) this.#used[index] = call.rules[name]?.used ?? 0;
    }
    this.begin(message, Math.min(call.ttlMs, reserved.ttlMs));
    // What is empty and settled need not end. But a region passes on what it held for an isolate only when that ends.
    const isSettled = names.every((name, index) => call.rules[name]?.used === this.#used[index]);
    this.isHeld = this.policy.pool !== undefined || !isSettled || !this.#isEmpty;
  }

  /**
   * No answer came to a message or to a call without one, or the call was not sent after all. Kept units may be spent
   * until their lifetime ends; granted ones are lost to this isolate.
   */
  failed(message?: ReserveRequest): undefined {
    this.ended(message);
    this.denials.endRequests();
  }

  /** What is known now, for `learn` when the answer to a call that is sent now has come. */
  get asked(): SentRequest {
    return { forgotten: this.#forgotten, answers: this.#estimate.answers };
  }

  /** Remembers the object's answer to a cost. A denial is not remembered if denials were forgotten since the call. */
  learn(cost: Cost, { rules, reserved, next, firmForMs }: Decided, nowMs: number, asked = this.asked): void {
    this.#estimate.learn(rules, reserved, asked.answers, nowMs);
    if (asked.forgotten !== this.#forgotten) return;
    if (cost !== 0) this.denials.learn(this.policy, cost, rules, nowMs, firmForMs);
    if (next !== undefined) this.denials.learn(this.policy, 1, next, nowMs, firmForMs);
  }

  /** Ends the reservation. Returns what to tell the object; `undefined`: the object keeps nothing apart. */
  giveBack(): Returned | undefined {
    if (!this.isHeld) return undefined;
    this.isHeld = false;
    this.message = undefined;
    // Units that were used lift no denial: an exact wait reckons with that.
    if (!this.#isEmpty) {
      this.#estimate.forget();
      this.forgetDenials();
    }
    this.#units.fill(0);
    this.spendableUntilMs = -Infinity;
    this.turn += 1;
    const { key, holder, turn } = this;
    return { key, holder, turn, used: this.#byRule((index) => this.#used[index] ?? 0) };
  }

  /** Forgets all denials: units went back to the object, so a denied cost may pass now. */
  forgetDenials(): void {
    this.denials.forget();
    this.#forgotten += 1;
  }

  get #isEmpty(): boolean {
    return this.#units.every((units) => units === 0);
  }

  #byRule<Value>(value: (index: number) => Value): Record<string, Value> {
    return Object.fromEntries(this.policy.rules.map(({ name }, index) => [name, value(index)]));
  }
}

/** What was known when a call was sent: whatever changed since may make its answer out of date. */
interface SentRequest {
  /** How often denials were forgotten, and how many answers had come. */
  readonly forgotten: number;
  readonly answers: number;
}

/** The object's last report of one rule. */
interface ObjectReport {
  /** Units that neither this holder nor another one had. */
  readonly free: number;
  /** By how many more they are after each step of `stepMs` since `atMs`, if none are taken. */
  readonly gains: readonly number[];
  readonly stepMs: number;
  readonly atMs: number;
  /** When the quota is full, whatever this holder still uses of its units. Infinity: it is not reported. */
  readonly fullAtMs: number;
}

const UNKNOWN: ObjectReport = { free: 0, gains: [], stepMs: 1, atMs: 0, fullAtMs: -Infinity };

/**
 * A holder's best knowledge of a quota: the object's last report, less what the holder has used since, plus what time
 * has given back. That is what the object had left, plus the units that the holder still has itself.
 *
 * While no other holder calls, `remaining` is never more than the object and the holder have together, and `resetAfterMs`
 * never too short. Others may have used units since; only the next answer tells.
 */
export class QuotaEstimate {
  readonly #policy: PolicyView;
  #reports: readonly ObjectReport[];
  /** How many answers have come. Of calls that overlap it is unknown which answer is the later one. */
  answers = 0;

  constructor(policy: PolicyView) {
    this.#policy = policy;
    this.#reports = policy.rules.map(() => UNKNOWN);
  }

  /**
   * Takes over what an answer reports.
   *
   * @param answersBefore as `answers` was when the call was sent; when another answer has come since, the worse of
   * both counts
   */
  learn(
    rules: readonly RuleDecision[],
    reserved: Reserved | undefined,
    answersBefore: number,
    nowMs: number,
  ): void {
    if (rules.length !== this.#reports.length) return;
    const isLatest = answersBefore === this.answers;
    this.answers += 1;
    this.#reports = rules.map((rule, index) => {
      const report = reportOf(rule, reserved, nowMs);
      const before = this.#reports[index];
      if (isLatest || before === undefined || before === UNKNOWN) return report;
      // The earlier report counts as it is now, and gains nothing: the gains of one are of units that the other may
      // have counted already.
      const max = freeAt(before, nowMs);
      const free = Math.min(report.free, max);
      const gains = report.gains.map((gain) => Math.min(report.free + gain, max) - free);
      return { ...report, free, gains, fullAtMs: Math.max(report.fullAtMs, before.fullAtMs) };
    });
  }

  /** Units of each rule go home with a message: the object has them when it answers. */
  sendHome(units: readonly number[]): void {
    this.#reports = this.#reports.map((report, index) => ({
      ...report,
      free: report.free + (units[index] ?? 0),
    }));
  }

  /** Forgets all reports: units went home that the object has not answered for. */
  forget(): void {
    this.#reports = this.#reports.map(() => UNKNOWN);
  }

  /** The largest cost that would pass now, as far as is known. */
  remaining(rule: RuleView, index: number, units: number, nowMs: number): number {
    return Math.min(rule.capacity, freeAt(this.#reports[index] ?? UNKNOWN, nowMs) + units);
  }

  /**
   * The decision of every rule on a cost that was just spent from units that the holder had.
   *
   * @param units by rule, the units that it still has
   * @param settledAtMs by when it settles with the object: until then used units are missing, and unused ones come back
   */
  admitted(units: readonly number[], settledAtMs: number, nowMs: number): RuleDecision[] {
    return this.#policy.rules.map((rule, index) => {
      const { name, capacity: limit } = rule;
      const remaining = this.remaining(rule, index, units[index] ?? 0, nowMs);
      const resetAfterMs = this.#fullAfterMs(rule, index, limit - remaining, settledAtMs, nowMs);
      return { name, success: true, limit, remaining, resetAfterMs, retryAfterMs: 0, reason: "ok" };
    });
  }

  /** What is known of a rule whose cost is denied; `units`: those that the holder has. */
  denied(rule: RuleView, index: number, units: number, nowMs: number) {
    const remaining = this.remaining(rule, index, units, nowMs);
    const reportedMs = this.#reportedAfterMs(index, nowMs);
    // Of a denied key more may be missing than its capacity. Only the object knows.
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

  /** Infinity: it is not reported. */
  #reportedAfterMs(index: number, nowMs: number): number {
    return Math.max(0, (this.#reports[index] ?? UNKNOWN).fullAtMs - nowMs);
  }
}

function reportOf(
  { name, remaining, resetAfterMs }: RuleDecision,
  reserved: Reserved | undefined,
  atMs: number,
): ObjectReport {
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
