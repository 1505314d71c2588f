/**
 * The message by which a client in its caller's process holds units of many keys: `POST /v1/reservations`, and `reserve`
 * over the service binding. Its calls are those of a batch (batches.ts), and each is answered by itself. Clients in
 * other languages send it too: fields are only added, and an added field is optional.
 */
import type { Decided } from "./answers.ts";
import type { Decision } from "./decision.ts";
import type { BatchedCall, Failed } from "./messages.ts";
import type { PolicyDescription } from "./policy-descriptions.ts";
import type { Problem } from "./problems.ts";

/** The version of the message. */
export const RESERVATIONS_PROTOCOL = 1;

/** So many calls go in one message at most. */
export const MAX_RESERVING = 100;

/** The message. */
export interface ReservationsMessage {
  readonly protocol: number;
  /** The policies that the client knows, by name: the versions of their descriptions. */
  readonly known?: Readonly<Record<string, string>>;
  /** Each has one of `giveBack`, `limit` and `reserve`. */
  readonly calls: readonly BatchedCall[];
}

/** A decision by the limiter, since the client could not have understood the object's answer. */
export interface RemoteDecision {
  readonly decision: Decision;
}

/** A call that was refused. It has changed nothing. */
export interface RefusedCall {
  readonly problem: Pick<Problem, "status" | "code" | "title" | "detail" | "errors">;
}

/** The answer to one call. `null`: it gave units back. */
export type ReservationAnswer = Decided | RemoteDecision | RefusedCall | Failed | null;

/** The answer to the message. */
export interface ReservationsReply {
  readonly protocol: number;
  /** One for each call, in their order. */
  readonly answers: readonly ReservationAnswer[];
  /** By name: policies of the calls that the client does not know, or that have changed. */
  readonly policies: Readonly<Record<string, PolicyDescription>>;
}
