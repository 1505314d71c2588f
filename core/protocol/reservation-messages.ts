/**
 * The message by which a client in its caller's process holds units of many keys: `POST /v1/reservations`, and
 * `reserve` over the service binding. Its calls are those of a batch, each with its own answer. Clients of other
 * versions and languages use it: fields are only added, as optional.
 */
import type { LocalDecisions } from "../algorithms/algorithm.ts";
import type { HeaderStyle, Lifetimes, PolicyView, RetryJitter } from "../policies/policy.ts";
import type { Decided } from "./answers.ts";
import type { Decision } from "./decision.ts";
import type { BatchedCall, Failed, Sent } from "./messages.ts";
import type { Problem } from "./problems.ts";

export const RESERVATIONS_PROTOCOL = 1;

export const MAX_RESERVING = 100;

export interface ReservationsMessage {
  readonly protocol: number;
  /** By name: the versions of the policy descriptions that the client has. */
  readonly known?: Readonly<Record<string, string>>;
  readonly calls: readonly BatchedCall[];
  /** Only for a limiter that has said that it reads it (`readsSent`). */
  readonly sent?: Sent;
}

/** A decision for a client that does not know the policy, and so could not read the object's answer. */
export interface RemoteDecision {
  readonly decision: Decision;
}

/** The call changed nothing. */
export interface RefusedCall {
  readonly problem: Pick<Problem, "status" | "code" | "title" | "detail" | "errors">;
}

/** `null`: the call returned units. */
export type ReservationAnswer = Decided | RemoteDecision | RefusedCall | Failed | null;

export interface ReservationsReply {
  readonly protocol: number;
  readonly answers: readonly ReservationAnswer[];
  /** By name: the calls' policies that the client does not know, or that have changed. */
  readonly policies: Readonly<Record<string, PolicyDescription>>;
  /** Absent: a limiter of an earlier version, which refuses a message with `sent`. */
  readonly readsSent?: true;
}

export interface RuleDescription {
  readonly name: string;
  readonly unit: string;
  readonly capacity: number;
  /** How long until a full quota if one unit is missing, and if all are. Sent: never rename a field. */
  readonly wholeMs: { readonly one: number; readonly all: number };
}

export interface PolicyDescription {
  /** Changes with any other field. */
  readonly version: string;
  readonly onFailure: "closed" | "open";
  readonly deadlineMs: number;
  readonly objects: "per-key" | number;
  /** If both are false, the limiter decides each call. */
  readonly localDecisions: LocalDecisions;
  readonly reservation: Lifetimes;
  readonly denialTtlMs: number;
  readonly shadow: boolean;
  readonly keyKind: "text" | "ip";
  /** The units are in a pool, so settling takes longer. */
  readonly isPooled?: true;
  readonly retryJitter?: RetryJitter;
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** By priority: the capacity of each rule. Absent: the same for all. */
  readonly seen?: Readonly<Record<string, readonly number[]>>;
  readonly rules: readonly RuleDescription[];
}

export interface DescribedPolicy extends PolicyView {
  readonly version: string;
  readonly priorityNames: readonly string[];
}

export interface ListedRule {
  readonly name: string;
  readonly algorithm: string;
  readonly [field: string]: string | number | boolean;
}

/** A policy in a list. Durations are in milliseconds. */
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
  /** Absent: an older limiter. */
  readonly headers?: readonly HeaderStyle[];
}

export interface PolicyList {
  readonly policies: readonly ListedPolicy[];
}
