/**
 * The isolate's limiter: decides from reservations what it can, and asks the object otherwise.
 *
 * Many requests share one isolate, and one runs at a time. At any await the request may end: its client leaves, or
 * the runtime ends it. So requests never share what belongs to one of them (stubs, timers). They share plain data,
 * and one kind of promise: the answer to a message. `waitUntil` of the request that sent the message keeps it alive,
 * and each request that waits for it has its own timer. When the sending request dies, the message counts as lost
 * after the policy's deadline.
 */
import { orTimeout, type Time } from "../core/clock.ts";
import { type Cost, MAX_TTL_MS, type PolicyView, versionOf } from "../core/policies/policy.ts";
import type { Decided } from "../core/protocol/answers.ts";
import { type Decision, degradedDecision } from "../core/protocol/decision.ts";
import type { Returned } from "../core/protocol/messages.ts";
import { Problem } from "../core/protocol/problems.ts";
import type { Reservation } from "../core/reservations/reservation.ts";
import type { PendingRequest } from "../core/reservations/sizing.ts";
import { type Holding, through } from "./call-gate.ts";
import { boundReached, type CarriedDecision, toDecision } from "./read-answer.ts";
import type { ReservationCache } from "./reservation-cache.ts";
import { returnUnits, split } from "./transports/send-batch.ts";

/** A request that waited for so many answers and got no units asks the object itself. */
const MAX_WAITS = 3;
/** Decides on costs for all requests of one isolate. */
export class LocalLimiter {
  readonly #cache: ReservationCache;
  readonly #answers = new WeakMap<PendingRequest, Promise<CarriedDecision | Problem | undefined>>();
  readonly #keeper: ReservationReaper;

  constructor(cache: ReservationCache) {
    this.#cache = cache;
    this.#keeper = new ReservationReaper(cache);
  }

  /** Decides on a cost above 0 and takes it. Returns no promise when the object need not be asked. */
  limit(
    caller: Holding,
    policy: PolicyView,
    key: string,
    cost: Cost,
  ): Decision | Promise<Decision | Problem> {
    const nowMs = this.#cache.now(caller.time.nowMs());
    if (this.#keeper.isLeft) this.#keeper.keep(caller, nowMs);
    const reservation = this.#cache.open(policy, key, nowMs);
    reservation.note(cost, nowMs);
    const decided = this.#admit(caller, reservation, cost, nowMs) ?? reservation.deny(cost, nowMs, true);
    if (decided === undefined) return this.#ask(caller, reservation, cost, nowMs);
    return toDecision(policy, key, decided, "isolate");
  }

  /** Admits a cost above 0 from units that are held here; `undefined`: there are too few. It repeats no denial. */
  admit(caller: Holding, policy: PolicyView, key: string, cost: Cost): Decision | undefined {
    const nowMs = this.#cache.now(caller.time.nowMs());
    const reservation = this.#cache.open(policy, key, nowMs);
    reservation.note(cost, nowMs);
    const admitted = this.#admit(caller, reservation, cost, nowMs);
    return admitted && toDecision(policy, key, admitted, "isolate");
  }

  /**
   * Ends the reservations of a key before a call that the object decides, so that the object has all units of the key.
   *
   * @returns what to give back, on the same stub and before that call
   */
  end(policy: PolicyView, key: string): readonly Returned[] {
    this.forgetDenials(policy, key);
    return this.#all(policy, key).flatMap((reservation) => this.#cache.end(reservation) ?? []);
  }

  /** Forgets the denials of a key: a call may have given units back, or one that was under way may not have seen it. */
  forgetDenials(policy: PolicyView, key: string): void {
    for (const reservation of this.#all(policy, key)) reservation.forgetDenials();
  }

  #all(policy: PolicyView, key: string): Reservation[] {
    const all = [policy, ...policy.priorities.seen.values()];
    return all.flatMap((seen) => this.#cache.find(seen, key) ?? []);
  }

  #admit(caller: Holding, reservation: Reservation, cost: Cost, nowMs: number): Decided | undefined {
    if (!reservation.spend(cost, nowMs)) return undefined;
    if (reservation.needsRefill(nowMs)) void this.#send(caller, reservation, 0, nowMs);
    return reservation.admitted(nowMs);
  }

  async #ask(
    caller: Holding,
    reservation: Reservation,
    cost: Cost,
    sinceMs: number,
  ): Promise<Decision | Problem> {
    const { policy, key } = reservation;
    // At most half the deadline goes on waiting, so that there is time to ask the object.
    const mostMs = policy.deadlineMs / 2;
    let nowMs = sinceMs;
    for (let waits = 0; waits < MAX_WAITS && nowMs - sinceMs < mostMs; waits += 1) {
      const message = reservation.messageAt(nowMs);
      if (!reservation.isHot || message === undefined || !message.promise(policy, cost)) break;
      reservation.miss();
      await orTimeout(this.#answers.get(message), caller.time, Math.min(mostMs, sinceMs + mostMs - nowMs));
      nowMs = this.#cache.now(caller.time.nowMs());
      const admitted = this.#admit(caller, reservation, cost, nowMs);
      // Another call's answer brought the units: so nobody asks now for those that are denied meanwhile.
      if (admitted !== undefined) reservation.failed();
      const decided = admitted ?? reservation.deny(cost, nowMs);
      if (decided !== undefined) return toDecision(policy, key, decided, "isolate");
    }
    // The clock may have been set meanwhile.
    const waitedMs = Math.min(mostMs, Math.max(0, nowMs - sinceMs));
    const decided = await through(caller.gate, policy, key, nowMs, () => {
      const isFree = reservation.isWorthUnits && reservation.messageAt(nowMs) === undefined;
      return isFree
        ? this.#send(caller, reservation, cost, nowMs, waitedMs)
        : this.#askAlone(caller, reservation, cost, waitedMs);
    });
    if (decided === undefined) return degradedDecision(policy, key);
    if (decided instanceof Problem) return decided;
    if ("full" in decided) return reservation.failed() ?? boundReached(decided);
    if (decided.told !== undefined) return decided.told;
    // The units that the object did not have may have been on their way to this isolate.
    const isDenied = decided.rules.some(({ success }) => !success);
    nowMs = this.#cache.now(caller.time.nowMs());
    if (!isDenied || !reservation.spend(cost, nowMs)) return toDecision(policy, key, decided);
    return toDecision(policy, key, reservation.admitted(nowMs), "isolate");
  }

  /** Sends a message that asks for units and, unless `cost` is 0, for a decision. */
  #send(
    caller: Holding,
    reservation: Reservation,
    cost: Cost,
    nowMs: number,
    waitedMs = 0,
  ): Promise<CarriedDecision | Problem | undefined> {
    const { policy, key } = reservation;
    // What this request reads itself may be earlier than what counts: then the lifetime begins earlier too.
    const message = reservation.ask(cost, nowMs, Math.min(nowMs, caller.time.nowMs()));
    this.#cache.hold(reservation);
    const answer = async () => {
      const asked = await caller.objects.call<CarriedDecision | null>(
        policy,
        key,
        { reserve: message.call },
        -waitedMs,
      );
      if (asked === undefined || asked instanceof Problem) return reservation.failed(message) ?? asked;
      // The key is decided by other rules now: units that were kept under the old ones end, and go back.
      if (asked.answer === null) return reservation.failed(message) ?? this.#cache.retire(reservation);
      if (asked.answer.told !== undefined) return reservation.failed(message) ?? asked.answer;
      reservation.answered(message, asked.answer, this.#cache.now(caller.time.nowMs()));
      return asked.answer;
    };
    const answered = answer();
    this.#answers.set(message, answered);
    caller.inBackground(answered);
    this.#keeper.keep(caller, nowMs);
    return answered;
  }

  async #askAlone(
    { objects, time }: Holding,
    reservation: Reservation,
    cost: Cost,
    waitedMs: number,
  ): Promise<CarriedDecision | Problem | undefined> {
    const { policy, key, asked: askedAt } = reservation;
    const limit = { policy: policy.name, key, cost, priority: policy.priority, ...versionOf(policy) };
    const asked = await objects.call<CarriedDecision>(policy, key, { limit }, -waitedMs);
    if (asked === undefined || asked instanceof Problem) return reservation.failed() ?? asked;
    if (asked.answer.told !== undefined) return reservation.failed() ?? asked.answer;
    const nowMs = this.#cache.now(time.nowMs());
    reservation.learn(cost, asked.answer, nowMs, askedAt);
    return reservation.withOwn(asked.answer, nowMs);
  }
}

/* Background work of requests that gives units back when their lifetimes end. */

/** The work of one request. */
interface ReaperRun {
  readonly untilMs: number;
  lookedAtMs: number;
  /** Messages that it may still send. */
  left: number;
}

/** A request works for so long, then another one takes over. The runtime ends background work after 30 s. */
const KEEP_MS = 20_000;
/**
 * It looks this often for reservations to give back, and for a clock that was put back, which would make lifetimes
 * longer. It must look within the last part of a lifetime, in which nothing is spent (MAX_MARGIN_MS in
 * core/reservations/sizing.ts).
 */
const LOOK_MS = 200;
/** A request that has not looked for so long has died. */
const SILENT_MS = 2_000;
/**
 * A request sends so many messages, then another one takes over. On Cloudflare's free plan an invocation may make 1,000
 * calls to objects, and some are the request's own, or those that it sends for others.
 */
export const MAX_REAPER_MESSAGES = 250;

/** Gives back the units of one isolate: one of its requests works at a time. */
class ReservationReaper {
  readonly #cache: ReservationCache;
  #shift: ReaperRun | undefined;
  #isLeft = false;

  constructor(cache: ReservationCache) {
    this.#cache = cache;
  }

  /** Whether a request has sent all that it may, and units are left to give back: the next request takes over. */
  get isLeft(): boolean {
    return this.#isLeft;
  }

  /** Makes sure that some request works, for at least the longest lifetime from now. */
  keep(caller: Holding, nowMs: number): void {
    const shift = this.#shift;
    const isKept = shift !== undefined && nowMs < shift.lookedAtMs + SILENT_MS;
    if (isKept && nowMs + MAX_TTL_MS <= shift.untilMs) return;
    this.#shift = { untilMs: nowMs + KEEP_MS, lookedAtMs: nowMs, left: MAX_REAPER_MESSAGES };
    this.#isLeft = false;
    caller.inBackground(this.#work(caller, this.#shift));
  }

  async #work({ objects, time }: Holding, shift: ReaperRun): Promise<void> {
    const look = this.#cache.watch();
    look(0, time.nowMs());
    const { mostAtOnce = Infinity } = objects;
    let isBehind = false;
    while (this.#shift === shift && shift.lookedAtMs < shift.untilMs && this.#cache.isHolding) {
      const lookMs = isBehind ? 0 : Math.max(1, Math.min(LOOK_MS, this.#cache.shortestMs / 4));
      if (!isBehind) await pause(time, lookMs);
      const readMs = time.nowMs();
      look(lookMs, readMs);
      shift.lookedAtMs = this.#cache.now(readMs);
      const { first, rest } = split(this.#cache.endDue(shift.lookedAtMs), mostAtOnce);
      // When this request dies meanwhile, another one finds the rest.
      this.#cache.putBack(rest);
      isBehind = rest.length > 0;
      if (first.length > 0 && mostAtOnce < Infinity) shift.left -= mostAtOnce;
      await returnUnits(objects, first);
      if (shift.left > 0) continue;
      this.#isLeft = this.#shift === shift && this.#cache.isHolding;
      break;
    }
    if (this.#shift === shift) this.#shift = undefined;
  }
}

async function pause(time: Time, ms: number): Promise<void> {
  await new Promise<void>((done) => {
    if (time.idle === undefined) time.after(ms, done);
    else time.idle(ms, done);
  });
}
