import type { HeldPolicy, HeldRule } from "../policies/held-policy.ts";
import { versionOf } from "../policies/in-force.ts";
import type { Decided } from "../protocol/answers.ts";
import type { Cost } from "../protocol/cost.ts";
import type { Returned } from "../protocol/messages.ts";
import { Demand } from "./demand.ts";
import { Denials } from "./denials.ts";
import { Figures, withUnits, type Asked } from "./figures.ts";
import { PendingRequest } from "./pending-request.ts";
import { ReservedUnits } from "./reserved-units.ts";

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
  policy: HeldPolicy;
  readonly key: string;
  readonly holder: string;
  readonly #units: ReservedUnits;
  readonly #demand: Demand;
  readonly #denials = new Denials();
  readonly #figures: Figures;
  #forgotten = 0;
  #turn = 0;
  /** The object may keep units apart for this holder. */
  #isHeld = false;
  #message: PendingRequest | undefined;
  #asked: Asked | undefined;

  /** @param holder an id that nobody can guess */
  constructor(policy: HeldPolicy, key: string, holder: string, nowMs: number) {
    this.policy = policy;
    this.key = key;
    this.holder = holder;
    this.#units = new ReservedUnits(policy);
    this.#demand = new Demand(policy, nowMs);
    this.#figures = new Figures(policy);
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
    return this.policy.localDecisions.admits && (this.#demand.isHot || this.#demand.isLukewarm);
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

  /** The decision on a cost that has been taken. Others may have called meanwhile: see figures.ts. */
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
    const figuresOf = (rule: HeldRule, index: number) =>
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
  get asked(): Asked {
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
