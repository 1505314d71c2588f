/** The slots of one key that a holder has, and the leases that it grants from them. Plain data: requests share it. */
import { randomId } from "../core/clock.ts";
import type { PolicyView, RuleView } from "../core/policies/policy.ts";
import type { Decided, GivenSlots, Slots } from "../core/protocol/answers.ts";
import type { SlotsCall } from "../core/protocol/calls.ts";
import { PACE_MS } from "../core/protocol/messages.ts";
import { SaidFigures, sentNow } from "../core/reservations/said-figures.ts";

/** The most keys of a holder. One without slots is forgotten first; if all have some, the limiter decides further ones. */
const MAX_KEYS = 4_096;
/** In a pace: fewer acquires are not worth slots. */
export const MIN_CALLS = 3;
/** When its leases need more slots than it has, it asks before its pace. */
const EARLY_PART = 0.2;
/** A message without an answer is repeated after so many paces, and then more rarely. */
const MAX_MISSED = 3;
const SMOOTHING = 16;
/** After an answer that has no slots: an object or limiter of an older version has made it. */
const OFF_MS = 60_000;

/** A lease that is known to its holder alone. */
export interface YoungLease {
  readonly id: string;
  readonly units: number;
  readonly ttlMs: number;
  readonly fencingToken: number;
  /** When it was granted, for the counts; `grantedAtMs` may be earlier, so that it is handed over. */
  readonly beganAtMs: number;
  grantedAtMs: number;
  readonly caller: string | undefined;
  expiresAtMs: number;
}

/** What a message of a holder says, beside what only isolates say. */
export type HeldCall = Omit<SlotsCall, "policy" | "key" | "ttlMs" | "handed">;

/** The slots of one key. */
export class KeySlots<Of extends PolicyView = PolicyView> {
  policy: Of;
  readonly key: string;
  /** Unguessable but for its mark, which the ids of its leases have. */
  readonly holder = randomId();
  readonly young = new Map<string, YoungLease>();
  kept = 0;
  leased = 0;
  isHome = false;
  /** Its part of the slots, if all holders together need more than there are. */
  most = Infinity;
  spendableUntilMs = -Infinity;
  offUntilMs = -Infinity;
  token = 0;
  tokensEnd = 0;
  /** How many tokens the last answer had. */
  #tokens = 0;
  /** Of the object, or the limiter: the slots that are left there. */
  readonly said = new SaidFigures();
  #messageSent = 0;
  turn = 0;
  heard = 0;
  memory: string | undefined;
  /** When the message under way was sent; `undefined`: none is. */
  underWaySinceMs: number | undefined;
  sentAtMs = -Infinity;
  isAtOnce = false;
  /** The object has lost its memory, and has applied no message since. */
  isRefused = false;
  missed = 0;
  paceMs = PACE_MS;
  restMs = 0;
  lifeMs = 0;
  granted = 0;
  released = 0;
  /** Acquires of this period, and the units that they asked for. */
  protected calls = 0;
  #units = 0;
  protected sinceMs: number;
  #callsPerPace = 0;
  #unitsPerPace = 0;
  /** The most slots in use at a time, with those of a call that found none: in this period and in the last. */
  #peak = 0;
  #lastPeak = 0;
  protected heldMs: number | undefined;
  #nextEndMs = Infinity;
  /** The end of the last of its leases, or of one that has ended earlier. */
  #lastEndMs = -Infinity;
  #isLastOver = false;

  constructor(policy: Of, key: string, nowMs: number) {
    this.policy = policy;
    this.key = key;
    this.sinceMs = nowMs;
  }

  /** A call has come under this version of the policy. */
  adopt(policy: Of): void {
    this.policy = policy;
  }

  get idle(): number {
    return this.kept - this.leased;
  }

  get isHolding(): boolean {
    return this.kept > 0;
  }

  /** Whether it may be forgotten. */
  get isAtRest(): boolean {
    return !this.isHolding && this.underWaySinceMs === undefined;
  }

  /** After the clock was set back what it has is told again, and none of it is leased before an answer. */
  restart(nowMs: number): void {
    this.spendableUntilMs = -Infinity;
    this.sentAtMs = -Infinity;
    this.underWaySinceMs = undefined;
    this.offUntilMs = -Infinity;
    this.sinceMs = nowMs;
  }

  /** Notes an acquire. Without slots, calls of the last pace alone are worth some. */
  called(units: number, nowMs: number): void {
    if (!this.isHolding && nowMs >= this.sinceMs + this.paceMs) {
      [this.calls, this.#units] = [0, 0];
      this.sinceMs = nowMs;
    }
    this.calls += 1;
    this.#units += units;
    this.#peak = Math.max(this.#peak, this.inUse + units);
  }

  /** Slots in use here, whoever has granted them. */
  protected get inUse(): number {
    return this.leased;
  }

  /** Whether so many units may be leased here. */
  hasFree(units: number, nowMs: number): boolean {
    const isOurs = nowMs < this.spendableUntilMs && !this.isHome;
    return isOurs && units > 0 && units <= this.idle && this.token < this.tokensEnd;
  }

  /** Whether its free slots can go back now, and are enough for a call with those that remain at the object. */
  suffices(units: number, remaining: number, nowMs: number): boolean {
    return this.idle > 0 && remaining + this.idle >= units && !this.isUnderWay(nowMs);
  }

  /** Grants a lease from a free slot. */
  grant(
    { name, capacity }: Pick<RuleView, "name" | "capacity">,
    { id, units, ttlMs, caller }: Pick<YoungLease, "id" | "units" | "ttlMs" | "caller">,
    nowMs: number,
    waitedMs: number,
  ): Decided & Required<Pick<Decided, "lease">> {
    const fencingToken = this.token;
    this.token += 1;
    this.granted += 1;
    const at = { beganAtMs: nowMs, grantedAtMs: nowMs, expiresAtMs: nowMs + ttlMs };
    this.#put({ id, units, ttlMs, caller, fencingToken, ...at });
    const of = {
      name,
      limit: capacity,
      remaining: this.said.remaining + this.idle,
      resetAfterMs: this.wholeAfterMs(nowMs),
    };
    return {
      rules: [{ ...of, success: true, retryAfterMs: 0, reason: "ok" }],
      waitedMs,
      lease: { id, fencingToken, expiresAfterMs: ttlMs },
    };
  }

  #put(lease: YoungLease): void {
    this.young.set(lease.id, lease);
    this.leased += lease.units;
    this.prolong(lease, lease.expiresAtMs);
  }

  prolong(lease: YoungLease, untilMs: number): void {
    this.#isLastOver =
      untilMs < this.#lastEndMs && (this.#isLastOver || lease.expiresAtMs >= this.#lastEndMs);
    lease.expiresAtMs = untilMs;
    this.#nextEndMs = Math.min(this.#nextEndMs, untilMs);
    this.#lastEndMs = Math.max(this.#lastEndMs, untilMs);
  }

  /** How long it takes until all slots are free if nobody comes: its leases end, and those that the object knows. */
  wholeAfterMs(nowMs: number): number {
    if (this.#isLastOver) {
      this.#nextEndMs = -Infinity;
      this.endExpired(nowMs);
    }
    return Math.max(nowMs, this.#lastEndMs, this.said.wholeAtMs) - nowMs;
  }

  /** A lease of its own ends: its slot is free. */
  end(id: string, nowMs: number): YoungLease | undefined {
    const lease = this.young.get(id);
    if (lease !== undefined) this.remove(lease, nowMs);
    return lease;
  }

  protected remove({ id, units, grantedAtMs, expiresAtMs }: YoungLease, nowMs: number): void {
    this.#isLastOver ||= expiresAtMs >= this.#lastEndMs;
    this.lasted(nowMs - grantedAtMs);
    this.young.delete(id);
    this.leased -= units;
  }

  endExpired(nowMs: number): void {
    if (nowMs < this.#nextEndMs) return;
    this.#nextEndMs = Infinity;
    this.#lastEndMs = -Infinity;
    for (const lease of this.young.values())
      if (lease.expiresAtMs <= nowMs) this.end(lease.id, nowMs);
      else this.prolong(lease, lease.expiresAtMs);
  }

  /** Notes how long a lease took a slot here. */
  protected lasted(ms: number): void {
    this.heldMs = this.heldMs === undefined ? ms : this.heldMs + (ms - this.heldMs) / SMOOTHING;
  }

  /**
   * The slots that its calls need: by Little's law, and so many more that they seldom do not suffice. Calls that come all
   * at once, as the requests of one turn do, need as many as were in use at a time.
   */
  estimate(nowMs: number, minInUse = 0): number {
    const spanMs = nowMs - this.sinceMs;
    if (spanMs >= this.paceMs / 2) {
      this.#callsPerPace = (this.#callsPerPace + (this.calls * this.paceMs) / spanMs) / 2;
      this.#unitsPerPace = (this.#unitsPerPace + (this.#units * this.paceMs) / spanMs) / 2;
      this.sinceMs = nowMs;
      [this.calls, this.#units] = [0, 0];
      this.#lastPeak = this.#peak;
      this.#peak = 0;
    }
    if (Math.max(this.#callsPerPace, this.calls) < MIN_CALLS) return 0;
    const units = Math.max(this.#unitsPerPace, this.#units);
    return Math.max(this.needed(units / this.paceMs, minInUse), this.#peak, this.#lastPeak);
  }

  protected needed(unitsPerMs: number, minInUse = 0): number {
    const inUse = Math.max(minInUse, unitsPerMs * (this.heldMs ?? this.paceMs));
    return Math.max(1, Math.ceil(inUse + 2 * Math.sqrt(inUse)));
  }

  isUnderWay(nowMs: number): boolean {
    if (this.underWaySinceMs === undefined) return false;
    return nowMs < this.underWaySinceMs + this.policy.deadlineMs + PACE_MS;
  }

  needsMessage(nowMs: number): boolean {
    if (nowMs < this.offUntilMs || this.isUnderWay(nowMs)) return false;
    if (this.isAtOnce) return true;
    const sinceMs = nowMs - this.sentAtMs;
    if (this.idle > 0 && this.kept > this.most) return sinceMs > 0;
    if (this.isHolding)
      return sinceMs >= (this.isShort(nowMs) ? EARLY_PART * this.paceMs : this.everyMs(nowMs));
    return this.calls >= MIN_CALLS && sinceMs >= this.everyMs(nowMs);
  }

  /** The time between two of its messages. */
  protected everyMs(_nowMs: number): number {
    return this.paceMs * 2 ** Math.min(this.missed, MAX_MISSED);
  }

  /** It has no slot left for the next acquire, or half of its tokens, and acquires come. */
  protected isShort(_nowMs: number): boolean {
    if (this.missed > 0 || this.calls === 0) return false;
    return this.tokensEnd - this.token <= this.#tokens / 2 || (this.idle <= 0 && this.kept < this.most);
  }

  /** Begins a message: from now on it keeps no more than that says. */
  message(wanted: number, nowMs: number, rest?: SlotsCall["rest"]): HeldCall {
    this.kept = Math.max(this.leased, Math.min(this.kept, Math.max(wanted, rest?.units ?? 0), this.most));
    this.turn += 1;
    this.sentAtMs = nowMs;
    this.underWaySinceMs = nowMs;
    this.#messageSent = sentNow();
    this.isAtOnce = false;
    const { holder, turn, heard, memory, kept, leased, granted, released } = this;
    const all = { holder, turn, heard, memory, kept, leased, granted, released };
    return { ...all, wanted: Math.max(leased, wanted), ...(rest && { rest }) };
  }

  /**
   * The message of this turn has ended.
   * @param said `undefined`: without an answer; another object than slots: it was refused
   * @returns what it has from now on; `undefined`: the message was not applied
   */
  answered(
    call: HeldCall,
    said: Slots | object | undefined,
    sentAtMs: number,
    nowMs: number,
  ): GivenSlots | undefined {
    this.underWaySinceMs = undefined;
    if (said !== undefined && "slots" in said) return this.#heard(call, said, sentAtMs, nowMs);
    this.missed += 1;
    // While its slots last another version may answer, as in a rollout. Then they end by themselves.
    if (said === undefined || nowMs < this.spendableUntilMs) return undefined;
    this.missed = 0;
    this.kept = this.leased;
    this.offUntilMs = nowMs + OFF_MS;
    return undefined;
  }

  #heard(call: HeldCall, { slots: { memory, given } }: Slots, sentAtMs: number, nowMs: number) {
    this.missed = 0;
    // What it has is said again to an object that has lost its memory: at once, and if that loses it again, at its pace.
    this.isAtOnce = given === undefined && memory !== call.memory && !this.isRefused;
    this.isRefused = given === undefined;
    this.memory = memory;
    if (given === undefined) return undefined;
    this.heard = call.turn;
    this.#take(given, sentAtMs, nowMs);
    return given;
  }

  #take({ more, isNew, resetAgoMs, ended, ...given }: GivenSlots, sentAtMs: number, nowMs: number): void {
    if (isNew) this.kept = 0;
    const over = isNew ? [...this.young.keys()] : [...ended];
    // Leases that were granted since go on.
    const resetAtMs = sentAtMs - (resetAgoMs ?? Infinity);
    for (const { id, grantedAtMs } of this.young.values()) if (grantedAtMs < resetAtMs) over.push(id);
    for (const id of over) if (this.end(id, nowMs) !== undefined) this.released += 1;
    this.kept += more;
    this.isHome = given.isHome;
    this.most = given.most;
    this.paceMs = given.paceMs;
    this.restMs = given.restMs ?? 0;
    this.lifeMs = given.lifeMs;
    const { resetAfterMs = this.said.wholeAtMs - nowMs } = given;
    this.said.hear(given.remaining, nowMs + resetAfterMs, this.#messageSent);
    [this.token = 0, this.tokensEnd = 0] = given.tokens;
    this.#tokens = this.tokensEnd - this.token;
    this.spendableUntilMs = Math.max(this.spendableUntilMs, sentAtMs + given.lifeMs);
  }
}

/** The slots of a holder, by policy and key. */
export class SlotsByKey<Of extends KeySlots<Policy>, Policy extends PolicyView> {
  readonly #keys = new Map<string, Of>();

  get all(): MapIterator<Of> {
    return this.#keys.values();
  }

  find(policy: string, key: string): Of | undefined {
    return this.#keys.get(`${policy}/${key}`);
  }

  /** `undefined`: too many keys have slots. */
  open(policy: Policy, key: string, make: () => Of): Of | undefined {
    const name = `${policy.name}/${key}`;
    const known = this.#keys.get(name);
    if (known !== undefined) {
      known.adopt(policy);
      return known;
    }
    if (this.#keys.size >= MAX_KEYS) this.#forgetOne();
    if (this.#keys.size >= MAX_KEYS) return undefined;
    const slots = make();
    this.#keys.set(name, slots);
    return slots;
  }

  #forgetOne(): void {
    for (const [name, { isAtRest }] of this.#keys)
      if (isAtRest) {
        this.#keys.delete(name);
        return;
      }
  }
}
