import type { Decision } from "../../core/protocol/decision.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import type { FarSide, LimiterCalls } from "./far-side.ts";
import { shaped } from "./shapes.ts";

/**
 * The limiter over a service binding. A lease does not end with the request that acquired it, as over HTTP, unless it is
 * asked for with a grace, or resumed.
 */
export function overService(service: LimiterCalls): FarSide {
  return {
    limit: async (asked) => shaped("decision", await service.limit(asked)),
    limitAll: async (asked) => shaped("decisions", await service.limitAll(asked)),
    refund: async (asked) => shaped("decision", await service.refund(asked)),
    hold: async (asked) => shaped("decision", await service.hold(asked)),
    settle: async (asked) => shaped("decision", await service.settle(asked)),
    cancel: (asked) => service.cancel(asked),
    acquire: async (asked) =>
      asked.graceMs === undefined && asked.resume === undefined
        ? shaped("decision", await service.acquire({ ...asked, detached: true }))
        : withoutLink(shaped("decision", await service.acquire(asked))),
    renew: async (asked) => shaped("lease", await service.renew(asked)),
    release: (asked) => service.release(asked),
    peek: async (asked) => shaped("decision", await service.peek(asked)),
    reset: (asked) => service.reset(asked),
    policies: async () => shaped("policies", await service.policies()),
    reserve: async (asked) => shaped("reservations", await service.reserve(asked)),
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
