/**
 * The isolate's limiter decides from reservations where it can, and otherwise calls the object.
 *
 * Requests share an isolate, and one runs at a time. A request may end at any await: its client leaves, or
 * the runtime ends it. So requests share only plain data and a latch that a message's answer opens, never stubs,
 * promises or timers. `waitUntil` of the sending request keeps the message alive; each waiting request has its own
 * timer. If the sender dies, the message counts as lost after the policy's deadline.
 */
import { MAX_UNITS } from "../core/algorithms/algorithm.ts";
import { Latch, randomFraction, readClockMs } from "../core/clock.ts";
import { areCutByWindow, type Cost, type PolicyView, versionOf } from "../core/policies/policy.ts";
import type { AskHome, Decided } from "../core/protocol/answers.ts";
import type { GiveBackMessage } from "../core/protocol/calls.ts";
import { callerDecision, type Decision } from "../core/protocol/decision.ts";
import { type BatchedCall, REGION_PROTOCOL } from "../core/protocol/messages.ts";
import { isKeySized, MAX_KEY_BYTES } from "../core/protocol/names.ts";
import { type Answered, Problem } from "../core/protocol/problems.ts";
import type { Reservation, ReserveRequest } from "../core/reservations/reservation.ts";
import type { Holding } from "./call-gate.ts";
import { FailureLimits } from "./failure-limits.ts";
import type { CarriedDecision } from "./read-answer.ts";
import { type ReservationCache, ReservationReaper } from "./reservation-cache.ts";

/** A call with only a key and a cost: no other call is decided locally. */
export interface PlainCall {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly priority?: string;
  /** "": the policy's own figures. */
  readonly plan: string;
  readonly group?: string;
}

/** The call, if it is plain and well-formed, by the name of its cost. A schema would cost as much as the decision. */
export function plainCall(
  input: unknown,
  defaultPolicy?: string,
  costField: "cost" | "units" = "cost",
): PlainCall | undefined {
  if (typeof input !== "object" || input === null) return undefined;
  const call = input as { readonly [Field in keyof PlainCall | "units"]?: unknown };
  for (const field in call)
    if (
      field !== "policy" &&
      field !== "key" &&
      field !== costField &&
      field !== "priority" &&
      field !== "plan" &&
      field !== "group" &&
      call[field as keyof PlainCall] !== undefined
    )
      return undefined;
  const { policy = defaultPolicy, key, [costField]: cost = 1, priority, plan = "", group } = call;
  if (typeof policy !== "string" || typeof key !== "string" || key === "" || !isCost(cost)) return undefined;
  // A UTF-16 unit takes at most three bytes of UTF-8, so short keys need not be measured.
  const isShort = key.length * 3 <= MAX_KEY_BYTES && key.isWellFormed();
  if (!isShort && !isKeySized(key)) return undefined;
  if (typeof plan !== "string") return undefined;
  const plain = { policy, key, cost, plan };
  if (priority === undefined && group === undefined) return plain;
  if (priority !== undefined && typeof priority !== "string") return undefined;
  // Few calls have one: the schema says what is wrong with it.
  if (group !== undefined && (typeof group !== "string" || !/^[ -~]{1,128}$/.test(group))) return undefined;
  return { ...plain, ...(priority !== undefined && { priority }), ...(group !== undefined && { group }) };
}

function isCost(cost: unknown): cost is Cost {
  if (typeof cost === "number") return isUnits(cost);
  if (typeof cost !== "object" || cost === null) return false;
  const prototype: unknown = Object.getPrototypeOf(cost);
  return (prototype === Object.prototype || prototype === null) && Object.values(cost).every(isUnits);
}

function isUnits(units: unknown): boolean {
  return Number.isInteger(units) && (units as number) >= 0 && (units as number) <= MAX_UNITS;
}

/**
 * The call is not decided: another object does that, which the reservation asks by now, or the answer that it waited for
 * brought too few units.
 */
interface AskAgain {
  readonly isAgain: true;
  /** How long it waited. Absent: by the clock. */
  readonly tookMs?: number;
}

const ASK_ELSEWHERE: AskAgain = { isAgain: true };

/** `undefined`: no answer in time. */
type Asked = CarriedDecision | AskAgain | Problem | undefined;

function isDecided(answer: Exclude<Asked, AskAgain> | AskHome | null): answer is CarriedDecision {
  return answer !== undefined && answer !== null && "rules" in answer;
}

/** How long a holder asks the home object after the object in its region did not decide. */
const HOME_MS = 2_000;
/** After the object in its region has answered nothing for so long, it asks the home object too. */
const MAX_SILENT_MS = 3_000;

export class LocalLimiter {
  readonly cache: ReservationCache;
  readonly #answers = new WeakMap<ReserveRequest, Latch>();
  readonly #reaper: ReservationReaper;
  /** Decides where nothing beneath has answered. */
  readonly failures = new FailureLimits();

  constructor(cache: ReservationCache) {
    this.cache = cache;
    this.#reaper = new ReservationReaper(cache);
  }

  /** Decides a cost above 0 and takes it. Returns no promise when the object is not needed. */
  limit(caller: Holding, policy: PolicyView, key: string, cost: Cost): Decision | Answered<Decision> {
    const nowMs = this.cache.now(caller.time.nowMs());
    if (this.#reaper.hasUnitsLeft) this.#reaper.keep(caller, nowMs);
    const reservation = this.cache.open(policy, key, nowMs, caller);
    reservation.note(cost, nowMs);
    const decided = this.#admit(caller, reservation, cost, nowMs) ?? reservation.deny(cost, nowMs, true);
    if (decided === undefined) return this.#ask(caller, reservation, cost, nowMs);
    return localDecision(reservation, decided);
  }

  /** Admits a cost above 0 from held units; `undefined`: too few. It repeats no denial. */
  admit(caller: Holding, policy: PolicyView, key: string, cost: Cost): Decision | undefined {
    const nowMs = this.cache.now(caller.time.nowMs());
    const reservation = this.cache.open(policy, key, nowMs, caller);
    // Its answer brings no units: before any has come, the first call for units decides with everything.
    if (reservation.isAnswered) reservation.note(cost, nowMs);
    const admitted = this.#admit(caller, reservation, cost, nowMs);
    return admitted && localDecision(reservation, admitted);
  }

  /** Ends the key's reservations before a call to its object. Returns units for the same stub. */
  end(policy: PolicyView, key: string): readonly GiveBackMessage[] {
    this.forgetDenials(policy, key);
    return this.cache.all(policy, key).flatMap((reservation) => {
      // What another group's calls hold is not for this one.
      if (policy.group && reservation.policy.group?.group !== policy.group.group) return [];
      // What is another object's goes back to it by itself.
      if (reservation.region !== undefined) this.cache.retire(reservation);
      return this.cache.end(reservation) ?? [];
    });
  }

  /** Forgets the key's denials: a call may have returned units, or been under way unseen. */
  forgetDenials(policy: PolicyView, key: string): void {
    for (const reservation of this.cache.all(policy, key)) reservation.forgetDenials();
  }

  #admit(caller: Holding, reservation: Reservation, cost: Cost, nowMs: number): Decided | undefined {
    if (!reservation.spend(cost, nowMs)) return undefined;
    if (reservation.needsRefill(nowMs)) void this.#send(caller, reservation, 0, nowMs);
    return reservation.admitted(nowMs);
  }

  /** @param askedMs how long another object was asked before */
  async #ask(
    caller: Holding,
    reservation: Reservation,
    cost: Cost,
    sinceMs: number,
    askedMs = 0,
  ): Answered<Decision> {
    const { policy, key } = reservation;
    let nowMs = sinceMs;
    const message = reservation.isHot ? reservation.messageAt(nowMs) : undefined;
    let waitedMs = askedMs;
    if (message?.promise(policy, cost) === true) {
      reservation.miss();
      // At most half the deadline, and for one answer: a call to the object needs time too.
      const mostMs = Math.min(policy.deadlineMs / 2, policy.deadlineMs - waitedMs);
      waitedMs += (await this.#answers.get(message)?.wait(caller.time, mostMs)) ?? 0;
      nowMs = this.cache.now(caller.time.nowMs());
      const admitted = this.#admit(caller, reservation, cost, nowMs);
      // Another call's answer brought the units, so no message is under way for the calls denied meanwhile.
      if (admitted !== undefined) reservation.failed();
      const decided = admitted ?? reservation.deny(cost, nowMs);
      if (decided !== undefined) return localDecision(reservation, decided);
    }
    const ask = () => {
      // The key may have so many holders that this one is sent to its region: it says who it is from its first call on, and
      // nothing more to the home object before that has answered.
      const isRegional = reservation.mayBeRegional(caller.region?.(), nowMs);
      if (isRegional && policy.regions === "always") this.cache.move(reservation, caller.region?.());
      const underWay = reservation.messageAt(nowMs);
      const isFirst = !reservation.isAnswered && underWay !== undefined && underWay.sentAtMs < nowMs;
      const isSpared = caller.time.isLasting === true && reservation.sparesMessage(waitedMs, underWay);
      if (reservation.isBehind || (isRegional && isFirst) || isSpared)
        return this.#awaitUnits(caller, reservation, cost, nowMs, waitedMs);
      return (isRegional || reservation.isWorthUnits) && underWay === undefined
        ? this.#send(caller, reservation, cost, nowMs, waitedMs)
        : this.#askAlone(caller, reservation, cost, nowMs, waitedMs);
    };
    const hasAsked = reservation.asks(nowMs);
    const decided = await (caller.gate === undefined ? ask() : caller.gate.ask(policy, key, nowMs, ask));
    hasAsked();
    if (decided === undefined) {
      const alone = decideAlone(reservation, cost, this.cache.now(caller.time.nowMs()));
      if (alone === undefined) return this.failures.decide(policy, key, cost, caller.time.nowMs());
      // The object may have charged this call: one that tries further checks after a denial must not go on.
      const isDenied = alone.rules.some(({ success }) => !success);
      return localDecision(reservation, isDenied ? { ...alone, source: "fallback" } : alone);
    }
    if (decided instanceof Problem) return reservation.failed() ?? decided;
    if ("isAgain" in decided) {
      const answeredAtMs = this.cache.now(caller.time.nowMs());
      const { tookMs = answeredAtMs - nowMs } = decided;
      return this.#ask(caller, reservation, cost, answeredAtMs, waitedMs + tookMs);
    }
    reservation.overriddenBy = decided.told?.override;
    if (decided.told !== undefined) return decided.told;
    // The units that the object lacked may have been on their way to this isolate.
    const isDenied = decided.rules.some(({ success }) => !success);
    nowMs = this.cache.now(caller.time.nowMs());
    if (!isDenied || !reservation.spend(cost, nowMs))
      return callerDecision(policy, key, decided, "object", randomFraction, readClockMs);
    return localDecision(reservation, reservation.admitted(nowMs));
  }

  /** Waits for the next answer's units. While an object that was late before is late again, no call is held up. */
  async #awaitUnits(
    caller: Holding,
    reservation: Reservation,
    cost: Cost,
    sinceMs: number,
    waitedMs: number,
  ): Promise<Asked> {
    const { policy } = reservation;
    if (reservation.messageAt(sinceMs) === undefined) void this.#send(caller, reservation, 0, sinceMs);
    const message = reservation.messageAt(sinceMs);
    const leftMs = policy.deadlineMs - waitedMs;
    const lateMs = reservation.isBehind ? reservation.lateMs : policy.deadlineMs;
    const overdueMs = Math.min(leftMs, lateMs - (sinceMs - (message?.sentAtMs ?? sinceMs)));
    const answered = message && this.#answers.get(message);
    const tookMs = overdueMs > 0 ? ((await answered?.wait(caller.time, overdueMs)) ?? 0) : 0;
    const nowMs = this.cache.now(caller.time.nowMs());
    const told = (alone: Decided) => ({ ...alone, told: localDecision(reservation, alone) });
    const decided = this.#admit(caller, reservation, cost, nowMs) ?? reservation.deny(cost, nowMs);
    if (decided !== undefined) return told(decided);
    // The object may have answered, but without units.
    const isAnswered = reservation.messageAt(nowMs) !== message && reservation.missedAnswers === 0;
    if (!isAnswered || tookMs >= leftMs) {
      // No message of this call is under way, so it is not charged.
      const alone = decideAlone(reservation, cost, nowMs);
      return alone === undefined ? caller.objects.unanswered(policy) : told(alone);
    }
    if (caller.time.isLasting !== true)
      return this.#askAlone(caller, reservation, cost, nowMs, waitedMs + tookMs);
    // The next message asks for what this call lacks.
    reservation.note(cost, nowMs);
    return { isAgain: true, tookMs };
  }

  /** Sends a message for units and, unless `cost` is 0, for a decision. */
  #send(caller: Holding, reservation: Reservation, cost: Cost, nowMs: number, waitedMs = 0): Promise<Asked> {
    // The request's own clock may be earlier than the shared instant: then the lifetime begins earlier too.
    const message = reservation.ask(cost, nowMs, Math.min(nowMs, caller.time.nowMs()));
    this.cache.hold(reservation);
    const reserve = { ...message.call, ...placeOf(reservation, caller, nowMs) };
    const longerMs = cost === 0 ? reservation.messageMs - reservation.policy.deadlineMs : -waitedMs;
    const answered = this.#request(caller, reservation, { reserve }, longerMs, message);
    this.#answers.set(message, Latch.after(answered));
    caller.inBackground(answered);
    this.#reaper.keep(caller, nowMs);
    return answered;
  }

  async #askAlone(
    caller: Holding,
    reservation: Reservation,
    cost: Cost,
    sentAtMs: number,
    waitedMs: number,
  ): Promise<Asked> {
    const { policy, key, asked: askedAt, region } = reservation;
    const about = { policy: policy.name, key, cost, priority: policy.priority, ...versionOf(policy) };
    const limit = { ...about, ...(region && { region, protocol: REGION_PROTOCOL }) };
    const answer = await this.#request(caller, reservation, { limit }, -waitedMs);
    if (answer === undefined || answer instanceof Problem || "isAgain" in answer) return answer;
    const nowMs = this.cache.now(caller.time.nowMs());
    reservation.measureTrip(sentAtMs, nowMs);
    reservation.learn(cost, answer, nowMs, askedAt);
    this.#stand(reservation, answer, sentAtMs);
    return reservation.withOwn(answer, nowMs);
  }

  /** An answer renews the denials of all keys of its epoch. */
  #stand(reservation: Reservation, answer: Decided, sentAtMs: number): void {
    if (answer.epoch === undefined) return;
    const epoch = this.cache.epoch(answer.epoch, sentAtMs);
    // What is held for this holder, and given back, may end a denial.
    if (!reservation.isHeld) reservation.denials.stand(answer, epoch);
  }

  /** Makes a call to the object that the reservation asks. @param message what the call asks of units */
  async #request(
    caller: Holding,
    reservation: Reservation,
    call: BatchedCall,
    longerMs: number,
    message?: ReserveRequest,
  ): Promise<Asked> {
    const { policy, key, region } = reservation;
    const reply = await caller.objects.call<CarriedDecision | AskHome | null>(
      policy,
      key,
      call,
      longerMs,
      region,
    );
    const answer = reply instanceof Problem ? reply : reply?.answer;
    const nowMs = this.cache.now(caller.time.nowMs());
    if (isDecided(answer)) {
      if (message === undefined) return answer;
      reservation.answered(message, answer, nowMs);
      this.#stand(reservation, answer, message.sentAtMs);
      if (reservation.hasNews && reservation.messageAt(nowMs) === undefined)
        void this.#send(caller, reservation, 0, nowMs);
      if (answer.reserved?.asksRegion !== true) return answer;
      this.#moveToRegion(caller, reservation, nowMs);
      reservation.forgetDenials();
      // What the home object lacks, the region's may have.
      return answer.rules.every(({ success }) => success) ? answer : ASK_ELSEWHERE;
    }
    // Several calls were under way, and another one's answer may have moved the reservation.
    const isThere = reservation.region === region;
    if (reply === undefined && isThere) {
      // Thousands may have started at once, and ask the object in their region by now.
      const isLost =
        !reservation.isAnswered && reservation.isHot && reservation.mayBeRegional(caller.region?.(), nowMs);
      if (isLost && region === undefined) this.#moveToRegion(caller, reservation, nowMs);
      else reservation.unanswered(nowMs, message);
    } else reservation.failed(message);
    // Other rules now decide the key: units held under the old ones end and are returned.
    if (answer === null) return this.cache.retire(reservation);
    const asksHome = answer !== undefined && "askHome" in answer;
    if (region !== undefined && isThere && (asksHome || nowMs >= reservation.silentSinceMs + MAX_SILENT_MS)) {
      reservation.homeUntilMs = nowMs + HOME_MS;
      this.cache.move(reservation, undefined);
    }
    if (!asksHome) return answer;
    return region === undefined ? undefined : ASK_ELSEWHERE;
  }

  /**
   * Asks the object in its region from now on, at once: what has to wait there is decided when that object can. Of a log or
   * window it waits for a call: of 300 isolates at twenty times a log, early buckets lost a sixth of it.
   */
  #moveToRegion(caller: Holding, reservation: Reservation, nowMs: number): void {
    this.cache.move(reservation, caller.region?.());
    if (reservation.messageAt(nowMs) !== undefined || areCutByWindow(reservation.policy.rules)) return;
    void this.#send(caller, reservation, 0, nowMs);
  }
}

/** The home object may send a holder to the object in its region; that one needs to know that it is asked as such. */
function placeOf(reservation: Reservation, caller: Holding, nowMs: number) {
  const { region } = reservation;
  if (region !== undefined) return { region, protocol: REGION_PROTOCOL };
  const isRegional = reservation.mayBeRegional(caller.region?.(), nowMs);
  return isRegional ? { mayAskRegion: true as const, near: caller.region?.() } : {};
}

/** What a holder's bucket says of a call that its object does not decide; `undefined`: it has none. */
function decideAlone(reservation: Reservation, cost: Cost, nowMs: number): Decided | undefined {
  const { policy, endsAtMs = nowMs, buckets, denials } = reservation;
  if (nowMs >= endsAtMs || buckets.length === 0) return undefined;
  // A unit may have come while the object was asked.
  if (reservation.spend(cost, nowMs)) return reservation.admitted(nowMs);
  const units = reservation.spendableAt(nowMs);
  // Its denials say when the next unit comes, if that is sooner.
  const retryAfterMs = endsAtMs - nowMs;
  const denied = { success: false, remaining: 0, retryAfterMs, reason: "quota" } as const;
  const rules = reservation
    .admitted(nowMs)
    .rules.map((rule, index) => (units[index] === 0 ? { ...rule, ...denied } : rule));
  if (rules.some(({ success }) => !success)) denials.learn(policy, 1, rules, nowMs);
  return reservation.deny(cost, nowMs);
}

function localDecision({ policy, key, overriddenBy: override }: Reservation, decided: Decided): Decision {
  const decision = callerDecision(policy, key, decided, "isolate", randomFraction, readClockMs);
  return override === undefined ? decision : { ...decision, override };
}
