/** What the middleware of one request has been told, and what the headers of its answer say of that. */
import {
  type Decision,
  retryAfter,
  setPolicyHeaders,
  setQuotaHeaders,
  type Target,
} from "../core/protocol/decision.ts";
import { longestWaitMs } from "../core/protocol/denied-body.ts";
import type { Outcome } from "./decide.ts";
import { type HeaderPolicies, UNKNOWN_POLICY } from "./header-policies.ts";

/** The decisions on a request, by the names of their policies. */
export type Decisions = Readonly<Record<string, Decision>>;

/** Where a request has its limits. A `WeakMap` costs a tenth of an empty route: each collection has to go through it. */
const LIMITS = Symbol("limits");

/** Whatever stands for a request. */
interface Noted {
  [LIMITS]?: RequestLimits;
}

/** What is known of one request. It may pass through several limits. */
export class RequestLimits {
  readonly #decisions: Record<string, Decision> = {};
  #binding: Decision | undefined;
  #policies: HeaderPolicies = new Map();
  #waitMs: number | null = null;

  /** Of this request, whatever stands for it. */
  static of(request: object): RequestLimits {
    return ((request as Noted)[LIMITS] ??= new RequestLimits());
  }

  get decisions(): Decisions {
    return this.#decisions;
  }

  /** Whether nothing has been decided yet. */
  get isFirst(): boolean {
    return this.#binding === undefined;
  }

  /** Notes what was decided. A denial binds, and else the decision with the fewest units left. */
  note({ success, decisions }: Outcome, policies: HeaderPolicies): void {
    for (const decision of decisions) this.#decisions[decision.policy] = decision;
    const denied = decisions.filter((each) => !each.success);
    const said = success ? decisions : denied;
    const least = said.reduce<Decision | undefined>(
      (found, each) => (found !== undefined && left(found) <= left(each) ? found : each),
      success ? this.#binding : undefined,
    );
    if (least === undefined || least === this.#binding) return;
    this.#binding = least;
    this.#policies = policies;
    this.#waitMs = success ? null : longestWaitMs(denied);
  }

  /** Sets the headers of the decision that binds. @param nowMs reads the clock */
  setHeaders(headers: Target, nowMs: () => number): void {
    if (this.#binding === undefined) return;
    const policy = this.#policies.get(this.#binding.policy) ?? UNKNOWN_POLICY;
    if (policy.rules.length > 0) setPolicyHeaders(headers, policy);
    setQuotaHeaders(headers, policy, this.#binding, nowMs);
    for (const [name, value] of Object.entries(retryAfter(this.#waitMs))) headers.set(name, value);
  }
}

/** The decisions that middleware has made on this request, by the names of their policies. */
export function decisionsOf(request: object): Decisions {
  return RequestLimits.of(request).decisions;
}

/** A degraded decision has no figures: it says nothing of what is left. */
function left({ remaining = Infinity }: Decision): number {
  return remaining;
}
