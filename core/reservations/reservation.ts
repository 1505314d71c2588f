import { type Cost, type PolicyView, type RuleView, versionOf } from "../policies/policy.ts";
import type { Decided, Reserved, RuleDecision } from "../protocol/answers.ts";
import type { Returned } from "../protocol/messages.ts";
import { Denials } from "./denials.ts";
import { ReservedUnits } from "./reserved-units.ts";
import { Demand, heldMs, PendingRequest } from "./sizing.ts";

/**
 * What one isolate knows of one key: the units that it may spend without asking, its denials, and the demand. The
 * object's half is durable-objects/operations/reservations.ts.
 *
 * Why no unit is spent twice, whatever happens to messages: the object keeps apart all units that this holder may
 * have, until the holder says otherwise or the lifetime is over. The holder's lifetime begins before it asks, and
 * ends earlier. Every message says how many units were used since the holder began, and how many it keeps, so the
 * next message makes up for a lost one. From then on the holder spends only what it keeps. Only the answer to the
 * last message counts: the holder never spends what an earlier answer granted.
 *
 * Plain state, no I/O: client/local-limiter.ts sends the messages.
 */
export class Reservation {
  /** Another version that says the same may take its place. */
  policy: PolicyView;
  readonly key: string;
  readonly holder: string;
  readonly #units: ReservedUnits;
  readonly #demand: Demand;
  readonly #denials = new Denials();
  readonly #figures: QuotaEstimate;
  #forgotten = 0;
  #turn = 0;
  /** The object may keep units apart for this holder. */
  #isHeld = false;
  #message: PendingRequest | undefined;
  #asked: SentRequest | undefined;

  /** @param holder an id that nobody can guess */
  constructor(policy: PolicyView, key: string, holder: string, nowMs: number) {
    this.policy = policy;
    this.key = key;
    this.holder = holder;
    this.#units = new ReservedUnits(policy);
    this.#demand = new Demand(policy, nowMs);
    this.#figures = new QuotaEstimate(policy);
  }

  /** The message that has no answer yet; `undefined`: there is none, or its deadline has passed. */
  messageAt(nowMs: number): PendingRequest | undefined {
    const message = this.#message;
    return message !== undefined && nowMs < message.sentAtMs + this.policy.deadlineMs ? message : undefined;
  }

  /** The instant at which unused units have to go back; `undefined`: the object keeps nothing apart. */
  get endsAtMs(): number | undefined {
    return this.#isHeld ? this.#units.endsAtMs : undefined;
  }

  /** Whether units should be reserved with the next question: the policy allows it, and the key is worth it. */
  get isWorthUnits(): boolean {
    return this.policy.localDecisions.admits && (this.#demand.isHot || this.#demand.isWarm);
  }

  /** Whether a call may wait for a message under way: the key has enough calls, so it brings units. */
  get isHot(): boolean {
    return this.policy.localDecisions.admits && this.#demand.isHot;
  }

  /** By rule: units that may be spent at `nowMs`. */
  spendableAt(nowMs: number): readonly number[] {
    return this.#units.at(nowMs);
  }

  /** By rule: units spent since the holder began. */
  get used(): readonly number[] {
    return this.#units.used;
  }

  /** Counts a call and its cost. Once for each call, before `spend`. */
  note(cost: Cost, nowMs: number): void {
    this.#demand.note(cost, nowMs);
  }

  /** Notes that a call has to wait for units. */
  miss(): void {
    this.#demand.miss();
  }

  /** Takes a cost from the reserved units; `false`: too few are left, and nothing is taken. */
  spend(cost: Cost, nowMs: number): boolean {
    return this.#units.spend(cost, nowMs);
  }

  /** The decision on a cost that has been taken. Others may have called meanwhile: see reservation.ts. */
  admitted(nowMs: number): Decided {
    return { rules: this.#figures.admitted(this.#units.at(nowMs), this.#units.settledAtMs, nowMs) };
  }

  /** An admission by the object, to which no units went home: what is here remains too. */
  withOwn(decided: Decided, nowMs: number): Decided {
    return withUnits(decided, this.#units.at(nowMs));
  }

  /** Denies a cost as the object did before; `undefined`: the object has to be asked. */
  deny(cost: Cost, nowMs: number, isFresh = false): Decided | undefined {
    const units = this.#units.at(nowMs);
    const figuresOf = (rule: RuleView, index: number) =>
      this.#figures.denied(rule, index, units[index] ?? 0, nowMs);
    return this.#denials.find(this.policy, cost, units, nowMs, figuresOf, isFresh);
  }

  /** Whether it is time to ask for more units, so that no call has to wait. */
  needsRefill(nowMs: number): boolean {
    return this.#isHeld && this.messageAt(nowMs) === undefined && this.#units.isLow(nowMs);
  }

  /**
   * A message that asks for units, whose lifetime begins at `sinceMs`. With the cost of a call all units that are left go back in it, so that the object
   * decides with everything there is. With a cost of 0 the isolate keeps them as far as they are wanted.
   */
  ask(cost: Cost, nowMs: number, sinceMs = nowMs): PendingRequest {
    const wanted = this.#demand.want(nowMs);
    const before = this.#units.at(nowMs);
    const kept = before.map((units, index) => (cost === 0 ? Math.min(units, wanted.units[index] ?? 0) : 0));
    if (this.#units.keep(kept)) this.forgetDenials();
    this.#figures.sendHome(before.map((units, index) => units - (kept[index] ?? 0)));
    [this.#asked, this.#isHeld, this.#turn] = [this.asked, true, this.#turn + 1];
    const rules = this.#byRule((index) => ({
      used: this.used[index] ?? 0,
      kept: kept[index] ?? 0,
      wanted: wanted.units[index] ?? 0,
    }));
    const { key, holder, policy } = this;
    const about = { policy: policy.name, key, cost, priority: policy.priority, ...versionOf(policy) };
    const call = { ...about, holder, turn: this.#turn, ttlMs: wanted.ttlMs, isShort: wanted.isShort, rules };
    this.#message = new PendingRequest(call, wanted, sinceMs);
    return this.#message;
  }

  /** Takes over the granted units. Only the answer to the last message counts, and only once. */
  answered(message: PendingRequest, answer: Decided, nowMs: number): void {
    if (message !== this.#message) return;
    this.#message = undefined;
    const { call, wanted, sentAtMs } = message;
    const [{ reserved }, { pool, rules }] = [answer, this.policy];
    this.learn(call.cost, answer, nowMs, this.#asked);
    if (reserved === undefined) return;
    const names = rules.map(({ name }) => name);
    if (reserved.isNew) {
      // Units spent since the message was sent came from units that the object counts as used anyway.
      this.#units.clear();
      this.#units.recount(names.map((name) => call.rules[name]?.used ?? 0));
    }
    const granted = names.map((name) =>
      Object.hasOwn(reserved.units, name) ? (reserved.units[name] ?? 0) : 0,
    );
    this.#units.add(granted, sentAtMs, Math.min(call.ttlMs, reserved.ttlMs), wanted.low);
    // What is empty and settled need not end. But a region passes on what it held for an isolate only when that one ends.
    const isSettled = names.every((name, index) => call.rules[name]?.used === this.used[index]);
    this.#isHeld = pool !== undefined || !isSettled || !this.#units.isEmpty;
  }

  /** No answer came, to a message or to a call that asked alone, or none will: it did not ask. Kept units may be spent until their lifetime ends; granted ones are lost to this isolate. */
  failed(message?: PendingRequest): undefined {
    if (message === this.#message) this.#message = undefined;
    this.#denials.giveUpAsking();
  }

  /** What is known now, for `learn` when the answer to a question has come that is asked now. */
  get asked(): SentRequest {
    return { forgotten: this.#forgotten, heard: this.#figures.heard };
  }

  /** Remembers what the object said of a cost. Of a denial nothing, if denials were forgotten since it was asked. */
  learn(cost: Cost, { rules, reserved, next, firmForMs }: Decided, nowMs: number, asked = this.asked): void {
    this.#figures.hear(rules, reserved, asked.heard, nowMs);
    if (asked.forgotten !== this.#forgotten) return;
    if (cost !== 0) this.#denials.learn(this.policy, cost, rules, nowMs, firmForMs);
    if (next !== undefined) this.#denials.learn(this.policy, 1, next, nowMs, firmForMs);
  }

  /** Ends the reservation. Returns what to tell the object; `undefined`: the object keeps nothing apart. */
  giveBack(): Returned | undefined {
    if (!this.#isHeld) return undefined;
    this.#isHeld = false;
    this.#message = undefined;
    // Units that were used lift no denial: an exact wait reckons with that.
    if (!this.#units.isEmpty) {
      this.#figures.forget();
      this.forgetDenials();
    }
    this.#units.clear();
    this.#turn += 1;
    const { key, holder } = this;
    return { key, holder, turn: this.#turn, used: this.#byRule((index) => this.used[index] ?? 0) };
  }

  /** Forgets all denials: units went back to the object, so a denied cost may pass now. */
  forgetDenials(): void {
    this.#denials.forget();
    this.#forgotten += 1;
  }

  #byRule<Value>(value: (index: number) => Value): Record<string, Value> {
    return Object.fromEntries(this.policy.rules.map(({ name }, index) => [name, value(index)]));
  }
}

/** What was known when a question was asked: whatever changed since may make its answer out of date. */
interface SentRequest {
  /** How often denials were forgotten, and how many answers were heard. */
  readonly forgotten: number;
  readonly heard: number;
}

/** What the object said last of one rule. */
interface ObjectReport {
  /** Units that neither this holder nor another one had. */
  readonly free: number;
  /** By how many more they are after each step of `stepMs` since `atMs`, if nobody takes any. */
  readonly gains: readonly number[];
  readonly stepMs: number;
  readonly atMs: number;
  /** When the quota is whole, whatever this holder still uses of its units. Infinity: the object did not say. */
  readonly wholeAtMs: number;
}

const UNKNOWN: ObjectReport = { free: 0, gains: [], stepMs: 1, atMs: 0, wholeAtMs: -Infinity };

/**
 * A holder's best knowledge of a quota: what the object said last, less what the holder has used since, plus what time
 * has given back. That is what the object had left, plus the units that the holder still has itself.
 *
 * While nobody else calls, `remaining` is never more than the object and the holder have together, and `resetAfterMs`
 * never too short. Others may have used units since; only the next answer tells.
 */
export class QuotaEstimate {
  readonly #policy: PolicyView;
  #words: readonly ObjectReport[];
  #heard = 0;

  constructor(policy: PolicyView) {
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
  remaining(rule: RuleView, index: number, units: number, nowMs: number): number {
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
  denied(rule: RuleView, index: number, units: number, nowMs: number) {
    const remaining = this.remaining(rule, index, units, nowMs);
    const saidMs = this.#saidAfterMs(index, nowMs);
    // Of a denied key more may be missing than its capacity. Only the object knows.
    const resetAfterMs =
      saidMs < Infinity ? saidMs : this.#wholeAfterMs(rule, index, rule.capacity, nowMs, nowMs);
    return { remaining, resetAfterMs };
  }

  #wholeAfterMs(rule: RuleView, index: number, missing: number, settledAtMs: number, nowMs: number): number {
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
function withUnits(decided: Decided, units: readonly number[]): Decided {
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
function lesser({ free, gains }: ObjectReport, other: number): Pick<ObjectReport, "free" | "gains"> {
  const least = Math.min(free, other);
  return { free: least, gains: gains.map((gain) => Math.min(free + gain, other) - least) };
}

function freeAt({ free, gains, stepMs, atMs }: ObjectReport, nowMs: number): number {
  if (gains.length === 0) return free;
  const steps = Math.min(gains.length, Math.floor((nowMs - atMs) / stepMs));
  return free + (steps > 0 ? (gains[steps - 1] ?? 0) : 0);
}
