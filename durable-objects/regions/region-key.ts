import { admitsTogether, decideTogether } from "../../core/accounts/account.ts";
import { type RuleAccount, rateWindowMs } from "../../core/accounts/hold.ts";
import { randomId } from "../../core/clock.ts";
import {
  areCutByWindow,
  type Cost,
  costOf,
  type LocationHint,
  later,
  type Policy,
  type PolicyRevision,
  type Rule,
} from "../../core/policies/policy.ts";
import { type Answer, ASK_HOME, type Decided, type RuleDecision } from "../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall } from "../../core/protocol/calls.ts";
import type { KeyCall, MaybePromise } from "../../core/protocol/object-methods.ts";
import { Holder, type UnansweredMessage } from "../../core/reservations/holder.ts";
import { longestMs } from "../../core/reservations/sizing.ts";
import { KeyState } from "../keys/key-state.ts";
import { keepsPlan } from "../keys/versions.ts";
import { withQuiet } from "../operations/limits.ts";
import { Reservations } from "../operations/reservations.ts";
import { WaitQueue } from "../operations/wait-queue.ts";
import { MemoryStorage } from "../storage/memory-storage.ts";
import { type Cut, leftAtHome, levelOf, NOTHING, ofWhole, resized, usedOf } from "./region-bucket.ts";
import { areInTurn, quietPart, type RuleRate, UnitTurns } from "./unit-turns.ts";

/** How long an answer of the home object is waited for. Thousands of holders may have asked it before the first one. */
const MESSAGE_MS = 2_000;
const FIRST_MESSAGE_MS = 4_000;
/** After the home object has given no bucket, holders ask it themselves for this long. */
const REFUSED_MS = 1_000;
/** Regions are few, so the home object can hear of each this often, and divide the limit by what calls need now. */
const EVERY_MS = 1_000;
/** When calls come so much faster than at the last message, the next one does not wait so long. */
const MUCH_FASTER = 1.5;
/** A first message that waits at the home object, and says so much less than calls need by now, is replaced. */
const OUTGROWN = 4;
const EARLY_MS = 250;
/** At first all regions learn what their holders need: until then some have more than their part, and others wait for it. */
const SETTLING_MS = 5_000;
/** While the home object gives so much more with each answer, calls need not be told to wait for long. */
const MUCH_MORE = 1.25;
/** The most calls without a holder that count as demand before the first bucket. */
const MAX_EXPECTED = 4_096;

/** A call that it decides. */
export type DecidedCall = Extract<KeyCall, { readonly op: "limit" | "reserve" }>;

/** One key of a region's object, as a holder of its home object. */
export class RegionKey extends Holder<ReserveCall> {
  override policy: Policy;
  readonly key: string;
  /** The message under way, until it is answered or lost. */
  sent: Promise<void> | undefined;
  /** A timer is set that looks whether it is needed. */
  isWatched = false;
  readonly #near: LocationHint | undefined;
  readonly #now: () => number;
  #keyState: KeyState;
  #reservations: Reservations;
  #inForce: PolicyRevision | undefined;
  /** The fields of the version that the home object's last answer was by. */
  #cutBy: string | undefined;
  /** By rule: what the home object gave, by which holders' buckets are cut. */
  #fair: readonly Cut[] = [];
  /** What is used until all that is handed out fits into that: as the last message says, or less. */
  #cuts: readonly Cut[] = [];
  /** What holders need that wait for its first bucket, and calls of which the holder is not known. */
  readonly #expected = new Map<string, ReadonlyMap<string, number>>();
  readonly #expectedCalls: (readonly number[])[] = [];
  /** What calls needed at the last message, and how many holders there were. */
  #demand: readonly number[];
  #holders = 0;
  readonly #sinceMs: number;
  #sentAtMs = -Infinity;
  #heardAtMs = -Infinity;
  #refusedUntilMs = -Infinity;
  #denial: readonly RuleDecision[] | undefined;
  #missed = 0;
  /** Until then it returns what earlier messages may have got: nothing was taken from their answers. */
  #hasTaken = false;
  /** By rule, the units that the home object had left beside this object's bucket when it answered last. */
  #leftAtHome: readonly number[] = [];
  /** The home object gives less than calls need. */
  #isFull = false;
  readonly #turns = new UnitTurns();

  constructor(policy: Policy, key: string, near: LocationHint | undefined, now: () => number) {
    const nowMs = now();
    super(policy, randomId(), nowMs);
    this.policy = policy;
    this.key = key;
    this.#near = near;
    this.#now = now;
    this.#sinceMs = nowMs;
    this.#demand = policy.rules.map(() => 0);
    [this.#keyState, this.#reservations] = this.#begin(nowMs);
  }

  /** Whether its parts of the rules are in the same units of time, also in another version of its policy. */
  isFor({ rules }: Policy): boolean {
    const own: readonly Rule[] = this.policy.rules;
    const isSame = ({ name, quota }: Rule, index: number) =>
      name === own[index]?.name && quota.windowMs === own[index].quota.windowMs;
    return rules.length === own.length && rules.every(isSame);
  }

  /**
   * A call has come, with the policy as it names it. The later of two versions, or the plan that was named last, is said to
   * the home object with the next message, and its answer cuts the bucket by it. Under a later version nothing is decided
   * before: a lower limit holds from the instant at which it begins.
   */
  hear(call: DecidedCall, policy: Policy, nowMs: number): void {
    this.#heardAtMs = nowMs;
    const keeps = this.#inForce !== undefined && keepsPlan(call, this.#keyState.holders);
    const isOther = keeps && call.inForce?.plan !== this.#inForce?.plan;
    const latest = isOther ? this.#inForce : later(this.#inForce, call.inForce);
    if (latest !== this.#inForce) this.policy = policy;
    this.#inForce = latest;
    if (this.hasBucket(nowMs)) return;
    const { rules } = this.policy;
    if ("holder" in call) {
      const demand = rules.map(({ name }) => [name, (call.rules[name]?.demand ?? 0) / 1_000] as const);
      this.#expected.set(call.holder, new Map(demand));
    } else if (this.#expectedCalls.length < MAX_EXPECTED)
      this.#expectedCalls.push(rules.map((rule) => costOf(rule, call.cost)));
  }

  hasBucket(nowMs: number): boolean {
    return nowMs < this.spendableUntilMs;
  }

  /** Whether it has a bucket that the home object has cut by the version in force. */
  isReady(nowMs: number): boolean {
    return this.hasBucket(nowMs) && this.#cutBy === this.#inForce?.fields;
  }

  /** The answer while the home object gives no bucket: its own denial if it has nothing left, or that it decides. */
  refusal({ cost }: LimitCall | ReserveCall, nowMs: number): Answer | undefined {
    if (nowMs >= this.#refusedUntilMs) return undefined;
    if (this.#denial === undefined) return ASK_HOME;
    if (this.hasBucket(nowMs)) return undefined;
    return cost === 1 ? { rules: this.#denial } : ASK_HOME;
  }

  isOver(nowMs: number): boolean {
    return !this.hasBucket(nowMs) && nowMs >= this.#refusedUntilMs && this.messageAt(nowMs) === undefined;
  }

  override get messageMs(): number {
    const ms = this.spendableUntilMs === -Infinity ? FIRST_MESSAGE_MS : MESSAGE_MS;
    return ms * 2 ** Math.min(this.#missed, 2);
  }

  /** How often the home object hears what calls need. */
  everyMs(nowMs: number): number {
    return nowMs < this.#sinceMs + SETTLING_MS ? EARLY_MS : EVERY_MS;
  }

  /** Whether a message is due: its bucket needs to be renewed, or is too small. */
  needsMessage(nowMs: number): boolean {
    if (this.messageAt(nowMs) !== undefined) return false;
    if (!this.isReady(nowMs) || nowMs >= this.#sentAtMs + this.everyMs(nowMs)) return true;
    return nowMs >= this.#sentAtMs + EARLY_MS && this.#needsMore(MUCH_FASTER, nowMs);
  }

  accountsAt(nowMs: number): readonly RuleAccount[] {
    this.#keyState.advance(nowMs);
    return this.#keyState.ruleStates;
  }

  giveBack(returned: Parameters<Reservations["giveBack"]>[1], nowMs: number): void {
    this.#keyState.advance(nowMs);
    this.#reservations.giveBack(this.#keyState, returned, nowMs);
  }

  decide(call: DecidedCall, nowMs: number): MaybePromise<Answer> {
    const keyState = this.#keyState;
    keyState.advance(nowMs);
    const { ruleStates } = keyState;
    if (ruleStates.some(({ rule }) => costOf(rule, call.cost) > rule.capacity)) return ASK_HOME;
    if (call.op === "reserve") this.#expected.delete(call.holder);
    const made =
      call.op === "reserve"
        ? this.#reservations.reserve(keyState, { ...call, takesBucket: true, mayAskRegion: undefined }, nowMs)
        : this.#limit(call, nowMs);
    // While the home object has more, a denial is over as soon as its next answer comes.
    const holder = call.op === "reserve" ? call.holder : undefined;
    const quiet = () => ({ holder, part: quietPart(this.#rates, this.#demand, this.#holders) });
    const answer = this.#isFull ? withQuiet(keyState, made as Answer, nowMs, quiet()) : (made as Answer);
    if (!("rules" in answer)) return answer;
    return { ...answer, rules: answer.rules.map(ofWhole(this.policy.rules, this.#leftAtHome)) };
  }

  /** How long a call waits for its unit before it is decided. */
  turnAfterMs({ cost }: LimitCall | ReserveCall, nowMs: number): number {
    if (cost !== 1 || !this.#isFull || !areInTurn(this.#rates, this.#holders)) return 0;
    this.#keyState.advance(nowMs);
    return this.#turns.take(this.#rates, decideTogether(this.#keyState.ruleStates, nowMs, 1).rules, nowMs);
  }

  get #rates(): RuleRate[] {
    return this.policy.rules.map((rule, index) => ({ rule, rate: this.#fair[index]?.rate ?? 0 }));
  }

  #limit({ cost }: Pick<LimitCall, "cost">, nowMs: number): Decided {
    const { accounts, rules } = decideTogether(this.#keyState.ruleStates, nowMs, cost);
    if (accounts !== undefined) this.#keyState.replaceAccounts(accounts, true);
    return { rules };
  }

  /** Whether it has no bucket, and calls need much more than the last message says. */
  hasOutgrown(nowMs: number): boolean {
    return areCutByWindow(this.policy.rules) && !this.hasBucket(nowMs) && this.#needsMore(OUTGROWN, nowMs);
  }

  #needsMore(times: number, nowMs: number): boolean {
    return this.#demandAt(nowMs).some((units, index) => units > times * (this.#demand[index] ?? 0));
  }

  /** The message by which it gets a bucket, keeps it for longer, or gives it back. */
  ask(nowMs: number): UnansweredMessage<ReserveCall> {
    if (!this.hasBucket(nowMs)) this.#clear(nowMs);
    this.#cutTo(this.#used(), nowMs);
    const known = this.#keyState.holders.countAt(nowMs);
    // Until its first holder has said what it needs, the calls that came say that: for none, it would get no bucket.
    if (known > 0) this.#forgetExpected();
    this.#demand = this.#demandAt(nowMs);
    // A holder may have made all of the calls of which the holder is not known.
    this.#holders = 1 + known + Math.max(this.#expected.size, Math.sign(this.#expectedCalls.length));
    this.#sentAtMs = nowMs;
    this.turn += 1;
    const { policy, key, holder, turn } = this;
    // Nobody needs its bucket: no call has come for a while, and no holder has any of it.
    const isIdle = known === 0 && nowMs >= this.#heardAtMs + EVERY_MS && this.hasBucket(nowMs);
    const rules = policy.rules.map((rule, index) => {
      const { name, capacity, algorithm } = rule;
      const { rate, most } = this.#cuts[index] ?? NOTHING;
      const level = levelOf(rule, this.#keyState.ruleStates[index] as RuleAccount, { rate, most });
      const of = { used: 0, kept: most, wanted: most, demand: this.#demand[index] ?? 0 };
      if (isIdle) return [name, { used: 0, kept: 0, wanted: 0, demand: 0, left: level }] as const;
      if (most > 0) return [name, { ...of, rate, level }] as const;
      // Time returns what a bucket lacks. Of a log or window it would count as used until the window ends.
      const returns = algorithm.isCutByWindow === true && !this.#hasTaken;
      return [name, returns ? { ...of, left: capacity } : of] as const;
    });
    const call: ReserveCall = {
      policy: policy.name,
      key,
      cost: 0,
      holder,
      turn,
      ttlMs: isIdle ? 0 : longestMs(policy.reservation),
      isShort: false,
      takesBucket: true,
      holders: this.#holders,
      near: this.#near,
      rules: Object.fromEntries(rules),
      ...(this.#inForce && { inForce: this.#inForce }),
    };
    const none = policy.rules.map(() => 0);
    return this.send(call, { ttlMs: call.ttlMs, units: none, low: none, isShort: false }, nowMs);
  }

  answered(message: UnansweredMessage<ReserveCall>, answer: Answer, nowMs: number): void {
    if (!this.ended(message)) return;
    const { reserved, next, rules: said = [] } = answer as Partial<Decided>;
    const buckets = reserved?.buckets ?? {};
    this.#missed = 0;
    this.#cutBy = message.call.inForce?.fields;
    const { rules } = this.policy;
    // The home object may have another version of the policy, with another window.
    const isReadable = rules.every((rule) => buckets[rule.name]?.rate.windowMs === rateWindowMs(rule));
    if (reserved === undefined || !isReadable) {
      // What it has, and its holders have, ends by itself.
      this.#denial = next;
      this.#refusedUntilMs = nowMs + (next === undefined ? REFUSED_MS : EARLY_MS);
      this.#forgetExpected();
      return;
    }
    // The home object counts what it did not know of until that has ended.
    // Of its first bucket those that wait get what they need: of 300 isolates some calls were too late otherwise.
    if (reserved.isNew) this.#clear(nowMs);
    else this.#keyState.holders.sentHere = reserved.sentThere ?? 0;
    this.#hasTaken = true;
    const before = this.#fair;
    this.#fair = rules.map(({ name }) => {
      const { rate, most } = buckets[name] ?? { rate: { units: 0 }, most: 0 };
      return { rate: rate.units, most };
    });
    this.#leftAtHome = leftAtHome(rules, said, before, this.#fair);
    this.#isFull = this.#fair.some(({ rate }, index) => {
      const needed = ((this.#demand[index] ?? 0) * rateWindowMs(rules[index] as Rule)) / 1_000;
      return rate < needed && rate <= MUCH_MORE * (before[index]?.rate ?? 0);
    });
    this.#cutTo(
      this.#used(),
      nowMs,
      rules.map(({ name }) => reserved.units[name] ?? 0),
    );
    this.begin(message, reserved.ttlMs, undefined, true);
    this.#keyState.endsByMs = this.spendableUntilMs;
  }

  #forgetExpected(): void {
    this.#expected.clear();
    this.#expectedCalls.length = 0;
  }

  failed(message: UnansweredMessage<ReserveCall>): void {
    if (this.ended(message)) this.#missed += 1;
  }

  /** Whether the home object had units left, and a call is denied here without them. */
  lacksUnits(cost: Cost, nowMs: number): boolean {
    this.#keyState.advance(nowMs);
    return cost !== 0 && !this.#isFull && !admitsTogether(this.#keyState.ruleStates, nowMs, cost);
  }

  /** Its units are in its account. */
  protected unitsLeft(): number {
    return Infinity;
  }

  /** Nothing that was handed out is known any more. */
  #clear(nowMs: number): void {
    [this.#keyState, this.#reservations] = this.#begin(nowMs);
    [this.#fair, this.#cuts] = [[], []];
    this.spendableUntilMs = -Infinity;
  }

  #begin(nowMs: number): [KeyState, Reservations] {
    const { policy } = this;
    const inForce = this.#inForce;
    const policies = () => ({ policy, whole: policy, inForce });
    const keyState = new KeyState(new MemoryStorage(), policies, this.key, nowMs);
    if (!areCutByWindow(policy.rules)) keyState.holders.expected = this.#expected;
    const commit: ConstructorParameters<typeof Reservations>[0]["commit"] = (state, { accounts }) =>
      state.replaceAccounts(accounts, true);
    // Nobody waits here: such calls go to the home object.
    const queue = new WaitQueue(this.#now);
    const limit = (_: KeyState, { cost }: Pick<LimitCall, "cost">, atMs: number) =>
      this.#limit({ cost }, atMs);
    return [keyState, new Reservations({ commit }, limit, queue)];
  }

  /** By rule: what must be kept, since it is handed out, or what the home object gave. */
  #used(): Cut[] {
    return this.#keyState.ruleStates.map(({ account }, index) =>
      usedOf(this.policy.rules[index] as Rule, account, this.#fair[index]),
    );
  }

  /** Resizes its buckets. */
  #cutTo(cuts: readonly Cut[], nowMs: number, granted: readonly number[] = []): void {
    if (this.#fair.every(({ most }) => most === 0)) return;
    const accounts = this.#keyState.ruleStates.map((ruleState, index) =>
      resized(
        this.policy.rules[index] as Rule,
        ruleState,
        {
          fair: this.#fair[index] ?? NOTHING,
          before: this.#cuts[index] ?? NOTHING,
          cut: cuts[index] ?? NOTHING,
          granted: granted[index] ?? 0,
        },
        nowMs,
      ),
    );
    this.#cuts = cuts;
    this.#keyState.decideBy(accounts);
  }

  #demandAt(nowMs: number): number[] {
    const { holders } = this.#keyState;
    const sum = (units: (number | undefined)[]) => units.reduce<number>((all, each) => all + (each ?? 0), 0);
    return this.policy.rules.map(({ name }, index) => {
      const expected = sum([...this.#expected.values()].map((demand) => demand.get(name)));
      return (
        sum(this.#expectedCalls.map((units) => units[index])) +
        1_000 * (expected + holders.others(undefined, name, 0, nowMs).demand)
      );
    });
  }
}
