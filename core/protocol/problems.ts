/** What went wrong: a problem of RFC 9457, as a value. HTTP makes a response of it, and RPC throws it as an error. */
export class Problem {
  readonly status: number;
  /** The last part of `type`. Clients compare it: never rename one. */
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly errors: readonly FieldError[];
  readonly headers: Readonly<Record<string, string>>;

  constructor(
    [status, code, title]: Kind,
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

  /** The problem as an error for a caller over RPC, with the same properties as over HTTP. */
  toError(): LimiterError {
    return new LimiterError(this);
  }
}

/** One field at fault: a JSON pointer into the input; a sentence with the field, the value and what is allowed. */
export interface FieldError {
  readonly pointer: string;
  readonly detail: string;
}

/** What a call over the service binding throws: on bad input, or when a call such as refund cannot be done. */
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

type Kind = readonly [status: number, code: string, title: string];

/** Every kind of problem there is: status, code and title. */
export const PROBLEMS = {
  malformed: [400, "malformed", "The request could not be read"],
  unauthorized: [401, "unauthorized", "A valid token is needed"],
  forbidden: [403, "forbidden", "The token does not allow this"],
  noRoute: [404, "not-found", "There is nothing at this address"],
  policyNotFound: [404, "policy-not-found", "There is no such policy"],
  leaseNotFound: [404, "lease-not-found", "There is no such lease, or no longer"],
  holdNotFound: [404, "hold-not-found", "There is no such hold, or no longer"],
  chargeNotFound: [404, "charge-not-found", "There is no such charge, or no longer"],
  notInCatalog: [404, "not-in-catalog", "There is no such policy, override or token"],
  methodNotAllowed: [405, "method-not-allowed", "This address does not take that method"],
  idempotencyConflict: [409, "idempotency-key-reused", "The idempotency key was used for another request"],
  preconditionFailed: [412, "precondition-failed", "It is not what the caller believes it to be"],
  tooLarge: [413, "body-too-large", "The body is too large"],
  upgradeRequired: [426, "upgrade-required", "This address is for WebSockets"],
  unsupportedMediaType: [415, "unsupported-media-type", "The body must be JSON"],
  notAllowed: [422, "not-allowed", "The request was understood, but a value is not allowed"],
  bound: [429, "bound-reached", "There are as many as there may be"],
  internal: [500, "internal", "The limiter failed"],
  notConfigured: [503, "not-configured", "The limiter is not configured"],
  unavailable: [503, "unavailable", "The key's object did not answer"],
} as const satisfies Record<string, Kind>;
