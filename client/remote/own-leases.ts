/** The calls on leases that a client answers itself: only plain ones, since the limiter says what is wrong with the others. */
import { normaliseKey } from "../../core/catalog/keys.ts";
import type { Time } from "../../core/clock.ts";
import { costOf } from "../../core/policies/policy.ts";
import { OUTCOMES } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { readClaimId } from "../../core/protocol/names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { SENT_BEFORE, sentNow } from "../../core/reservations/said-figures.ts";
import type { AcquireRequest } from "../limiter.ts";
import { plainCall } from "../local-limiter.ts";
import { isOf } from "./described-policies.ts";
import { ProcessSlots } from "./process-slots.ts";
import type { RemoteReservations } from "./remote-reservations.ts";

interface OnLease {
  readonly id?: unknown;
  readonly ttlMs?: number;
  readonly outcome?: unknown;
  readonly durationMs?: unknown;
}

/** How often one is asked for that has no slots: it has changed since, or an isolate of an older version described it. */
const ASK_AGAIN_MS = 60_000;
/** While versions of the limiter answer in turn, the one that answers next may read slots. */
const MAX_SENDS = 4;

export class OwnLeases {
  readonly #reservations: RemoteReservations;
  readonly #slots: ProcessSlots;

  constructor(reservations: RemoteReservations, time: Time, inBackground: (work: Promise<unknown>) => void) {
    this.#reservations = reservations;
    const send: RemoteReservations["slots"] = async (policy, message) => {
      let answer = await reservations.slots(policy, message);
      for (let sends = 1; sends < MAX_SENDS && answer instanceof Problem && answer.status === 422; sends += 1)
        answer = await reservations.slots(policy, message);
      return answer;
    };
    this.#slots = new ProcessSlots({ time, inBackground, send });
  }

  /** Whether slots may have to be given back. */
  get isHolding(): boolean {
    return this.#slots.isHolding;
  }

  /** Gives back all slots that are not leased. @param isClosing all leases are lost, and their slots go back too */
  giveBack(isClosing: boolean): Promise<void> {
    return this.#slots.giveBack(isClosing);
  }

  /**
   * Grants a lease from a slot that is held here, or asks the limiter. What that denies may be granted with the slots that
   * are free here: by this client, or by the limiter once it has them.
   */
  async decide(request: AcquireRequest, ask: () => Promise<Decision>): Promise<Decision> {
    const own = this.#acquire(request);
    if (own !== undefined) return this.#reservations.noted(own);
    const { idempotencyKey, waitMs, units = 1 } = request;
    const asked = async () => {
      const sent = sentNow();
      const decision = await ask();
      // An isolate may not have heard what the object has given to this process since.
      const isNew = idempotencyKey === undefined && decision.source === "object";
      this.#slots.heard(decision, isNew ? sent : SENT_BEFORE);
      return decision;
    };
    const decision = await asked();
    const mayTryAgain = idempotencyKey === undefined && !waitMs && typeof units === "number";
    if (decision.success || !mayTryAgain) return decision;
    const second = this.#acquire(request);
    if (second !== undefined) return this.#reservations.noted(second);
    const { policy, key, remaining = 0 } = decision;
    return (await this.#slots.giveIdle(policy, key, units, remaining)) ? await asked() : decision;
  }

  #acquire({ ttlMs, waitMs, ...request }: AcquireRequest): Decision | undefined {
    const call = waitMs ? undefined : plainCall(request, undefined, "units");
    if (call === undefined || this.#reservations.isRefused) return undefined;
    const described = this.#reservations.policy(call.policy);
    const [rule] = described?.rules ?? [];
    if (described === undefined || rule === undefined) return undefined;
    if (described.slots === undefined) this.#reservations.ask(call, ASK_AGAIN_MS);
    if (call.plan || call.priority || call.group) return undefined;
    const its = isOf(described, call) ? normaliseKey(described, call.key) : undefined;
    return its === undefined
      ? undefined
      : this.#slots.acquire(described, its, costOf(rule, call.cost), ttlMs);
  }

  /** Ends or renews a lease that was granted here; `undefined`: the limiter makes the call. */
  onOwn(name: string, call: OnLease): { readonly answer: object | undefined } | undefined {
    const { id, ttlMs, outcome, durationMs, ...more } = call;
    const isPlain = Object.values({ ...more, durationMs }).every((value) => value === undefined);
    const place = isPlain && typeof id === "string" ? readClaimId("lease", id) : undefined;
    if (place === undefined) return undefined;
    const { policy, key, secret } = place;
    if (name === "renew" && outcome === undefined) {
      const lease = this.#slots.renew(policy, key, secret, ttlMs);
      return lease && { answer: { id, ...lease } };
    }
    const isKnown = outcome === undefined || (OUTCOMES as readonly unknown[]).includes(outcome);
    if (name !== "release" || ttlMs !== undefined || !isKnown) return undefined;
    return this.#slots.release(policy, key, secret) ? { answer: undefined } : undefined;
  }
}
