import type { Decision } from "../../core/protocol/decision.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import type { FarSide, LimiterCalls } from "./far-side.ts";

/**
 * The limiter over a service binding. A lease does not end with the request that acquired it, as over HTTP, unless it is
 * asked for with a grace, or resumed.
 */
export function overService(service: LimiterCalls): FarSide {
  return {
    limit: (asked) => service.limit(asked),
    limitAll: (asked) => service.limitAll(asked),
    refund: (asked) => service.refund(asked),
    hold: (asked) => service.hold(asked),
    settle: (asked) => service.settle(asked),
    cancel: (asked) => service.cancel(asked),
    acquire: async (asked) =>
      asked.graceMs === undefined && asked.resume === undefined
        ? await service.acquire({ ...asked, detached: true })
        : withoutLink(await service.acquire(asked)),
    renew: (asked) => service.renew(asked),
    release: (asked) => service.release(asked),
    peek: (asked) => service.peek(asked),
    reset: (asked) => service.reset(asked),
    policies: () => service.policies(),
    reserve: (asked) => service.reserve(asked),
  };
}

/**
 * A grant as a plain decision. The runtime ends the link when nothing refers to the grant any more, so the decision keeps
 * it, where neither a copy nor JSON has it.
 */
function withoutLink(grant: Decision): Decision {
  const { slot: _, renew: _renew, release: _release, ...decision } = grant as Decision & Partial<Attached>;
  return Object.defineProperty(decision, "link", { value: grant });
}
