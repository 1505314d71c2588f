/** What a client may be told. */
export interface ClientOptions {
  /** The policy of calls that name none. */
  readonly policy?: string;
  /** The longest that a caller waits for the limiter, in milliseconds. Absent: what the policy says. */
  readonly deadlineMs?: number;
  /** What is answered when the limiter does not answer, of policies that it has not described yet. */
  readonly onFailure?: "closed" | "open";
}
