/** A problem of RFC 9457, as a value: HTTP sends it as a response, RPC throws it as an error. */
export class Problem {
  readonly status: number;
  /** The last part of `type`. Clients compare it: never rename one. */
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly errors: readonly FieldError[];
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    [status, code, title]: ProblemKind,
    detail: string,
    {
      errors = [],
      headers = {},
    }: { errors?: readonly FieldError[]; headers?: Readonly<Record<string, string>> } = {},
  ) {
    this.status = status;
    this.code = code;
    this.title = title;
    this.detail = detail;
    this.errors = errors;
    this.headers = headers;
  }

  toError(): LimiterError {
    return new LimiterError(this);
  }
}

export type Answered<Answer> = Promise<Answer | Problem>;

export function orThrow<Answer>(answer: Answer | Problem): Answer {
  if (answer instanceof Problem) throw answer.toError();
  return answer;
}

/** A JSON pointer into the input, and a sentence with the field, the value and the allowed values. */
export interface FieldError {
  readonly pointer: string;
  readonly detail: string;
}

/** Thrown by the service binding for bad input, or a call such as refund that cannot be done. */
export class LimiterError extends Error {
  override readonly name = "LimiterError";
  readonly status: number;
  readonly code: string;
  readonly errors: readonly FieldError[];

  constructor(
    { status, code, title, detail, errors }: Pick<Problem, "status" | "code" | "title" | "detail" | "errors">,
    message = `${title}: ${errors.length === 0 ? detail : errors.map((error) => error.detail).join("; ")}`,
  ) {
    super(message);
    this.status = status;
    this.code = code;
    this.errors = errors;
  }
}

/**
 * The second argument of a client's call over the service binding: a problem is then a value, as HTTP sends it. Of an
 * error only the text arrives where the binding leads from one `wrangler dev` to another. Earlier versions throw it.
 */
export const AS_VALUE = "problem";

export type ProblemKind = readonly [status: number, code: string, title: string];

/** Those that a client makes by itself too. */
export const PROBLEMS = {
  policyNotFound: [404, "policy-not-found", "There is no such policy"],
  leaseNotFound: [404, "lease-not-found", "There is no such lease, or no longer"],
  holdNotFound: [404, "hold-not-found", "There is no such hold, or no longer"],
  chargeNotFound: [404, "charge-not-found", "There is no such charge, or no longer"],
  notAllowed: [422, "not-allowed", "The request was understood, but a value is not allowed"],
  unavailable: [503, "unavailable", "An object did not answer"],
  catalogUnreached: [503, "catalog-unreached", "The catalog did not answer"],
} as const satisfies Record<string, ProblemKind>;

/** Those that only the limiter makes: a client reads their words, so that its bundle has none of them. */
export const LIMITER_PROBLEMS = {
  malformed: [400, "malformed", "The request could not be read"],
  unauthorized: [401, "unauthorized", "A valid token is needed"],
  forbidden: [403, "forbidden", "The token or binding does not allow this"],
  noRoute: [404, "not-found", "There is nothing at this address"],
  notInCatalog: [404, "not-in-catalog", "There is no such policy, override or token"],
  methodNotAllowed: [405, "method-not-allowed", "This address does not take that method"],
  idempotencyConflict: [409, "idempotency-key-reused", "The idempotency key was used for another request"],
  tokenExists: [409, "token-exists", "A token has this name already"],
  preconditionFailed: [412, "precondition-failed", "It is not what the caller believes it to be"],
  tooLarge: [413, "body-too-large", "The body is too large"],
  upgradeRequired: [426, "upgrade-required", "This address is for WebSockets"],
  unsupportedMediaType: [415, "unsupported-media-type", "The body must be JSON"],
  bound: [429, "bound-reached", "There are as many as there may be"],
  internal: [500, "internal", "The limiter failed"],
  notConfigured: [503, "not-configured", "The limiter is not configured"],
} as const satisfies Record<string, ProblemKind>;

/** @param what the token or policy that the deployment does not have, and the catalog may have */
export function catalogUnreached(what: string): Problem {
  const detail = `the deployment does not have ${what}, and its catalog has not answered yet: call again`;
  return new Problem(PROBLEMS.catalogUnreached, detail);
}

/** Bounds. Objects and clients of different versions exchange the names: never rename one. */
type Bound = keyof typeof BOUNDS;

/** The object or client refused a call at a bound (docs/guarantees.md), and changed nothing. */
export interface Full {
  readonly full: { readonly bound: string; readonly most: number };
}

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

/** The sentence for the caller. An object of a newer version may name an unknown bound. */
export function boundText({ full: { bound, most } }: Full): string {
  const [what, remedy] = Object.hasOwn(BOUNDS, bound)
    ? BOUNDS[bound as Bound]
    : ([`of what is called ${bound}`, "ask again later"] as const);
  return `there are ${most} ${what} already, the most there may be: ${remedy}`;
}

/* The close codes of sockets, from RFC 6455 and its range for private use. */

/** "Normal closure" and "internal error": RFC 6455, section 7.4.1. */
export const CLOSE_NORMAL = 1000;
export const CLOSE_FAILED = 1011;
/** The holder's connection broke. Sent only by a worker that relays a socket. */
export const CLOSE_BROKEN = 4400;
export const CLOSE_LOST = 4408;
/** Another socket took over its lease. */
export const CLOSE_RESUMED = 4409;
/** Its holder sent no `ping` in time. */
export const CLOSE_SILENT = 4410;
export const CLOSE_DENIED = 4429;
