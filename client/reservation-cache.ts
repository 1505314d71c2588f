import { HolderClock, type Time } from "../core/clock.ts";
import {
  type LocationHint,
  MIN_USEFUL_TTL_MS,
  type PolicyView,
  MAX_TTL_MS,
} from "../core/policies/policy.ts";
import type { GiveBackMessage } from "../core/protocol/calls.ts";
import type { Epoch } from "../core/reservations/knowledge.ts";
import { Reservation } from "../core/reservations/reservation.ts";
import { marginMs, MAX_MARGIN_MS } from "../core/reservations/sizing.ts";
import type { Holding } from "./call-gate.ts";
import { byObject, type UnsentGiveBack, returnUnits } from "./transports/send-batch.ts";

/** The most keys. Each takes its name and about 1 KiB of the isolate's 128 MB. */
const MAX_KEYS = 16_384;
/** The most UTF-16 units of all their names. The longest key has 512. */
const MAX_NAME_LENGTH = 2 ** 21;

export type Returning = Pick<Holding, "inBackground"> & {
  readonly objects: Parameters<typeof returnUnits>[0];
};

interface CachedReservation {
  readonly reservation: Reservation;
  readonly usedAtMs: number;
}

/** The most epochs of objects: the denials of the others are asked for again. */
const MAX_EPOCHS = 4_096;

/** An isolate's reservations and denials by key. When full, it drops the least recently used key. */
export class ReservationCache {
  /** The shortest possible lifetime of a reservation here, in milliseconds; Infinity: there was none. */
  shortestMs = Infinity;
  readonly #makeId: () => string;
  /** In order of their last use, to the millisecond. */
  readonly #reservations = new Map<string, CachedReservation>();
  /** By policy and key, those whose calls have a group. */
  readonly #ofGroups = new Map<string, Set<Reservation>>();
  #last: CachedReservation | undefined;
  /** Those that may have units to return. */
  readonly #held = new Set<Reservation>();
  #ended: UnsentGiveBack[] = [];
  readonly #epochs = new Map<string, Epoch>();
  #nameLength = 0;
  readonly #clock = new HolderClock(MAX_MARGIN_MS);
  #count = 0;
  #holder = "";

  /** @param makeId makes an unguessable id. Not called at start-up, when there is no randomness */
  constructor(makeId: () => string) {
    this.#makeId = makeId;
  }

  get size(): number {
    return this.#reservations.size;
  }

  /** The shared instant after a request has read this one. A jump of the clock ends all reservations. */
  now(readMs: number): number {
    if (this.#clock.read(readMs)) this.endAll();
    return this.#clock.latestMs;
  }

  /** Watches for a clock that is put back in steps: beyond the margin all reservations end. */
  watch(): (steppedMs: number, readMs: number) => void {
    const step = this.#clock.steps();
    return (steppedMs, readMs) => {
      if (step(steppedMs, readMs)) this.endAll();
    };
  }

  /**
   * What it ends, since the key has another policy now, goes back before anything that the caller sends after this.
   * @param caller absent: it sends nothing, and `endDue` returns that
   */
  open(policy: PolicyView, key: string, nowMs: number, caller?: Returning): Reservation {
    // A hot key comes hundreds of times in a millisecond. Finding it costs a fifth of a decision.
    const last = this.#last;
    if (last?.usedAtMs === nowMs && last.reservation.policy === policy && last.reservation.key === key)
      return last.reservation;
    const name = nameOf(policy, key);
    const known = this.#inForce(name, policy, caller);
    this.#last = known;
    if (known?.usedAtMs === nowMs) return known.reservation;
    if (known !== undefined) this.#reservations.delete(name);
    const reservation = known?.reservation ?? this.#make(policy, key, name, nowMs);
    this.#reservations.set(name, { reservation, usedAtMs: nowMs });
    return reservation;
  }

  /** The reservation of a key. It ends if the key has another policy now. */
  #inForce(name: string, policy: PolicyView, caller: Returning | undefined): CachedReservation | undefined {
    const known = this.#reservations.get(name);
    if (known === undefined || known.reservation.policy === policy) return known;
    if (saysTheSame(known.reservation.policy, policy)) {
      known.reservation.policy = policy;
      return known;
    }
    // A region that has a message to its pool under way would repeat its denial.
    const first = policy.pool === undefined ? caller : undefined;
    const returned = first === undefined ? this.retire(known.reservation) : this.end(known.reservation);
    if (returned !== undefined)
      first?.inBackground(returnUnits(first.objects, [{ policy: known.reservation.policy, returned }]));
    this.#forget(name, known.reservation);
    return undefined;
  }

  /** The reservation of a key, if any. This does not count as a use. */
  find(policy: PolicyView, key: string): Reservation | undefined {
    return this.#reservations.get(nameOf(policy, key))?.reservation;
  }

  /** The reservations of a key, for each priority and group. This does not count as a use. */
  all(policy: PolicyView, key: string): Reservation[] {
    const ofGroups = this.#ofGroups.get(`${policy.name}/${key}`) ?? [];
    const views = [policy, ...policy.priorities.seen.values()];
    return [...views.flatMap((seen) => this.find(seen, key) ?? []), ...ofGroups];
  }

  /** The epoch of an answer to what was sent at `sentAtMs`: the object had lifted no denial of that epoch by then. */
  epoch(id: string, sentAtMs: number): Epoch {
    const epoch = this.#epochs.get(id) ?? { sureAtMs: sentAtMs };
    epoch.sureAtMs = Math.max(epoch.sureAtMs, sentAtMs);
    // Those that were heard of last are at the end.
    this.#epochs.delete(id);
    this.#epochs.set(id, epoch);
    for (const oldest of this.#epochs.keys()) {
      if (this.#epochs.size <= MAX_EPOCHS) break;
      this.#epochs.delete(oldest);
    }
    return epoch;
  }

  hold(reservation: Reservation): void {
    const { pool, reservation: lifetimes } = reservation.policy;
    // A pool's region may have little time left, so the lifetimes of its units may be that short.
    this.#clock.hold(marginMs(pool === undefined ? lifetimes.leastMs : MIN_USEFUL_TTL_MS));
    this.#held.add(reservation);
    this.shortestMs = Math.min(this.shortestMs, reservation.policy.reservation.leastMs);
  }

  /** Ends a reservation. Returns the message to the object; `undefined`: there is nothing to settle. */
  end(reservation: Reservation): GiveBackMessage | undefined {
    this.#held.delete(reservation);
    return reservation.giveBack();
  }

  /** Ends the reservations whose lifetime is over. Returns all that have ended since the last call. */
  endDue(nowMs: number): readonly UnsentGiveBack[] {
    for (const reservation of this.#held) {
      // A reservation that waits for its first answer has no end yet.
      const isWaiting = reservation.messageAt(nowMs) !== undefined;
      if (!isWaiting && (reservation.endsAtMs ?? 0) <= nowMs) this.retire(reservation);
    }
    if (this.#held.size === 0) this.#clock.release();
    const ended = this.#ended;
    this.#ended = [];
    return ended;
  }

  /** Takes back unsent results of `endDue`. Beyond a bound the oldest are lost, and count as used. */
  putBack(endings: readonly UnsentGiveBack[]): void {
    this.#ended = [...endings, ...this.#ended].slice(-MAX_KEYS);
  }

  /** Whether units may have to be returned, now or later. */
  get isHolding(): boolean {
    return this.#held.size + this.#ended.length > 0;
  }

  #make(policy: PolicyView, key: string, name: string, nowMs: number): Reservation {
    this.#last = undefined;
    for (const [oldest, { reservation }] of this.#reservations) {
      if (this.#reservations.size < MAX_KEYS && this.#nameLength + name.length <= MAX_NAME_LENGTH) break;
      this.retire(reservation);
      this.#forget(oldest, reservation);
    }
    this.#nameLength += name.length;
    if (this.#holder === "") this.#holder = this.#makeId();
    this.#count += 1;
    const made = new Reservation(policy, key, `${this.#holder}.${this.#count}`, nowMs);
    if (policy.group === undefined) return made;
    const place = `${policy.name}/${key}`;
    const ofGroups = this.#ofGroups.get(place) ?? new Set();
    this.#ofGroups.set(place, ofGroups.add(made));
    return made;
  }

  #forget(name: string, reservation: Reservation): void {
    this.#reservations.delete(name);
    this.#nameLength -= name.length;
    const { policy, key } = reservation;
    const place = `${policy.name}/${key}`;
    const ofGroups = this.#ofGroups.get(place);
    ofGroups?.delete(reservation);
    if (ofGroups?.size === 0) this.#ofGroups.delete(place);
  }

  /** After a clock is put back, lifetimes would last longer than the object expects. */
  endAll(): void {
    for (const reservation of this.#held) this.retire(reservation);
    this.#clock.release();
    this.#last = undefined;
    this.#reservations.clear();
    this.#ofGroups.clear();
    this.#epochs.clear();
    this.#nameLength = 0;
  }

  /** From now on another object is asked for its units. */
  move(reservation: Reservation, region: LocationHint | undefined): void {
    if (reservation.region === region) return;
    // An object that has never answered is late, and gets no further message: what it grants ends by itself.
    if (reservation.isAnswered) this.retire(reservation);
    else this.end(reservation);
    reservation.moveTo(region);
  }

  /** Ends a reservation. `endDue` returns its message to the object. */
  retire(reservation: Reservation): undefined {
    const returned = this.end(reservation);
    if (returned !== undefined) this.#ended.push({ policy: reservation.policy, returned });
  }
}

/** Whether two versions of a policy, both changed at run time, are the same for a key. */
function saysTheSame(one: PolicyView, other: PolicyView): boolean {
  if (one.inForce === undefined || other.inForce === undefined)
    return one.groupOf !== undefined && one.groupOf === other.groupOf;
  return (
    one.plan === other.plan &&
    one.inForce.candidate === other.inForce.candidate &&
    one.inForce.fields === other.inForce.fields &&
    one.override?.pattern === other.override?.pattern
  );
}

/** A unique name: neither policies that clients use nor priorities contain a slash or a colon. */
function nameOf({ name, priority, group }: PolicyView, key: string): string {
  if (group !== undefined) return `${name}:${priority ?? ""}:${group.group.length}:${group.group}/${key}`;
  return priority === undefined ? `${name}/${key}` : `${name}:${priority}/${key}`;
}

interface ReaperRun {
  readonly untilMs: number;
  checkedAtMs: number;
}

/** After this time another request takes over. The runtime ends background work after 30 s. */
const RUN_MS = 20_000;
/**
 * Milliseconds between checks of lifetimes and of the clock, which may be put back. Below the unspent last
 * part of a lifetime (MAX_MARGIN_MS in core/reservations/sizing.ts).
 */
const CHECK_EVERY_MS = 200;
/** A request that has not checked for this long has died. */
const SILENT_MS = 2_000;
/**
 * Then another request takes over: after so many times `mostAtOnce` messages, which are 32. Cloudflare's free plan allows an
 * invocation 10 ms of processor time, of which a message takes at most 0.2 ms, and 50 calls, or 1,000 to objects.
 */
export const MAX_ROUNDS = 8;

/** Returns the units of one isolate when their lifetimes end. One of its requests works at a time. */
export class ReservationReaper {
  /** The last request reached its message bound with units left: the next request takes over. */
  hasUnitsLeft = false;
  readonly #cache: ReservationCache;
  #run: ReaperRun | undefined;

  constructor(cache: ReservationCache) {
    this.#cache = cache;
  }

  /** Ensures that some request works, for at least the longest lifetime from now. */
  keep(caller: Holding, nowMs: number): void {
    const run = this.#run;
    const isAlive = run !== undefined && nowMs < run.checkedAtMs + SILENT_MS;
    if (isAlive && nowMs + MAX_TTL_MS <= run.untilMs) return;
    this.#run = { untilMs: nowMs + RUN_MS, checkedAtMs: nowMs };
    this.hasUnitsLeft = false;
    caller.inBackground(this.#work(caller, this.#run));
  }

  async #work({ objects, time }: Holding, run: ReaperRun): Promise<void> {
    const check = this.#cache.watch();
    check(0, time.nowMs());
    const { mostAtOnce = Infinity } = objects;
    let messagesLeft = MAX_ROUNDS * mostAtOnce;
    let isBehind = false;
    while (this.#run === run && run.checkedAtMs < run.untilMs && this.#cache.isHolding) {
      const stepMs = isBehind ? 0 : Math.max(1, Math.min(CHECK_EVERY_MS, this.#cache.shortestMs / 4));
      if (!isBehind) await pause(time, stepMs);
      const readMs = time.nowMs();
      check(stepMs, readMs);
      run.checkedAtMs = this.#cache.now(readMs);
      const rest = byObject(this.#cache.endDue(run.checkedAtMs));
      const first = rest.splice(0, Math.min(mostAtOnce, messagesLeft));
      // If this request dies meanwhile, another finds the rest.
      this.#cache.putBack(rest.flat());
      isBehind = rest.length > 0;
      messagesLeft -= first.length;
      await returnUnits(objects, first.flat());
      if (messagesLeft > 0) continue;
      this.hasUnitsLeft = this.#run === run && this.#cache.isHolding;
      break;
    }
    if (this.#run === run) this.#run = undefined;
  }
}

export async function pause(time: Time, ms: number): Promise<void> {
  await new Promise<void>((done) => {
    if (time.idle === undefined) time.after(ms, done);
    else time.idle(ms, done);
  });
}
