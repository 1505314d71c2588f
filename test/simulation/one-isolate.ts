/** One isolate and some objects in virtual time: the messages and rows of its calls, without delays. */
import { ReservationCache } from "../../client/reservation-cache.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { GiveBackMessage } from "../../core/protocol/calls.ts";
import type { Reservation } from "../../core/reservations/reservation.ts";
import { Database } from "./database.ts";
import { SimulatedObject } from "./simulated-object.ts";

const OBJECTS = 16;
/** The interval of an isolate's checks for units to return, in milliseconds. */
const LOOK_MS = 200;

export interface Counts {
  readonly calls: number;
  readonly messages: number;
  readonly rows: number;
}

export class OneIsolate {
  readonly #policies: Policies;
  readonly #cache = new ReservationCache(() => "isolate");
  readonly #databases = Array.from({ length: OBJECTS }, () => new Database());
  readonly #objects: readonly SimulatedObject[];
  #nowMs = 1_000_000;
  #lookedAtMs = this.#nowMs;
  #calls = 0;
  #messages = 0;

  /** @param fields of the policy `p`, whose keys share 16 objects */
  constructor(fields: object) {
    this.#policies = parsePolicies({ p: { ...fields, objects: OBJECTS } });
    this.#objects = this.#databases.map(
      (database) => new SimulatedObject(database, this.#policies, () => Math.floor(this.#nowMs)),
    );
  }

  get counts(): Counts {
    const rows = this.#databases.reduce((sum, { rowsWritten }) => sum + rowsWritten, 0);
    return { calls: this.#calls, messages: this.#messages, rows };
  }

  /** Time passes, and units whose lifetime is over are returned. */
  wait(ms: number): void {
    this.#nowMs += ms;
    if (this.#nowMs < this.#lookedAtMs + LOOK_MS) return;
    this.#lookedAtMs = this.#nowMs;
    const byObject = new Map<SimulatedObject, GiveBackMessage[]>();
    for (const { returned } of this.#cache.endDue(Math.floor(this.#nowMs))) {
      const object = this.#objectOf(Number(returned.key));
      byObject.set(object, [...(byObject.get(object) ?? []), returned]);
    }
    for (const [object, returned] of byObject) {
      this.#messages += 1;
      object.giveBack("p", returned);
    }
  }

  limit(key: number): void {
    const nowMs = Math.floor(this.#nowMs);
    this.#calls += 1;
    const reservation = this.#cache.open(this.#policies.get("p") as Policy, String(key), nowMs);
    reservation.note(1, nowMs);
    if (reservation.spend(1, nowMs)) {
      if (reservation.needsRefill(nowMs)) this.#reserve(reservation, key, 0);
    } else if (reservation.deny(1, nowMs, true) === undefined) {
      if (reservation.isWorthUnits) this.#reserve(reservation, key, 1);
      else this.#ask(reservation, key);
    }
  }

  #ask(reservation: Reservation, key: number): void {
    this.#messages += 1;
    const decided = JSON.parse(this.#objectOf(key).limit("p", String(key), 1)) as Decided;
    reservation.learn(1, decided, Math.floor(this.#nowMs));
  }

  #reserve(reservation: Reservation, key: number, cost: number): void {
    const nowMs = Math.floor(this.#nowMs);
    this.#messages += 1;
    const message = reservation.ask(cost, nowMs);
    this.#cache.hold(reservation);
    reservation.answered(message, JSON.parse(this.#objectOf(key).reserve(message.call)) as Decided, nowMs);
  }

  #objectOf(key: number): SimulatedObject {
    return this.#objects[key % OBJECTS] as SimulatedObject;
  }
}
