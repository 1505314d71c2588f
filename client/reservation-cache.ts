import type { Policy } from "../core/policies/policy.ts";
import type { Returned } from "../core/protocol/messages.ts";
import { Reservation } from "../core/reservations/reservation.ts";
import type { Ending } from "./transports/objects.ts";

/** Keys that are remembered, about 1 KiB each beside their names: an isolate has 128 MB for everything. */
const MOST_KEYS = 16_384;
/** UTF-16 units of their names, of which the longest key has 512. */
const MOST_NAME_LENGTH = 2 ** 21;

/** An isolate's reservations and denials by policy and key. The least recently used goes first. */
export class ReservationCache {
  readonly #makeId: () => string;
  /** In order of their last use. */
  readonly #reservations = new Map<string, Reservation>();
  /** Those that may have units to give back. */
  readonly #held = new Set<Reservation>();
  #ended: Ending[] = [];
  #nameLength = 0;
  #shortestMs = Infinity;
  #lastMs = -Infinity;
  #count = 0;
  #holder = "";

  /**
   * @param makeId makes an id that nobody can guess; called when the first key comes, since start-up has no
   * randomness
   */
  constructor(makeId: () => string) {
    this.#makeId = makeId;
  }

  get size(): number {
    return this.#reservations.size;
  }

  /** The reservation of a key, a new one if need be. */
  open(policy: Policy, key: string, nowMs: number): Reservation {
    if (nowMs < this.#lastMs) this.endAll();
    this.#lastMs = nowMs;
    const name = nameOf(policy, key);
    const known = this.#reservations.get(name);
    if (known !== undefined) this.#reservations.delete(name);
    const reservation = known ?? this.#make(policy, key, name, nowMs);
    this.#reservations.set(name, reservation);
    return reservation;
  }

  find(policy: Policy, key: string): Reservation | undefined {
    return this.#reservations.get(nameOf(policy, key));
  }

  /** The reservation has asked for units, so it may have some. */
  hold(reservation: Reservation): void {
    this.#held.add(reservation);
    this.#shortestMs = Math.min(this.#shortestMs, reservation.policy.reservation.leastMs);
  }

  /** The shortest lifetime that a reservation ever had here. */
  get shortestMs(): number {
    return this.#shortestMs;
  }

  /** Ends a reservation; `undefined`: there is nothing to settle. */
  end(reservation: Reservation): Returned | undefined {
    this.#held.delete(reservation);
    return reservation.giveBack();
  }

  /** Ends those whose lifetime is over, and returns them with all that have ended since the last time. */
  endDue(nowMs: number): readonly Ending[] {
    for (const reservation of this.#held) {
      // One that waits for its first answer has no end yet.
      const isWaiting = reservation.messageAt(nowMs) !== undefined;
      if (!isWaiting && (reservation.endsAtMs ?? 0) <= nowMs) this.#end(reservation);
    }
    const ended = this.#ended;
    this.#ended = [];
    return ended;
  }

  /** Whether there is anything that will have to be given back. */
  get isHolding(): boolean {
    return this.#held.size + this.#ended.length > 0;
  }

  #make(policy: Policy, key: string, name: string, nowMs: number): Reservation {
    for (const [oldest, reservation] of this.#reservations) {
      if (this.#reservations.size < MOST_KEYS && this.#nameLength + name.length <= MOST_NAME_LENGTH) break;
      this.#end(reservation);
      this.#reservations.delete(oldest);
      this.#nameLength -= oldest.length;
    }
    this.#nameLength += name.length;
    if (this.#holder === "") this.#holder = this.#makeId();
    this.#count += 1;
    return new Reservation(policy, key, `${this.#holder}.${this.#count}`, nowMs);
  }

  /** For a clock that was put back: lifetimes would be longer than the object reckons with. */
  endAll(): void {
    for (const reservation of this.#held) this.#end(reservation);
    this.#reservations.clear();
    this.#nameLength = 0;
  }

  #end(reservation: Reservation): void {
    const returned = this.end(reservation);
    if (returned !== undefined) this.#ended.push({ policy: reservation.policy, returned });
  }
}

/** A policy's name has no slash. */
function nameOf({ name }: Policy, key: string): string {
  return `${name}/${key}`;
}
