import type { FarSide, LimiterService } from "./far-side.ts";

/** The limiter over a service binding. A lease does not end with the request that acquired it, as over HTTP. */
export function overService(service: LimiterService): FarSide {
  return {
    limit: (asked) => service.limit(asked),
    limitAll: (asked) => service.limitAll(asked),
    refund: (asked) => service.refund(asked),
    hold: (asked) => service.hold(asked),
    settle: (asked) => service.settle(asked),
    cancel: (asked) => service.cancel(asked),
    acquire: (asked) => service.acquire({ ...asked, detached: true }),
    renew: (asked) => service.renew(asked),
    release: (asked) => service.release(asked),
    peek: (asked) => service.peek(asked),
    reset: (asked) => service.reset(asked),
    policies: () => service.policies(),
    reserve: (asked) => service.reserve(asked),
  };
}
