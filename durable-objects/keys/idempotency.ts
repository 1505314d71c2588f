import { type Cost, costOf, publicName, type Rule } from "../../core/policies/policy.ts";
import type { Conflict, Decided } from "../../core/protocol/answers.ts";
import { callerIn, type KeyRange, rangeOf, rangeOfEnds, sharedKey } from "../../core/protocol/names.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import {
  type AnswerCount,
  ANSWERS_DROPPED,
  MAX_ANSWERS,
  MAX_ANSWERS_LENGTH,
  MAX_ANSWERS_LENGTH_OF_CALLER,
  type StoredAnswer,
} from "../storage/answers.ts";
import type { Claim } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import type { KeyState } from "./key-state.ts";

/** A call that is charged once, also when it is sent again. */
export interface Idempotent {
  /** With its caller: see core/protocol/names.ts. */
  readonly idempotencyKey: string;
  /** The request in words, to tell another request under the same idempotency key. Stored: never reword. */
  readonly request: string;
  /** All that is remembered of the same caller, if its idempotency key does not tell. */
  readonly range?: KeyRange;
}

/** What is remembered: an answer or, when a hold ended without being settled, how it ended. */
export type RememberedAnswer = Decided | ClaimEnd;
type ClaimEnd = "expired" | "cancelled";

/** A remembered answer of a call, and what it charged. */
export type Remembered = Idempotent & { readonly answer: RememberedAnswer; readonly charge?: Charge };

/** The answers to remember of a call: none if it has no idempotency key. */
export function remembering(
  call: Idempotent | undefined,
  answer: RememberedAnswer,
  charge?: Charge,
): readonly Remembered[] {
  return call === undefined ? [] : [{ ...call, answer, ...(charge && { charge }) }];
}

/** An answer as it is stored. A charge that has been given back is not in it any more. Stored: never rename a field. */
type StoredDecision = Decided & { readonly charge?: Charge };

/** An answer is valid for this many milliseconds, or until the key is whole again, whichever is later. */
export const REMEMBERED_MS = 24 * 60 * 60 * 1_000;

/** Stored: never reword. */
const END_OF_HOLD = "end of a hold";

/** The end of a hold is remembered under the hold's id, so a repeated settle is answered as the first was. Stored. */
export function endOfHold(id: string): Idempotent {
  return { idempotencyKey: id, request: END_OF_HOLD, range: rangeOfEnds(id) };
}

/**
 * The earlier answer under this idempotency key; `undefined`: there is none that is still valid. A denial that changed
 * nothing was not remembered.
 */
export function findAnswer(
  storage: KeyStorage,
  keyState: KeyState,
  { idempotencyKey, request }: Idempotent,
  nowMs: number,
): RememberedAnswer | Conflict | undefined {
  const found =
    findStored(storage, keyState, idempotencyKey, nowMs) ??
    findShared(storage, keyState, sharedKey(idempotencyKey), nowMs);
  if (found === undefined) return undefined;
  if (found.request !== request) return { conflict: { request: found.request } };
  return rememberedIn(found.answer);
}

/** The charge of the call with this idempotency key; `undefined`: it is unknown, or has been given back. */
export function findCharge(
  storage: KeyStorage,
  keyState: KeyState,
  idempotencyKey: string,
  nowMs: number,
): StandingCharge | undefined {
  const found = findStored(storage, keyState, idempotencyKey, nowMs);
  if (found === undefined || isEnding(found.answer)) return undefined;
  const { charge } = JSON.parse(found.answer) as StoredDecision;
  return charge && { charge, atMs: found.atMs };
}

/** The charge has been given back: the call is still answered as before, but nobody finds its charge any more. */
export function forgetCharge(storage: KeyStorage, { key }: KeyState, idempotencyKey: string): void {
  const found = storage.answers.read(key, idempotencyKey);
  if (found === undefined) return;
  storage.answers.remove(key, idempotencyKey);
  storage.answers.write(key, idempotencyKey, { ...found, answer: textOf(rememberedIn(found.answer)) });
}

function findStored(
  storage: KeyStorage,
  keyState: KeyState,
  idempotencyKey: string,
  nowMs: number,
): StoredAnswer | undefined {
  const found = storage.answers.read(keyState.key, idempotencyKey);
  if (found === undefined) return undefined;
  return nowMs >= found.atMs + REMEMBERED_MS && keyState.isWhole(nowMs) ? undefined : found;
}

/**
 * What version 0.1.0 has stored under this idempotency key. It did not tell callers apart, so it belongs to whoever
 * names it, as it did then. The ends of holds are stored in the same place, under their ids: those are nobody's answers.
 */
function findShared(
  storage: KeyStorage,
  keyState: KeyState,
  shared: string | undefined,
  nowMs: number,
): StoredAnswer | undefined {
  const found = shared === undefined ? undefined : findStored(storage, keyState, shared, nowMs);
  return found?.request === END_OF_HOLD ? undefined : found;
}

/** Remembers an answer. When the caller has `MAX_ANSWERS` of the key, its oldest ones go. */
export function rememberAnswer(
  storage: KeyStorage,
  keyState: KeyState,
  { idempotencyKey, request, range = rangeOf(idempotencyKey) }: Idempotent,
  remembered: RememberedAnswer,
  nowMs: number,
  charge?: Charge,
): void {
  const { key, answers } = keyState;
  const { count, oldestMs } = answersOf(storage, keyState, range);
  const isMost = count >= MAX_ANSWERS;
  if (isMost) storage.answers.removeOldest(key, range);
  storage.answers.write(key, idempotencyKey, { request, answer: textOf(remembered, charge), atMs: nowMs });
  const left = isMost ? count - ANSWERS_DROPPED : count;
  answers.set(range[0], { count: left + 1, oldestMs: Math.min(oldestMs, nowMs), isExact: false });
}

/** Deletes an expired hold or lease. The end of a hold is remembered, for a caller who settles it too late. */
export function endExpired(storage: KeyStorage, keyState: KeyState, claim: Claim): void {
  storage.claims.remove(keyState.key, claim.id);
  if (claim.kind === "lease") storage.counter?.add("leases_reclaimed", [publicName(keyState.policy.name)]);
  if (claim.kind === "lease" || claim.isProvisional === true) return;
  rememberAnswer(storage, keyState, endOfHold(claim.id), "expired", claim.expiresAtMs);
}

/** An ending is stored as it is, an answer as JSON. Stored: never change. */
function textOf(remembered: RememberedAnswer, charge?: Charge): string {
  if (typeof remembered === "string") return remembered;
  return JSON.stringify(
    charge === undefined ? remembered : ({ ...remembered, charge } satisfies StoredDecision),
  );
}

function rememberedIn(text: string): RememberedAnswer {
  if (isEnding(text)) return text;
  const { charge: _, ...answer } = JSON.parse(text) as StoredDecision;
  return answer;
}

function isEnding(text: string): text is ClaimEnd {
  return text === "expired" || text === "cancelled";
}

/*
 * Charges: what a call took, remembered beside its answer. So it can be given back by the call's idempotency key: once,
 * and no more than it was.
 */

/** What a call took of each rule, by the rule's name. Stored: fields are added, and none is renamed. */
export type Charge = Readonly<Record<string, TakenUnits>>;

interface TakenUnits {
  readonly units: number;
  /** The terms under which the units were taken. Under others nobody knows which of them time has given back. */
  readonly terms: string;
}

/** A charge that has not been given back. */
export interface StandingCharge {
  readonly charge: Charge;
  /** When the units were taken. */
  readonly atMs: number;
}

/** The charge of a cost; `undefined`: the cost takes nothing. */
export function chargeOf(rules: readonly Rule[], cost: Cost): Charge | undefined {
  const taken = rules
    .map((rule): [string, TakenUnits] => [rule.name, { units: costOf(rule, cost), terms: termsOf(rule) }])
    .filter(([, { units }]) => units > 0);
  return taken.length === 0 ? undefined : Object.fromEntries(taken);
}

/** How many of `units` the charge took of this rule, on the terms that the rule still has. */
export function takenOf(rule: Rule, charge: Charge, units: Cost): number {
  const taken = Object.hasOwn(charge, rule.name) ? charge[rule.name] : undefined;
  return taken?.terms === termsOf(rule) ? Math.min(taken.units, costOf(rule, units)) : 0;
}

/** Whether these units are all that the charge took, so that nothing of it is left. */
export function takesAll(rules: readonly Rule[], charge: Charge, units: Cost): boolean {
  return Object.entries(charge).every(([name, taken]) => {
    const rule = rules.find((each) => each.name === name);
    return rule !== undefined && takenOf(rule, charge, units) === taken.units;
  });
}

/** Stored: never reword. With other words, charges from before could not be given back. */
function termsOf({ algorithm, capacity, quota }: Rule): string {
  return `${algorithm.name} ${capacity} ${quota.units}/${quota.windowMs ?? 0}`;
}

/** Whether there is room for what a call wants to keep. Nothing is touched by looking. */

/** The most holds and leases of one key: each decision looks at them (docs/performance.md has what that costs). */
export const MAX_CLAIMS_OF_KEY = 10_000;
/** The most in one object, and of one caller there. So no caller takes all places of an object that keys share. */
export const MAX_CLAIMS_OF_OBJECT = 20_000;
export const MAX_CLAIMS_OF_CALLER = 10_000;

/** However many calls a caller makes, its answers are remembered for this long, in milliseconds. */
const MIN_REMEMBERED_MS = 60_000;

/** The bound that new claims would pass; `undefined`: there is room for them. Renewed claims take none. */
export function claimsFull(storage: KeyStorage, keyState: KeyState, put: readonly Claim[]): Full | undefined {
  const { claims } = keyState;
  const begun = put.filter(({ id }) => !claims.has(id));
  if (begun.length === 0) return undefined;
  if (claims.size + begun.length > MAX_CLAIMS_OF_KEY) return full("key-claims", MAX_CLAIMS_OF_KEY);
  const { counts } = storage.claims;
  if (counts.all + begun.length > MAX_CLAIMS_OF_OBJECT) return full("object-claims", MAX_CLAIMS_OF_OBJECT);
  const { caller = "" } = begun[0] ?? {};
  // Claims of nobody in particular are those of older versions, and of clients that say nothing.
  if (caller !== "" && counts.of(caller) + begun.length > MAX_CLAIMS_OF_CALLER)
    return full("caller-claims", MAX_CLAIMS_OF_CALLER);
  return undefined;
}

/**
 * The bound that one more answer under an idempotency key would pass; `undefined`: there is room. The caller's oldest
 * answer makes room, but not one that the caller may still need for a call that it repeats.
 */
export function answersFull(
  storage: KeyStorage,
  keyState: KeyState,
  idempotencyKey: string,
  nowMs: number,
): Full | undefined {
  const range = rangeOf(idempotencyKey);
  const { lengths } = storage.answers;
  if (lengths.all >= MAX_ANSWERS_LENGTH) return full("object-answers", MAX_ANSWERS_LENGTH);
  if (callerIn(idempotencyKey) !== undefined && lengths.of(range) >= MAX_ANSWERS_LENGTH_OF_CALLER)
    return full("caller-object-answers", MAX_ANSWERS_LENGTH_OF_CALLER);
  const known = answersOf(storage, keyState, range);
  if (known.count < MAX_ANSWERS || nowMs >= known.oldestMs + MIN_REMEMBERED_MS) return undefined;
  return full("caller-answers", MAX_ANSWERS);
}

/**
 * How many answers the key has in the range of one caller. They are counted when the key has been loaded, and
 * again when they are said to be too many: the alarm deletes answers without telling the key.
 */
export function answersOf(storage: KeyStorage, { key, answers }: KeyState, range: KeyRange): AnswerCount {
  const known = answers.get(range[0]);
  if (known !== undefined && (known.count < MAX_ANSWERS || known.isExact)) return known;
  const counted = { ...storage.answers.count(key, range), isExact: true };
  answers.set(range[0], counted);
  return counted;
}
