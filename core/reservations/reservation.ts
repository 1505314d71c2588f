import {
  areCutByWindow,
  type Cost,
  costOf,
  type PolicyView,
  type RuleView,
  versionOf,
} from "../policies/policy.ts";
import type { Bucket, Decided } from "../protocol/answers.ts";
import type { ReserveCall, GiveBackMessage } from "../protocol/calls.ts";
import { Holder, type UnansweredMessage } from "./holder.ts";
import { ownValue, QuotaEstimate } from "./knowledge.ts";
import { OwnBuckets } from "./own-buckets.ts";
import { HOT_CALLS, quietOfMs, refillMs } from "./sizing.ts";

/** The longest wait for units of an object that is late. */
const MAX_LATE_MS = 6_000;
/** The most calls that ask by themselves while a message for units is under way, if the last one brought none. */
const MAX_ALONE = 100;

/** So many calls of a key ask its object at once, however few units come back meanwhile. */
const MIN_CROWD = 50;
/** And so many at most: of twice as many the gate refuses some (`maxCallsAtOnce`). */
const MAX_CROWD = 500;

export type ReserveRequest = UnansweredMessage<ReserveCall>;

/** What one isolate or process knows of one key (the object's part: operations/reservations.ts). */
export class Reservation extends Holder<ReserveCall> {
  readonly key: string;
  /** Present: it asks the key's object there, and not its home object, but that one until `homeUntilMs`. */
  region: ReserveCall["region"];
  homeUntilMs = -Infinity;
  /** The key's override by the last decision of a remote limiter, which alone knows overrides. */
  overriddenBy: string | undefined;
  #units: number[];
  /** Present when units come by themselves. */
  #buckets: OwnBuckets | undefined;
  /** By rule, since it began. */
  readonly used: number[];
  readonly #estimate: QuotaEstimate;
  #forgotten = 0;
  /** Calls have waited for its units: it gets a bucket at once, also if it may die soon. */
  #isWaitedFor = false;
  /** Whether its last answer brought units. */
  #getsUnits = true;
  /** All units were used while the last message was under way: a pool is to hear of it (pool/share.ts). */
  hasNews = false;
  /** Calls that ask, or wait for an answer, until their deadlines: the code of a request that has ended does not run. */
  readonly #asking = new Set<{ readonly untilMs: number }>();
  /** The object holds a bucket for it until it is given up, also if it was not renewed. */
  #isCut = false;
  #requested: Reservation["asked"] | undefined;

  constructor(policy: PolicyView, key: string, holder: string, nowMs: number) {
    super(policy, holder, nowMs);
    this.key = key;
    this.#units = policy.rules.map(() => 0);
    this.used = this.#units.slice();
    this.#estimate = new QuotaEstimate(policy);
  }

  /** Whether it may ask an object in a region, if it knows its own (`near`). */
  mayBeRegional(near: Reservation["region"], nowMs: number): boolean {
    const { region, policy, homeUntilMs, canHaveBuckets } = this;
    if (region !== undefined) return true;
    const isAllowed = canHaveBuckets && policy.regions !== "off" && policy.jurisdiction === undefined;
    return isAllowed && nowMs >= homeUntilMs && near !== undefined;
  }

  /** From now on the key's object there is asked, which may be late as any object that is asked first. */
  moveTo(region: Reservation["region"]): void {
    this.region = region;
    if (areCutByWindow(this.policy.rules)) return this.heard();
    this.#getsUnits = true;
    this.restart();
  }

  /** When unused units must be returned; `undefined`: the object keeps nothing apart. */
  get endsAtMs(): number | undefined {
    return this.isHeld ? this.spendableUntilMs : undefined;
  }

  /** Whether the policy allows reservations and the key is worth one. */
  get isWorthUnits(): boolean {
    return this.policy.localDecisions.admits && (super.isHot || this.isWarm);
  }

  override get isHot(): boolean {
    return this.policy.localDecisions.admits && super.isHot;
  }

  /** The last answer, or a hot key's first, is late. A decision would be late too; units are of use however late. */
  get isBehind(): boolean {
    return this.#getsUnits && (this.missedAnswers > 0 || !this.isAnswered) && this.isHot;
  }

  /**
   * Whether a call waits for the units of the next answer, and does not ask by itself: an answer of its own would come too
   * late, or many ask already. Of thousands that wait in a process, each would be a decision of the object.
   */
  sparesMessage(waitedMs: number, underWay: ReserveRequest | undefined): boolean {
    if (!this.isHot) return false;
    if (waitedMs > 0 && this.#getsUnits && waitedMs + this.tripMs > this.policy.deadlineMs) return true;
    if (underWay === undefined) return false;
    underWay.alone += 1;
    const spares = underWay.alone > (this.#getsUnits && waitedMs === 0 ? HOT_CALLS : MAX_ALONE);
    this.#isWaitedFor ||= spares;
    return spares;
  }

  override get messageMs(): number {
    const { deadlineMs } = this.policy;
    if (!this.isBehind) return deadlineMs;
    // The first wait is the longest: holders that all start at once wait for each other.
    const tripMs = this.isAnswered ? 2 * this.tripMs : MAX_LATE_MS;
    return Math.min(MAX_LATE_MS, Math.max(deadlineMs, tripMs) * 2 ** this.missedAnswers);
  }

  /** By rule: how fast units come by themselves, and how many there may be then. */
  get buckets(): readonly Bucket[] {
    return this.#buckets?.all ?? [];
  }

  spendableAt(nowMs: number): readonly number[] {
    this.#refill(nowMs);
    return nowMs < this.spendableUntilMs ? this.#units : this.#units.map(() => 0);
  }

  protected unitsLeft(index: number): number {
    return this.#units[index] ?? 0;
  }

  /** Takes a cost from the reserved units; `false`: too few remain, and nothing is taken. */
  spend(cost: Cost, nowMs: number): boolean {
    const { rules } = this.policy;
    if (nowMs >= this.spendableUntilMs) return false;
    this.#refill(nowMs);
    if (!rules.every((rule, index) => costOf(rule, cost) <= (this.#units[index] ?? 0))) return false;
    // In place, without a list of costs: every call runs this.
    for (const [index, rule] of rules.entries()) {
      const units = costOf(rule, cost);
      this.#units[index] = (this.#units[index] ?? 0) - units;
      this.used[index] = (this.used[index] ?? 0) + units;
    }
    // A bucket's units are no part of what the object has for others.
    if (this.#buckets === undefined) this.denials.spent(this.policy, cost);
    return true;
  }

  /** The decision on a taken cost. Other holders may have calls too (`QuotaEstimate`). */
  admitted(nowMs: number): Decided {
    // Of a bucket only the object knows how it settles.
    const settledAtMs = this.#buckets === undefined ? this.settledAtMs : Infinity;
    return { rules: this.#estimate.admitted(this.spendableAt(nowMs), settledAtMs, nowMs) };
  }

  /** An admission by the object, to which no units were returned: units here remain too. */
  withOwn(decided: Decided, nowMs: number): Decided {
    if (decided.rules.some(({ success }) => !success)) return decided;
    const units = this.spendableAt(nowMs);
    const rules = decided.rules.map((rule, index) => {
      const remaining = Math.min(rule.limit, rule.remaining + (units[index] ?? 0));
      return { ...rule, remaining };
    });
    return { ...decided, rules };
  }

  /** Repeats the object's denial of a cost; `undefined`: only the object can decide. */
  deny(cost: Cost, nowMs: number, isFresh = false): Decided | undefined {
    const units = this.spendableAt(nowMs);
    const estimateOf = (rule: RuleView, index: number) =>
      this.#estimate.denied(rule, index, units[index] ?? 0, nowMs);
    const isCrowded = this.#isCrowded(nowMs);
    const denied = this.denials.find(this.policy, cost, units, nowMs, estimateOf, isFresh, isCrowded);
    const buckets = this.#buckets;
    if (denied === undefined || buckets === undefined) return denied;
    const rules = denied.rules.map((rule, index) => {
      if (rule.success || rule.retryAfterMs === null) return rule;
      const missing = costOf(this.policy.rules[index] as RuleView, cost) - (units[index] ?? 0);
      return { ...rule, retryAfterMs: Math.min(rule.retryAfterMs, buckets.waitMs(index, missing)) };
    });
    return { ...denied, rules };
  }

  /** Notes a call that asks its object. @returns called with its answer */
  asks(nowMs: number): () => void {
    const call = { untilMs: nowMs + this.policy.deadlineMs };
    this.#asking.add(call);
    return () => this.#asking.delete(call);
  }

  /**
   * Whether more calls ask than four times the units that come back in a round trip. Then the last denial is repeated: a
   * flood that comes from far away would fill the way to the object with calls that find nothing.
   */
  #isCrowded(nowMs: number): boolean {
    for (const call of this.#asking) {
      if (call.untilMs > nowMs) break;
      this.#asking.delete(call);
    }
    if (this.#asking.size <= MIN_CROWD) return false;
    const least = this.policy.rules.map(({ algorithm, config, capacity }) => {
      const wholeMs = algorithm.refillMs(config, capacity);
      return wholeMs > 0 ? (capacity * this.tripMs) / wholeMs : Infinity;
    });
    return this.#asking.size > Math.min(MAX_CROWD, 4 * Math.min(...least));
  }

  /** The units that came at its rate. */
  #refill(nowMs: number): void {
    this.#buckets?.refill(this.#units, Math.min(nowMs, this.spendableUntilMs));
  }

  /**
   * Requests units whose lifetime begins at `sinceMs`. With the cost of a call it returns all remaining units, so the
   * object decides with everything.
   */
  ask(cost: Cost, nowMs: number, sinceMs = nowMs): ReserveRequest {
    const wanted = this.want(nowMs, this.isWorthUnits);
    const before = this.spendableAt(nowMs);
    const hadBuckets = this.#buckets !== undefined;
    if (nowMs >= this.spendableUntilMs) this.#buckets = undefined;
    const buckets = this.#buckets;
    const { perSecond } = this.recentDemand;
    buckets?.shrink(perSecond);
    const most = buckets?.all.map((bucket) => bucket.most) ?? (cost === 0 ? wanted.units : []);
    const kept = before.map((units, index) => Math.min(units, most[index] ?? 0));
    if (this.#units.some((units, index) => units > (kept[index] ?? 0))) this.forgetDenials();
    const left = this.#units.map((units, index) => units - (kept[index] ?? 0));
    this.#estimate.addReturned(before.map((units, index) => units - (kept[index] ?? 0)));
    this.#units = kept;
    this.#requested = this.asked;
    this.turn += 1;
    const { key, holder, policy, turn } = this;
    // The lifetime begins now. After its end an answer is of no use, and where all ask at once the first one comes late.
    const isLate = this.missedAnswers > 0 || (this.region !== undefined && !this.isAnswered);
    const ttlMs = isLate ? policy.reservation.mostMs : wanted.ttlMs;
    const about = { policy: policy.name, key, cost, priority: policy.priority, ...versionOf(policy) };
    const isKnown = this.#isWaitedFor || this.isKnownAt(nowMs);
    const isFar = isKnown && (this.missedAnswers > 0 || this.isFar);
    const rules = this.#byRule((index) => ({
      used: this.used[index] ?? 0,
      kept: (buckets === undefined ? kept : most)[index] ?? 0,
      wanted: wanted.units[index] ?? 0,
      ...(this.canHaveBuckets && { demand: perSecond[index] ?? 0 }),
      ...(buckets && { rate: buckets.all[index]?.rate.units ?? 0, level: kept[index] ?? 0 }),
      ...(hadBuckets && { left: left[index] ?? 0 }),
    }));
    const takesBucket = this.canHaveBuckets && { takesBucket: isFar };
    const call = { ...about, holder, turn, ttlMs, isShort: wanted.isShort, ...takesBucket, rules };
    return this.send(call, wanted, sinceMs);
  }

  /** Takes the granted units. Only the answer to the last message counts, and only once. */
  answered(message: ReserveRequest, answer: Decided, nowMs: number): void {
    if (!this.ended(message)) return;
    const [{ call }, { reserved }] = [message, answer];
    this.measureTrip(message.sentAtMs, nowMs, reserved?.ttlMs === 0);
    this.learn(call.cost, answer, nowMs, this.#requested);
    if (reserved === undefined) return;
    const names = this.policy.rules.map(({ name }) => name);
    this.#refill(nowMs);
    const kept: number[] = [];
    for (const [index, name] of names.entries()) {
      const granted = ownValue(reserved.units, name) ?? 0;
      this.#units[index] = (reserved.isNew ? 0 : (this.#units[index] ?? 0)) + granted;
      kept.push(reserved.isNew ? 0 : (call.rules[name]?.kept ?? 0));
      // Units spent since the message was sent came from units that the object counts as used.
      if (reserved.isNew) this.used[index] = call.rules[name]?.used ?? 0;
    }
    const { buckets } = reserved;
    this.#getsUnits = Object.values(reserved.units).some((units) => units > 0) || buckets !== undefined;
    const before = reserved.isNew ? undefined : this.#buckets;
    this.#buckets = buckets && new OwnBuckets(buckets, names, kept, nowMs, before);
    // Since it said how many units it has, more may have come.
    this.#units = this.#units.map((units, index) => Math.min(units, this.buckets[index]?.most ?? units));
    const maxMs = buckets === undefined ? call.ttlMs : this.policy.reservation.mostMs;
    const ttlMs = Math.min(maxMs, reserved.ttlMs);
    // The object did not know all holders, or counts the rate before until it hears that it is given up.
    const isNews =
      this.#buckets !== undefined &&
      (before === undefined || this.recentDemand.hasRisen || this.#buckets.isSlowerThan(before));
    this.begin(message, ttlMs, isNews ? nowMs + refillMs(ttlMs) / 4 : undefined, buckets !== undefined);
    // An empty, settled one need not end, but a region only forwards an isolate's units when it ends.
    const isSettled = names.every((name, index) => call.rules[name]?.used === this.used[index]);
    this.#isCut = this.#buckets !== undefined || before !== undefined;
    this.hasNews = this.policy.pool !== undefined && !isSettled && this.#isEmpty;
    this.isHeld = this.policy.pool !== undefined || !isSettled || !this.#isEmpty || this.#isCut;
  }

  /** No units came. Kept ones may be spent until their lifetime ends. */
  failed(message?: ReserveRequest): undefined {
    if (message !== undefined && this.ended(message)) this.#getsUnits = false;
    this.denials.endRequests();
  }

  /** No answer came in time. Granted units are lost here. */
  unanswered(nowMs: number, message?: ReserveRequest): undefined {
    // Of calls that were sent alone, many may fail together.
    if (message === undefined) this.missedAnswers = Math.max(1, this.missedAnswers);
    else if (this.ended(message)) this.missedAnswers += 1;
    this.silentSinceMs = Math.min(this.silentSinceMs, nowMs);
    this.denials.endRequests();
  }

  /** The state at the time of a call, for `learn` with its answer. */
  get asked() {
    return { forgotten: this.#forgotten, answers: this.#estimate.answers };
  }

  /** Remembers the object's answer to a cost, but no denial if denials were forgotten since the call. */
  learn(cost: Cost, decided: Decided, nowMs: number, asked = this.asked): void {
    const { rules, reserved, next, firmForMs, quietMs } = decided;
    this.heard();
    this.#estimate.learn(rules, reserved, asked.answers, nowMs);
    if (asked.forgotten !== this.#forgotten) return;
    const quietHereMs =
      quietMs &&
      quietOfMs(quietMs, this.tripMs, this.isFar && this.canHaveBuckets && this.region === undefined);
    if (cost !== 0) this.denials.learn(this.policy, cost, rules, nowMs, firmForMs, quietHereMs);
    if (next !== undefined) this.denials.learn(this.policy, 1, next, nowMs, firmForMs, quietHereMs);
  }

  /** Ends the reservation. Returns the message for the object; `undefined`: the object keeps nothing apart. */
  giveBack(): GiveBackMessage | undefined {
    if (!this.isHeld) return undefined;
    this.isHeld = false;
    this.message = undefined;
    // Used units lift no denial: an exact wait already includes them.
    if (!this.#isEmpty) {
      this.#estimate.forget();
      this.forgetDenials();
    }
    const left = this.#isCut && this.#byRule((index) => this.#units[index] ?? 0);
    this.#units.fill(0);
    this.#buckets = undefined;
    this.spendableUntilMs = -Infinity;
    this.turn += 1;
    const { key, holder, turn, region } = this;
    const used = this.#byRule((index) => this.used[index] ?? 0);
    return { key, holder, turn, used, ...(left && { left }), ...(region && { region }) };
  }

  /** Forgets all denials: returned units may admit a denied cost now. */
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
