/**
 * The message by which a client in its caller's process holds units of many keys: `POST /v1/reservations`, and
 * `reserve` over the service binding. Its calls are those of a batch, each with its own answer. Clients of other
 * versions and languages use it: fields are only added, as optional.
 */
import type { Waiting } from "../algorithms/algorithm.ts";
import type { FailureLimit, HeaderStyle, PolicyView, RuleView } from "../policies/policy.ts";
import type { Decided, Slots } from "./answers.ts";
import type { LimitCall, ReserveCall, Sent, SlotsCall } from "./calls.ts";
import type { Decision } from "./decision.ts";
import type { BatchedCall, Failed } from "./messages.ts";
import type { Problem } from "./problems.ts";

export const RESERVATIONS_PROTOCOL = 1;

export const MAX_RESERVING = 100;

/**
 * What a client says of the slots that it has of a key (`SlotsCall`). It hands no lease over: its callers live in its
 * process, and lose their leases with it.
 */
export type HeldMessage = Omit<SlotsCall, "ttlMs" | "handed">;

export interface ReservationsMessage {
  readonly protocol: number;
  /** By name: the versions of the policy descriptions that the client has. */
  readonly known?: Readonly<Record<string, string>>;
  readonly calls: readonly ClientCall[];
  /** Only for a limiter that has said that it reads it (`readsSent`). */
  readonly sent?: Sent;
  /** The same (`readsMade`). */
  readonly made?: MadeDecisions;
}

/**
 * How many decisions a client has made by itself since it last said so, by policy (`api`), or by policy and plan with a space
 * between (`api pro`).
 */
type MadeDecisions = Readonly<Record<string, readonly [admitted: number, denied: number]>>;

/** The most names in it: a message has a bounded size. */
export const MAX_MADE = 16;

/** A call of a batch, which names its plan and group: of the policy's version its limiter knows more. */
export interface ClientCall extends Pick<BatchedCall, "giveBack"> {
  readonly limit?: Named<LimitCall>;
  readonly reserve?: Named<ReserveCall>;
  /** An earlier limiter refuses a message that has it. */
  readonly slots?: HeldMessage;
}

/** `plan` absent: the policy's own figures. */
type Named<Call> = Omit<Call, "inForce"> & { readonly plan?: string };

/** A decision for a client that does not know the policy, and so could not read the object's answer. */
interface RemoteDecision {
  readonly decision: Decision;
}

/** The call changed nothing. */
export interface RefusedCall {
  readonly problem: Pick<Problem, "status" | "code" | "title" | "detail" | "errors">;
}

/** `null`: the call returned units. */
export type ReservationAnswer = Decided | Slots | RemoteDecision | RefusedCall | Failed | null;

export interface ReservationsReply {
  readonly protocol: number;
  readonly answers: readonly ReservationAnswer[];
  /** By name: the calls' policies that the client does not know, or that have changed. */
  readonly policies: Readonly<Record<string, PolicyDescription>>;
  /** Absent: a limiter of an earlier version, which refuses a message with `sent`. */
  readonly readsSent?: true;
  readonly readsMade?: true;
}

export interface RuleDescription extends Pick<RuleView, "name" | "unit" | "capacity"> {
  /** How long until a full quota if one unit is missing, and if all are. Sent: never rename a field. */
  readonly wholeMs: { readonly one: number; readonly all: number };
  /** Clients may have buckets of their own. An earlier version does not say so, and refuses a message that asks for one. */
  readonly isCuttable?: true;
}

type ListedField = "deadlineMs" | "objects" | "denialTtlMs" | "shadow" | "keyKind";
type DescribedField = ListedField | "localDecisions" | "reservation" | "retryJitter";

export interface PolicyDescription extends Pick<PolicyView, DescribedField>, DescribedRules {
  /** Changes with any other field. */
  readonly version: string;
  readonly onFailure: "closed" | "open";
  /** An older client is closed. */
  readonly failureLimit?: FailureLimit;
  /** The units are in a pool, so settling takes longer. */
  readonly isPooled?: true;
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** By plan: its rules. Absent: the policy has no plans, and its calls name none. */
  readonly plans?: Readonly<Record<string, DescribedRules>>;
  readonly slots?: SlotTerms;
  /** What clients decide where each call has a group. Absent: there are none. Older clients decide nothing there. */
  readonly ofGroups?: PolicyView["localDecisions"];
}

/** Clients may hold slots of a key. Absent: they may not, or the limiter is older. */
export interface SlotTerms {
  /** Of a lease that names none. */
  readonly ttlMs: number;
  readonly maxTtlMs: number;
}

interface DescribedRules {
  /** By priority: the capacity of each rule. Absent: the same for all. */
  readonly seen?: Readonly<Record<string, readonly number[]>>;
  readonly rules: readonly RuleDescription[];
}

export interface DescribedPolicy extends PolicyView {
  readonly version: string;
  readonly priorityNames: readonly string[];
  readonly slots?: SlotTerms;
  /** The policy as calls of each plan see it, "" for those without a plan. */
  readonly plans?: ReadonlyMap<string, DescribedPolicy>;
}

export interface ListedRule {
  readonly name: string;
  readonly algorithm: string;
  readonly [field: string]: string | number | boolean;
}

/** A policy in a list. Durations are in milliseconds. */
export interface ListedPolicy extends Pick<PolicyView, "name" | "onFailure" | ListedField>, Waiting {
  readonly rules: readonly ListedRule[];
  /** The rules as each plan has them. */
  readonly plans?: Readonly<Record<string, readonly ListedRule[]>> | undefined;
  /** Groups share the limit: each call that is decided names its group. */
  readonly fair?: true | undefined;
  /** Present with `onFailure = { limit, window }`, beside "closed". */
  readonly failureLimit?: FailureLimit | undefined;
  readonly reservationTtlMs: number;
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** Absent: an older limiter. */
  readonly headers?: readonly HeaderStyle[];
}

export interface PolicyList {
  readonly policies: readonly ListedPolicy[];
}
