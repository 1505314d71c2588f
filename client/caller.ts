import type { Time } from "../core/clock.ts";
import type { PolicyView, Policy } from "../core/policies/policy.ts";
import type { BatchedCall, MadeAnswer } from "../core/protocol/messages.ts";
import type { Problem } from "../core/protocol/problems.ts";
import type { CallGate } from "./call-gate.ts";
import type { Objects } from "./transports/objects.ts";

/** Where units come from: the objects themselves, or a limiter that asks them. */
export interface UnitSource {
  /** Makes a call; `undefined`: there is no answer. A limiter that is elsewhere may refuse the call. */
  call<Read extends MadeAnswer>(
    policy: PolicyView,
    key: string,
    call: BatchedCall,
    waitMs?: number,
  ): Promise<{ readonly answer: Read } | Problem | undefined>;
  /** So many messages that give units back go at once at most. Absent: all of them. */
  readonly mostAtOnce?: number;
}

/** What each request brings with it to decide from units that are held. */
export interface Holding {
  readonly objects: UnitSource;
  readonly time: Time;
  /** Present when the calls of this caller are bounded. */
  readonly gate?: CallGate;
  /** The runtime's `waitUntil`: the work goes on after the request has been answered. */
  readonly inBackground: (work: Promise<unknown>) => void;
}

/**
 * Tells of the policy of a key whenever a later version of it is in force, until the returned function is called: who
 * waits at an object is the last to hear of it, if nobody else calls.
 */
export type Follow = (policy: Policy, key: string, tell: (now: Policy) => void) => () => void;

/** What each request brings with it. */
export interface Caller extends Holding {
  readonly objects: Objects;
  /** Present where policies change at run time. */
  readonly follow?: Follow;
  /** Who calls, as JSON text that is the caller's alone; absent: the calls are nobody's in particular. */
  readonly callerId?: string;
  /** The calls end something by an id that proves nothing: they have no more room than calls on a new key. */
  readonly isDoubted?: boolean;
}
