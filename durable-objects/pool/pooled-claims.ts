import { randomId } from "../../core/clock.ts";
import type { Answer, Peeked } from "../../core/protocol/answers.ts";
import { costText, costOf, type Cost } from "../../core/protocol/cost.ts";
import type { WantedHold } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import { refundText } from "../operations/limits.ts";
import type { PoolAnswer } from "./protocol.ts";
import type { Asked, PoolSession } from "./session.ts";
import { costsOf } from "./share-units.ts";

/**
 * Calls that the pool itself decides and remembers, so that they can be repeated or ended in any region. With the
 * call the region gives back what it can spare, so the pool decides on everything there is.
 */
export class PooledClaims {
  readonly #session: PoolSession;

  constructor(session: PoolSession) {
    this.#session = session;
  }

  /** Takes a cost once for an idempotency key. A cost of 0 looks and takes nothing. */
  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined): Promise<Answer> {
    const request = idempotencyKey === undefined ? {} : { request: `limit of ${costText(cost)}` };
    return this.#ask(
      keyState,
      { op: "limit", cost: costsOf(keyState, cost), ...request },
      named(idempotencyKey),
    );
  }

  refund(
    keyState: KeyState,
    units: Cost,
    idempotencyKey: string,
    charge: string | undefined,
  ): Promise<Answer> {
    const isNamed = charge !== undefined;
    return this.#ask(
      keyState,
      {
        op: "refund",
        cost: costsOf(keyState, units),
        request: refundText(units, charge),
        ...(isNamed && { isNamed }),
      },
      [...named(charge), ...named(idempotencyKey)],
    );
  }

  async hold(keyState: KeyState, call: WantedHold): Promise<Answer> {
    const { id = randomId(), cost, ttlMs, idempotencyKey, provisional } = call;
    const request = provisional?.request ?? `hold of ${costText(cost)}`;
    const asked = { op: "hold", cost: costsOf(keyState, cost), id, ttlMs } as const;
    const isRepeatable = idempotencyKey !== undefined;
    const names = [...held(id), ...named(idempotencyKey)];
    return await this.#send(
      keyState,
      isRepeatable ? { ...asked, request } : asked,
      names,
      (answer): Answer => {
        const { hold, full } = answer;
        if (full !== undefined) return { full };
        const set = hold && { id: hold.id, units: cost, expiresAfterMs: hold.expiresAfterMs };
        return { ...decidedOf(answer), ...(set && { hold: set }) };
      },
    );
  }

  settle(keyState: KeyState, id: string, used: Cost): Promise<Answer> {
    const units = keyState.ruleStates.map(({ rule }) => {
      const isLeftOut = typeof used === "object" && !Object.hasOwn(used, rule.unit);
      return isLeftOut ? AS_HELD : costOf(rule, used);
    });
    return this.#ask(keyState, { op: "settle", cost: costsOf(keyState, 0), id, used: units }, held(id));
  }

  cancel(keyState: KeyState, id: string): Promise<Answer> {
    return this.#ask(keyState, { op: "settle", cost: costsOf(keyState, 0), id }, held(id));
  }

  /** @param longestWaitMs how long the first caller in this region's queue has waited, in milliseconds */
  peek(keyState: KeyState, longestWaitMs: number): Promise<Peeked> {
    return this.#send(keyState, { op: "peek", cost: costsOf(keyState, 1) }, [], ({ rules = [], report }) => ({
      rules,
      source: "pool",
      ...(report ?? NOTHING),
      longestWaitMs,
    }));
  }

  async reset(keyState: KeyState): Promise<void> {
    await this.#send(keyState, { op: "reset", cost: costsOf(keyState, 0) }, [], () => undefined);
  }

  #ask(keyState: KeyState, asked: Asked, names: readonly string[]): Promise<Answer> {
    return this.#send(keyState, asked, names, answerOf);
  }

  #send<Result>(
    keyState: KeyState,
    asked: Asked,
    names: readonly string[],
    read: (answer: PoolAnswer) => Result,
  ): Promise<Awaited<Result>> {
    const share = this.#session.shareOf(keyState);
    share.denials.forget();
    // A reset always takes the region's message along, which gives back everything that the region can spare.
    const isKnown = share.isHeld || asked.op === "reset";
    const asking = isKnown ? { asking: { isGivingBack: asked.op === "reset" } } : {};
    return this.#session.send(keyState, asked, { names, ...asking }, read);
  }
}

/** In `used` of a `settle` call: as many units as were held. */
const AS_HELD = -1;
const NOTHING = { outstanding: 0, holds: 0, leases: 0, reclaimed: 0, queueLength: 0 };

/**
 * Names of answers. The prefixes keep the two kinds apart, since a caller may choose another hold's id as its
 * idempotency key. They are stored: for ever.
 */
function named(idempotencyKey: string | undefined): string[] {
  return idempotencyKey === undefined ? [] : [`call:${idempotencyKey}`];
}

function held(id: string): string[] {
  return [`hold:${id}`];
}

function answerOf(answer: PoolAnswer): Answer {
  if (answer.missing === true) return { missing: true };
  if (answer.conflict !== undefined) return { conflict: answer.conflict };
  return decidedOf(answer);
}

function decidedOf({ rules = [], conflict }: PoolAnswer): Answer {
  return conflict === undefined ? { rules, source: "pool" } : { conflict };
}
