/**
 * The messages that clients (isolates) send to an object, whose answers are in answers.ts.
 *
 * While a deployment is rolled out, old and new versions talk to each other. So fields are only added, never renamed,
 * and an added field is optional. A change that an older object would misread needs a higher `PROTOCOL`.
 */
import type { Outcome } from "../algorithms/algorithm.ts";
import { type Cost, type PolicyRevision, versionOf } from "../policies/policy.ts";
import type { Reports } from "../shedding/load-shedder.ts";
import type { Answer, AnswerText, Shed, SheddingLevel, UnsupportedProtocol } from "./answers.ts";

/**
 * The version of these messages, which each names. An object that knows only lower ones changes nothing and answers
 * `unsupported`. Methods with plain arguments (object-methods.ts) stay at version 1 for ever: every object decides.
 */
export const PROTOCOL = 1;

/** The version of a `limit` that waits. Objects of version 1 would take it for a question whether the key is idle. */
export const WAITING_PROTOCOL = 2;

/** The version of a batch. It comes by `reserve`, which objects of lower versions refuse by value. */
export const BATCH_PROTOCOL = 3;

/** The version of a socket that resumes a lease: objects of lower versions would grant another one. */
export const RESUMING_PROTOCOL = 5;

/** The version of a lease whose link may break: objects of lower versions would end it at once, or grant another one. */
export const LINK_PROTOCOL = 6;

/** The highest version that is known here. 4 is `MOVE_PROTOCOL`. */
export const KNOWN_PROTOCOL = LINK_PROTOCOL;

/** The version of a message. Absent: version 1, whose first senders knew no version number. */
export interface Versioned {
  readonly protocol?: number;
  /** The rules of the policy where the sender is, as text (durable-objects/keys/versions.ts). Absent: not sent. */
  readonly terms?: string | undefined;
  /** The version in force for the key, as far as the sender knows. Absent: that of the deployment's file. */
  readonly inForce?: PolicyRevision | undefined;
  /** Another object has passed the call on, and these objects may have the key as far as it knows. */
  readonly mayBeAt?: readonly string[];
}

/** A message about one key. */
export interface OfKey extends Versioned {
  readonly policy: string;
  readonly key: string;
  /** The caller, whose calls have bounds of their own. */
  readonly caller?: string;
}

/**
 * Decides on a cost, as `limit` does, and reserves units for a holder (an isolate), which spends them without asking.
 *
 * A message has totals since the holder began, so it does not matter which earlier messages arrived. `turn` rises
 * with each message, and a message that comes late or twice changes nothing.
 */
export interface ReserveCall extends UnitsCall {
  /** 0: no caller waits for a decision. */
  readonly cost: Cost;
  /** The holder's id, which nobody can guess. */
  readonly holder: string;
  readonly turn: number;
  /** The lifetime of the units in milliseconds. The holder counts from before it asks, so it stops first. */
  readonly ttlMs: number;
  /** Calls have to wait for units, so granted units are used at once. */
  readonly isShort: boolean;
  /** By the name of the rule. */
  readonly rules: Readonly<Record<string, Reserving>>;
}

/** A holder's numbers for one rule. */
export interface Reserving {
  /** Units used since the holder began. */
  readonly used: number;
  /** Units that the holder keeps. All others that it had are free again. */
  readonly kept: number;
  /** Units that the holder wants to have, the kept ones included. */
  readonly wanted: number;
}

/** The end of a holder's reservation: units that it did not use are free again. */
export interface Returned {
  readonly key: string;
  readonly holder: string;
  readonly turn: number;
  /** By the name of the rule: units used since the holder began. */
  readonly used: Readonly<Record<string, number>>;
}

/** A message that asks for units. */
interface UnitsCall extends OfKey {
  /** The sender has shed the call: it is answered only if the same call was answered before. */
  readonly shed?: Shed | undefined;
  /** How important the call is: one of the policy's priorities. Absent: the one of calls that say none. */
  readonly priority?: string | undefined;
  /** It came in a batch, and must not let the others wait: rather than wait it is refused. */
  readonly isBatched?: true | undefined;
}

/** Decides on a cost, and takes it if every rule admits it. */
export interface LimitCall extends UnitsCall {
  readonly cost: Cost;
  readonly idempotencyKey?: string | undefined;
  /** The longest wait for its turn, in milliseconds. Absent: it does not wait, and is not told that it did not. */
  readonly waitMs?: number;
  /** The units are taken whatever is there, and what is missing is a debt. Nothing is decided. */
  readonly force?: true | undefined;
}

/** Sets what a key has used. Units that are held stay apart. */
export interface SetCall extends OfKey {
  /** A number is for every rule that counts a rate. A rule whose unit an object leaves out stays as it is. */
  readonly used: Cost;
}

/** Gives back units of one charge. */
export interface RefundCall extends OfKey {
  readonly units: Cost;
  readonly idempotencyKey: string;
  /** The idempotency key of the `limit` that took the units. */
  readonly charge: string;
}

/** Asks for a lease. Units of rules that lease belong to the lease; units of the other rules are used at once. */
export interface AcquireCall extends UnitsCall {
  readonly cost: Cost;
  /** How long the lease lasts unless it is renewed, in milliseconds. */
  readonly ttlMs: number;
  /** The longest wait in the queue, in milliseconds. */
  readonly waitMs: number;
  /** The random id of the lease. The sender makes it, so it can end the lease even if the answer is lost. */
  readonly id: string;
  readonly idempotencyKey?: string;
  /** When the holder's connection or link breaks, the lease stays for so many milliseconds. Absent: it ends at once. */
  readonly graceMs?: number | undefined;
  /** Takes over the lease with this id, and asks for none (of a socket `RESUMING_PROTOCOL`, else `LINK_PROTOCOL`). */
  readonly resume?: string | undefined;
  /** The holder of the socket sends `ping` at least once in so many milliseconds. Absent: it need not. */
  readonly pingWithinMs?: number | undefined;
  /** The lease ends after so many milliseconds unless `confirm` comes: the caller may have gone while it waited. */
  readonly confirmWithinMs?: number;
}

/** How a call went: see `Ended` in core/algorithms/algorithm.ts. */
export interface LeaseReport {
  /** Absent: `ok`. */
  readonly outcome?: Outcome | undefined;
  /** How long the call took, in milliseconds. Absent: since the grant, as the object measured it. */
  readonly durationMs?: number | undefined;
}

/** Ends a lease, and reports how the call went. */
export interface ReleaseCall extends OfKey, LeaseReport {
  readonly id: string;
  /** This link to the holder has ended: the lease ends if it is still this link's. Absent: the holder ends it. */
  readonly link?: string | undefined;
  /** It ends after so many milliseconds (`LINK_PROTOCOL`). Absent: at once. */
  readonly graceMs?: number | undefined;
}

/** What a report may say: the words, and the longest duration in milliseconds. */
export const OUTCOMES = ["ok", "ignore", "dropped"] as const satisfies readonly Outcome[];
export const MAX_DURATION_MS = 2_147_483_647;

/** Waits until a key has no leases, for `waitMs` milliseconds at most. */
export interface IdleCall extends OfKey {
  readonly waitMs: number;
}

/** Sets units apart for `ttlMs` milliseconds, until the caller settles them with the units that it used. */
export interface HoldCall extends UnitsCall {
  /** The hold's own part of its id. Absent: the object makes one. */
  readonly id?: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly idempotencyKey?: string;
  /**
   * Present when this is a part of a call on several keys. `waitMs`: how many milliseconds it waits for other such
   * calls to end. `request`: the whole call in words, to tell it from another call with the same idempotency key.
   */
  readonly provisional?: { readonly waitMs: number; readonly request: string };
}

/** Tells how busy callers' machines are, and asks what is shed of their calls. */
export interface SheddingCall extends OfKey {
  /** What callers have reported since the sender's last message. */
  readonly reports: Reports;
  /** What the sender was told last, for an object that has lost its memory. */
  readonly known?: KnownLevel;
}

/** What was shed, so many milliseconds ago. */
export interface KnownLevel extends SheddingLevel {
  readonly agoMs: number;
}

/** What a limit, a set, an acquire and a hold ask for: messages without their address. */
export type LimitParams = Omit<LimitCall, "policy" | "key" | "protocol">;
export type SetParams = Omit<SetCall, "policy" | "key" | "protocol">;
export type AcquireParams = Omit<AcquireCall, "policy" | "key" | "protocol">;
export type ReleaseParams = Omit<ReleaseCall, "policy" | "key" | "protocol">;
export type HoldParams = Omit<HoldCall, "policy" | "key" | "protocol">;

/** The answer to a message whose version is not known here; `undefined`: the version is known. */
export function unsupportedOf({ protocol = 1 }: Versioned): UnsupportedProtocol | undefined {
  return protocol > KNOWN_PROTOCOL ? { unsupported: { protocol: KNOWN_PROTOCOL } } : undefined;
}

/** Lists or counts the keys of one object. */
export interface KeysCall extends Versioned {
  readonly policy: string;
  /** Only keys that begin with it. */
  readonly prefix?: string;
  /** Only keys after this one, in the order of their bytes. */
  readonly after?: string;
  /** The most keys in a list. */
  readonly most?: number;
}

/*
 * Several calls of an object in one message. It is plain JSON, so it can go over HTTP as well. The object decides all
 * calls in one turn, and a call that fails fails alone.
 */

/** The most calls in one message. A decision takes some 20 µs, so an object is done within 10 ms. */
export const MAX_BATCHED = 256;
/** The most UTF-16 units of a message. It has room for that many calls with keys of usual length. */
export const MAX_BATCH_LENGTH = 2 ** 17;

/** One call of a batch, with its messages by the names of the methods that take them alone, in this order. */
export interface BatchedCall {
  readonly giveBack?: { readonly policy: string; readonly returned: readonly Returned[] };
  readonly limit?: LimitCall;
  readonly reserve?: ReserveCall;
}

/** The message, all of one policy. Its calls are JSON text: to send them as nested objects would cost more than to decide them. */
export interface Batch extends Versioned {
  /** A list of `BatchedCall`. */
  readonly calls: string;
}

/** The call threw. Whether it was charged is not known. */
export interface Failed {
  readonly failed: string;
}

/** The answer to a call. `null`: it only gave units back. */
export type MadeAnswer = Answer | null;

/** The answer to one call of a batch. */
export type BatchedAnswer = MadeAnswer | UnsupportedProtocol | Failed;

/** What a list of answers to a batch is in JSON text: one for each call, in their order. */
export function batchText(answers: readonly AnswerText[]): AnswerText {
  return `[${answers.join(",")}]`;
}

/**
 * Whether the object has refused a call, or a whole batch, and has changed nothing: it is older, or the call would have
 * to wait, or the batch is too large for it. Then the call can be made alone.
 */
export function isForAlone(answer: object): boolean {
  if ("unsupported" in answer) return true;
  return "full" in answer && BATCH_BOUNDS.has((answer as { full: { bound: string } }).full.bound);
}

const BATCH_BOUNDS: ReadonlySet<string> = new Set(["batch-calls", "batch-length", "batch-waits"]);

/** The call with the version in force, so that its sender need not know it. */
export function withVersion(
  policy: Parameters<typeof versionOf>[0],
  { limit, reserve, ...call }: BatchedCall,
): BatchedCall {
  const version = versionOf(policy);
  return {
    ...call,
    ...(limit && { limit: { ...limit, ...version } }),
    ...(reserve && { reserve: { ...reserve, ...version } }),
  };
}

/* The codes with which sockets are closed: of RFC 6455, and of its range for private use. */

/** "Normal closure" and "internal error": RFC 6455, section 7.4.1. */
export const CLOSE_NORMAL = 1000;
export const CLOSE_FAILED = 1011;
/** The connection of the holder broke. Only a worker says that to an object, when it relays a socket. */
export const CLOSE_BROKEN = 4400;
/** Its lease has ended. */
export const CLOSE_LOST = 4408;
/** Another socket has taken over its lease. */
export const CLOSE_RESUMED = 4409;
/** No `ping` came from its holder. */
export const CLOSE_SILENT = 4410;
/** The caller was denied. */
export const CLOSE_DENIED = 4429;
