import type { Time } from "../core/clock.ts";
import type { CallGate } from "./call-gate.ts";
import type { Objects } from "./transports/objects.ts";

/** What each request brings with it. */
export interface Caller {
  readonly objects: Objects;
  readonly time: Time;
  /** Who calls, as JSON text that is the caller's alone; absent: the calls are nobody's in particular. */
  readonly callerId?: string;
  /** Present when the calls of this caller are bounded. */
  readonly gate?: CallGate;
  /** The runtime's `waitUntil`: the work goes on after the request has been answered. */
  readonly inBackground: (work: Promise<unknown>) => void;
}
