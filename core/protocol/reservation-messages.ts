/**
 * The message by which a client in its caller's process holds units of many keys: `POST /v1/reservations`, and `reserve`
 * over the service binding. Its calls are those of a batch (wire-methods.ts), and each is answered by itself. Clients and
 * limiters of other versions and languages use it too: fields are only added, and an added field is optional.
 */
import type { LocalDecisions } from "../algorithms/algorithm.ts";
import type { HeaderStyle, Lifetimes, PolicyView, RetryJitter } from "../policies/policy.ts";
import type { Decided } from "./answers.ts";
import type { Decision } from "./decision.ts";
import type { BatchedCall, Failed } from "./messages.ts";
import type { Problem } from "./problems.ts";

/** The version of the message. */
export const RESERVATIONS_PROTOCOL = 1;

/** The most calls in one message. */
export const MAX_RESERVING = 100;

/** The message. */
export interface ReservationsMessage {
  readonly protocol: number;
  /** The policies that the client knows, by name: the versions of their descriptions. */
  readonly known?: Readonly<Record<string, string>>;
  /** Each has one of `giveBack`, `limit` and `reserve`. */
  readonly calls: readonly BatchedCall[];
}

/** A decision by the limiter, for a client that does not know the policy and so could not read the object's answer. */
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

/** A rule of a description. */
export interface RuleDescription {
  readonly name: string;
  readonly unit: string;
  readonly capacity: number;
  /** How long until a quota is full again if one unit is missing, and if all are, in milliseconds. */
  readonly wholeMs: { readonly one: number; readonly all: number };
}

/** What a client must know of a policy to decide by itself. */
export interface PolicyDescription {
  /** Changes with any other field. */
  readonly version: string;
  readonly onFailure: "closed" | "open";
  readonly deadlineMs: number;
  readonly objects: "per-key" | number;
  /** What the client may decide by itself. If both are false, the limiter decides each call. */
  readonly localDecisions: LocalDecisions;
  /** The shortest and the longest lifetime of a reservation, in milliseconds. */
  readonly reservation: Lifetimes;
  readonly denialTtlMs: number;
  readonly shadow: boolean;
  readonly keyKind: "text" | "ip";
  /** The units are in a pool, so it takes longer until they are settled. */
  readonly isPooled?: true;
  readonly retryJitter?: RetryJitter;
  /** The priorities of calls, and that of calls that name none. */
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** By priority: the capacity of each rule for calls of that priority. Absent: the same for all. */
  readonly seen?: Readonly<Record<string, readonly number[]>>;
  readonly rules: readonly RuleDescription[];
}

/** What a client knows of a policy. */
export interface DescribedPolicy extends PolicyView {
  readonly version: string;
  readonly priorityNames: readonly string[];
}

/** A rule in a list of policies. Other fields are its algorithm's: limits in units, durations in milliseconds. */
export interface ListedRule {
  readonly name: string;
  readonly algorithm: string;
  readonly [field: string]: string | number | boolean;
}

/** A policy in a list. Durations are in milliseconds. The schema for OpenAPI is in worker/calls/keys.ts. */
export interface ListedPolicy {
  readonly name: string;
  readonly rules: readonly ListedRule[];
  readonly onFailure: "closed" | "open" | "local";
  readonly deadlineMs: number;
  readonly objects: "per-key" | number;
  readonly maxWaitMs: number;
  readonly maxWaiters: number;
  readonly reservationTtlMs: number;
  readonly denialTtlMs: number;
  readonly shadow: boolean;
  readonly keyKind: "text" | "ip";
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** The styles of limit headers. Absent: an older limiter. */
  readonly headers?: readonly HeaderStyle[];
}

/** The answer to `policies`. */
export interface PolicyList {
  readonly policies: readonly ListedPolicy[];
}
