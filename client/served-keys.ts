/**
 * Keys of which an isolate decides its clients' calls, by the units and buckets that it holds itself: they have so many clients
 * that parts of their own would be too small (durable-objects/keys/leaving.ts). What an isolate says of its calls is
 * measured, so clients get no more by this than by their calls. Not in LocalLimiter, which is in the bundle of clients.
 */
import type { LocationHint, PolicyView } from "../core/policies/policy.ts";
import type { Decided, Reserved, Slots } from "../core/protocol/answers.ts";
import type { ReserveCall } from "../core/protocol/calls.ts";
import type { BatchedCall, MadeAnswer } from "../core/protocol/messages.ts";
import { Problem } from "../core/protocol/problems.ts";
import type { Holding } from "./call-gate.ts";
import type { ReservationCache, Returning } from "./reservation-cache.ts";

/** While a message asks whether a key's clients are still served, they are. */
const ASK_MS = 1_000;
/** The most keys, and the most clients: those of others ask again. */
const MAX_SERVED = 4_096;
/** A client may say anything: with each message it counts as so many calls more at most, which it could also make. */
const MAX_DENIED = 7;

/** A client's call for a decision, or for units. */
export type ClientsCall = Pick<BatchedCall, "limit" | "reserve">;

type Made = { readonly answer: MadeAnswer | Slots } | Problem | undefined;

export class ServedKeys {
  readonly #cache: ReservationCache;
  /** Those that were heard of last are at the end. */
  readonly #untilMs = new Map<string, number>();
  /** By client, when its last call was denied. */
  readonly #deniedAtMs = new Map<string, number>();

  constructor(cache: ReservationCache) {
    this.#cache = cache;
  }

  /** Makes a client's call, which says who its isolate is, and hears who decides the next ones. */
  async ask(
    caller: Returning & Pick<Holding, "region" | "time">,
    policy: PolicyView,
    key: string,
    { limit, reserve }: ClientsCall,
    forward: (said: ClientsCall) => Promise<Made>,
  ): Promise<Made> {
    const { time } = caller;
    const near = caller.region?.();
    const nowMs = time.nowMs();
    // The isolate's own calls may have named another plan: what it holds goes back before the client's call.
    const reservation = this.#cache.open(policy, key, nowMs, caller);
    const mayAskRegion = reservation.region === undefined && reservation.mayBeRegional(near, nowMs);
    const says = { servedBy: reservation.holder, ...(mayAskRegion && { mayAskRegion, near }) };
    const made = await forward({
      ...(limit && { limit: { ...limit, ...says } }),
      ...(reserve && { reserve: { ...reserve, ...says } }),
    });
    if (made === undefined || made instanceof Problem || made.answer === null) return made;
    if (!("reserved" in made.answer) || made.answer.reserved === undefined) return made;
    const { reserved, ...decided } = made.answer;
    const { servedMs, asksRegion, ...own } = reserved;
    this.#note(policy, key, { servedMs, asksRegion }, near, time.nowMs());
    return { answer: reserve === undefined ? decided : { ...decided, reserved: own } };
  }

  #note(
    policy: PolicyView,
    key: string,
    { servedMs, asksRegion }: Pick<Reserved, "servedMs" | "asksRegion">,
    near: LocationHint | undefined,
    nowMs: number,
  ): void {
    const place = placeOf(policy, key);
    this.#untilMs.delete(place);
    if (servedMs === undefined) return;
    this.#untilMs.set(place, nowMs + servedMs);
    for (const oldest of this.#untilMs.keys()) {
      if (this.#untilMs.size <= MAX_SERVED) break;
      this.#untilMs.delete(oldest);
    }
    if (asksRegion === true) this.#cache.move(this.#cache.open(policy, key, nowMs), near);
  }

  /**
   * Whether a client's call is decided here. After the time one of them asks the object again.
   * @param said by its message for units, if it is one
   */
  has(policy: PolicyView, key: string, nowMs: number, said?: Pick<ReserveCall, "holder" | "rules">): boolean {
    const place = placeOf(policy, key);
    const untilMs = this.#untilMs.get(place);
    if (untilMs === undefined) return false;
    if (nowMs >= untilMs) {
      this.#untilMs.set(place, nowMs + ASK_MS);
      return false;
    }
    if (said !== undefined) this.#noteDenied(policy, key, said, nowMs);
    return true;
  }

  /** What this isolate knows of a key, for a client's message that only asks for units. */
  quota(policy: PolicyView, key: string, nowMs: number): Decided {
    return this.#cache.open(policy, key, nowMs).admitted(nowMs);
  }

  /** A client's call was denied here: until its next message it denies others by itself. */
  denied(holder: string, nowMs: number): void {
    this.#deniedAtMs.set(holder, nowMs);
    const [oldest = ""] = this.#deniedAtMs.keys();
    if (this.#deniedAtMs.size > MAX_SERVED) this.#deniedAtMs.delete(oldest);
  }

  /** Notes the calls that a client has denied by itself since its last one was denied. Those that are never sent need units as well. */
  #noteDenied(
    policy: PolicyView,
    key: string,
    { holder, rules }: Pick<ReserveCall, "holder" | "rules">,
    nowMs: number,
  ): void {
    const sinceMs = this.#deniedAtMs.get(holder) ?? nowMs;
    this.#deniedAtMs.delete(holder);
    const perSecond = Math.max(0, ...Object.values(rules).map(({ demand = 0 }) => demand));
    const calls = Math.min(MAX_DENIED, Math.round((perSecond * (nowMs - sinceMs)) / 1_000) - 1);
    const reservation = this.#cache.open(policy, key, nowMs);
    for (let call = 0; call < calls; call += 1) reservation.note(1, nowMs);
  }
}

function placeOf({ name }: PolicyView, key: string): string {
  return `${name}/${key}`;
}
