/**
 * Bounds on what callers can make. Past a bound a call is refused, and nothing is touched: neither what the caller has
 * already, nor what others have. docs/guarantees.md has the list, with what each bound protects.
 */

/** The names of the bounds. Objects and clients of different versions send them to each other: never rename one. */
export type Bound = keyof typeof BOUNDS;

/** The object or the client refused a call at a bound. */
export interface Full {
  readonly full: { readonly bound: string; readonly most: number };
}

/** What each bound says to the caller that reaches it: how many there may be, and what makes room. */
const BOUNDS = {
  "key-claims": ["holds and leases of one key", "settle, cancel or release some, or let them expire"],
  "object-claims": [
    "holds and leases in one object",
    "let some end, or give the policy more objects (`objects`)",
  ],
  "caller-claims": ["holds and leases of one caller in one object", "settle, cancel or release some"],
  "pool-holds": ["holds of one key in its pool", "settle or cancel some, or let them expire"],
  "object-waits": ["calls that wait in one object", "wait less, or give the policy more objects (`objects`)"],
  "caller-waits": ["calls of one caller that wait in one object", "make fewer calls that wait"],
  "key-watchers": [
    "calls that wait for one key to be idle (the policy's maxWaiters)",
    "ask again when one of them has ended",
  ],
  "caller-answers": [
    "calls a minute under idempotency keys, of one caller on one key",
    "make fewer, or leave the idempotency key out",
  ],
  "object-answers": [
    "characters of answers under idempotency keys in one object",
    "leave the idempotency key out, or give the policy more objects (`objects`)",
  ],
  "caller-object-answers": [
    "characters of answers under idempotency keys of one caller in one object",
    "leave the idempotency key out, or give the policy more objects (`objects`)",
  ],
  "batch-calls": ["calls of one message", "send the others with the next"],
  "batch-length": ["characters of one message", "send fewer calls in it"],
  "batch-waits": ["calls of one message that may wait", "make the call by itself"],
  debt: [
    "units of one key that can be counted exactly, those that it owes included",
    "take fewer, or wait until time has given some back",
  ],
  "caller-calls": [
    "calls at once of one caller to one object (maxCallsAtOnce of the token or binding)",
    "wait for answers before calling again",
  ],
  "caller-new-keys": [
    "new keys a second of one caller (maxNewKeysPerSecond of the token or binding)",
    "ask again in a second",
  ],
  "object-starts": [
    "calls at once that start an object, all of them in one process",
    "ask again in a second, or let keys share objects (`objects`)",
  ],
  "objects-in-memory": [
    "objects in one process that were called in the last 12 s",
    "ask again later, let keys share objects (`objects`), or let the process open more files",
  ],
} as const satisfies Record<string, readonly [what: string, remedy: string]>;

export function full(bound: Bound, most: number): Full {
  return { full: { bound, most } };
}

/** The sentence for whoever was refused. A newer object may know a bound that is not known here. */
export function boundText({ full: { bound, most } }: Full): string {
  const [what, remedy] = Object.hasOwn(BOUNDS, bound)
    ? BOUNDS[bound as Bound]
    : ([`of what is called ${bound}`, "ask again later"] as const);
  return `there are ${most} ${what} already, the most there may be: ${remedy}`;
}
