/** Isolates in front of a region's object, and the callers of both. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { Objects, type LimiterNamespace, type LimiterStub } from "../../client/transports/objects.ts";
import type { Time } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { RefundCall } from "../../core/protocol/calls.ts";
import type { Fate } from "./network.ts";
import type { Asked } from "./pools-region.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** An isolate, its clock, and whether it has been killed. */
export interface Running {
  readonly isolate: LocalLimiter;
  readonly cache: ReservationCache;
  readonly clock: { ms: number };
  isKilled: boolean;
}

export function startIsolate(id: string, clockMs: number): Running {
  const cache = new ReservationCache(() => id);
  return { cache, isolate: new LocalLimiter(cache), clock: { ms: clockMs }, isKilled: false };
}

export interface Wire {
  readonly time: VirtualTime;
  readonly fateOf: () => Fate;
  readonly handle: (asked: Asked) => Promise<unknown>;
}

/** The object as a request in an isolate reaches it. */
export function objectsOf({ time, fateOf, handle }: Wire, isGone: () => boolean, timers: Time): Objects {
  const send = (asked: Asked): Promise<unknown> =>
    new Promise((resolve, reject) => {
      const { thereMs, backMs, againMs } = fateOf();
      if (isGone() || thereMs === undefined) return;
      const back = (answer: () => void) => {
        if (backMs === undefined) return;
        time.at(time.nowMs + backMs, () => {
          if (!isGone()) answer();
        });
      };
      time.at(time.nowMs + thereMs, () => {
        handle(asked).then(
          (answer) => back(() => resolve(answer)),
          (error: Error) => back(() => reject(error)),
        );
        if (againMs !== undefined)
          time.at(time.nowMs + againMs, () => void handle(asked).catch(() => undefined));
      });
    });
  return new Objects(namespaceOf(send), timers);
}

function namespaceOf(send: (asked: Asked) => Promise<unknown>): LimiterNamespace {
  const stub: Partial<Record<keyof LimiterStub, unknown>> = {
    limit: (_: string, __: string, cost: number, idempotencyKey?: string) =>
      send({ method: "limit", cost, ...(idempotencyKey !== undefined && { idempotencyKey }) }),
    reserve: (call: Extract<Asked, { method: "reserve" }>["call"]) => send({ method: "reserve", call }),
    giveBack: (_: string, returned: Extract<Asked, { method: "giveBack" }>["returned"]) =>
      send({ method: "giveBack", returned }),
    hold: (call: Extract<Asked, { method: "hold" }>["call"]) => send({ method: "hold", call }),
    settle: (_: string, __: string, id: string, used: number) => send({ method: "settle", id, used }),
    cancel: (_: string, __: string, id: string) => send({ method: "cancel", id }),
    refund: (_: string, __: string, units: number, idempotencyKey: string) =>
      send({ method: "refund", units, idempotencyKey }),
    refundCharge: ({ units, idempotencyKey, charge }: RefundCall) =>
      send({ method: "refund", units, idempotencyKey, charge }),
    acquire: (call: Extract<Asked, { method: "acquire" }>["call"]) => send({ method: "acquire", call }),
    renew: (_: string, __: string, id: string, ttlMs: number) => send({ method: "renew", id, ttlMs }),
    release: (_: string, __: string, id: string) => send({ method: "release", id }),
    reset: () => send({ method: "reset" }),
  };
  return { getByName: () => stub as unknown as LimiterStub };
}

/** The idempotency key of a charge that is to be made once. */
export function onceName({ name }: Policy, number: number): string {
  return `once ${number} of ${name}`;
}

/** One of six refunds. Half of them name a charge. */
export function refund(
  object: LimiterStub,
  policy: string,
  key: string,
  number: number,
  charge: string,
): Promise<string> {
  const [units, idempotencyKey] = [2, `refund ${number}`];
  if (number > 3 || number === 0) return object.refund(policy, key, units, idempotencyKey);
  return object.refundCharge({ policy, key, units, idempotencyKey, charge });
}
