import type { Account, RuleAccount } from "../../core/accounts/hold.ts";
import type { Refilled } from "../../core/algorithms/algorithm.ts";
import { type Cost, costOf, type Policy, publicName, type Rule } from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { Conflict, Decided, RuleDecision } from "../../core/protocol/answers.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import { callerIn, sharedKey } from "../../core/protocol/names.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import { countHeld } from "../../core/stats/held-times.ts";
import {
  type AnswerCount,
  callerOf,
  END_OF_HOLD,
  MAX_ANSWERS,
  MAX_ANSWERS_LENGTH,
  MAX_ANSWERS_LENGTH_OF_CALLER,
} from "../storage/answers.ts";
import type { Claim, StoredAnswer } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import type { KeyState } from "./key-state.ts";
import { policyFor } from "./versions.ts";

/** A call that is charged once, even if it is repeated. */
export interface Idempotent {
  /** With its caller (core/protocol/names.ts). */
  readonly idempotencyKey: string;
  /** The request as text, to detect another one under the same idempotency key. Stored: never reword. */
  readonly request: string;
}

type RememberedAnswer = Decided | ClaimEnd;
type ClaimEnd = "expired" | "cancelled";

export type Remembered = Idempotent & { readonly answer: RememberedAnswer; readonly charge?: Charge };

/** Empty for a call without an idempotency key. */
export function remembering(call: Idempotent | undefined, answer: RememberedAnswer, charge?: Charge) {
  return call === undefined ? [] : [{ ...call, answer, ...(charge && { charge }) }];
}

/** A stored answer, without a charge that was refunded. Stored: never rename a field. */
type StoredDecision = Decided & { readonly charge?: Charge };

/** How long an answer is valid, in milliseconds, or longer until its key is untouched. */
export const REMEMBERED_MS = 24 * 60 * 60 * 1_000;

/** The end of a hold is stored under the hold's id, so a repeated settle gets the first answer. Stored. */
export function endOfHold(id: string): Idempotent {
  return { idempotencyKey: id, request: END_OF_HOLD };
}

/** At the end of a request of several checks (worker/calls/checks.ts): that of their groups, and a digest of each. */
const GROUPS = / of groups \([0-9a-f]{16}\)$/;
const DIGEST = / \([0-9a-f]{16}\)$/;

/** Whether it is the same call. Of the groups of several checks earlier builds store nothing, and say nothing. */
function isSameRequest(request: string, stored: string): boolean {
  return (
    request === stored || request === stored.replace(GROUPS, "") || request.replace(GROUPS, "") === stored
  );
}

/** The refusal of another request under the idempotency key of this one, as callers read it: digests tell them nothing. */
export function conflictWith(request: string): Conflict {
  return { conflict: { request: request.replace(GROUPS, "").replace(DIGEST, "") } };
}

/** The answers of an object's calls with an idempotency key, and how its holds ended. */
export class KeyAnswers {
  readonly #storage: KeyStorage;

  constructor(storage: KeyStorage) {
    this.#storage = storage;
  }

  /** The valid answer to the same call, if any. A denial that changed nothing is not remembered. */
  earlier(keyState: KeyState, call: Idempotent | undefined, nowMs: number): Decided | Conflict | undefined {
    // A `ClaimEnd` is stored under the request of `endOfHold`, which no call has: none is returned here.
    return call && (this.#find(keyState, call, nowMs) as Decided | Conflict | undefined);
  }

  /** How a hold ended, or the answer to its settle; `undefined`: unknown. */
  endOf(keyState: KeyState, holdId: string, nowMs: number): RememberedAnswer | Conflict | undefined {
    return this.#find(keyState, endOfHold(holdId), nowMs);
  }

  /** The charge of the call with this idempotency key, and its instant; `undefined`: unknown or refunded. */
  chargeOf(keyState: KeyState, idempotencyKey: string, nowMs: number) {
    const found = this.#stored(keyState, idempotencyKey, nowMs);
    if (found === undefined || isEnding(found.answer)) return undefined;
    const { charge, rules, plan } = JSON.parse(found.answer) as StoredDecision;
    const { group } = rules.find(({ share }) => share !== undefined)?.share ?? {};
    // Earlier versions stored no plan.
    const { policy, chosen } = keyState;
    const under = plan === undefined ? policy : planOf(chosen.whole, plan);
    return charge && { charge, atMs: found.atMs, group, rules: under.rules };
  }

  /** After a refund the call keeps its answer, but its charge cannot be found any more. */
  forgetCharge({ key }: KeyState, idempotencyKey: string): void {
    const { answers } = this.#storage;
    const found = answers.read(key, idempotencyKey);
    if (found === undefined) return;
    answers.write(key, idempotencyKey, { ...found, answer: textOf(rememberedIn(found.answer)) });
  }

  /** Remembers an answer. A caller's oldest ones are deleted beyond `MAX_ANSWERS` of the key. */
  remember(keyState: KeyState, remembered: Remembered, nowMs: number): void {
    const { idempotencyKey, request, answer, charge } = remembered;
    const { key, answers } = keyState;
    const caller = callerOf(idempotencyKey, request);
    const { count, oldestMs } = this.#count(keyState, caller);
    const isMost = count >= MAX_ANSWERS;
    const stored = this.#storage.answers;
    if (isMost) stored.removeOldest(key, caller);
    const planned = typeof answer === "string" ? answer : { ...planOfKey(keyState), ...answer };
    stored.write(key, idempotencyKey, { request, answer: textOf(planned, charge), atMs: nowMs });
    if (isMost) answers.delete(caller);
    else answers.set(caller, { count: count + 1, oldestMs: Math.min(oldestMs, nowMs), isExact: false });
  }

  endExpired(keyState: KeyState, claim: Claim): void {
    const { id, kind, isProvisional, expiresAtMs, grantedAtMs } = claim;
    const storage = this.#storage;
    storage.claims.remove(keyState.key, claim);
    if (kind === "lease") {
      const policy = publicName(keyState.policy.name);
      storage.counter?.add("leases_reclaimed", [policy]);
      countHeld(storage.counter, policy, grantedAtMs, expiresAtMs);
    }
    if (kind === "lease" || isProvisional === true) return;
    this.remember(keyState, { ...endOfHold(id), answer: "expired" }, expiresAtMs);
  }

  /** The bound that another answer would exceed. The oldest makes room unless its call may be repeated. */
  full(keyState: KeyState, idempotencyKey: string, nowMs: number): Full | undefined {
    const caller = callerOf(idempotencyKey, "");
    const stored = this.#storage.answers;
    if (stored.length >= MAX_ANSWERS_LENGTH) return full("object-answers", MAX_ANSWERS_LENGTH);
    if (callerIn(idempotencyKey) !== undefined && stored.lengthOf(caller) >= MAX_ANSWERS_LENGTH_OF_CALLER)
      return full("caller-object-answers", MAX_ANSWERS_LENGTH_OF_CALLER);
    const known = this.#count(keyState, caller);
    if (known.count < MAX_ANSWERS || nowMs >= known.oldestMs + MIN_REMEMBERED_MS) return undefined;
    return full("caller-answers", MAX_ANSWERS);
  }

  #find(keyState: KeyState, call: Idempotent, nowMs: number): RememberedAnswer | Conflict | undefined {
    const { idempotencyKey, request } = call;
    const found =
      this.#stored(keyState, idempotencyKey, nowMs) ?? this.#shared(keyState, idempotencyKey, nowMs);
    if (found === undefined) return undefined;
    return isSameRequest(request, found.request) ? rememberedIn(found.answer) : conflictWith(found.request);
  }

  #stored(keyState: KeyState, idempotencyKey: string, nowMs: number): StoredAnswer | undefined {
    const found = this.#storage.answers.read(keyState.key, idempotencyKey);
    if (found === undefined) return undefined;
    return nowMs >= found.atMs + REMEMBERED_MS && keyState.isWhole(nowMs) ? undefined : found;
  }

  /** Version 0.1.0 stored answers without their caller: any caller may read them, but not ends of holds. */
  #shared(keyState: KeyState, idempotencyKey: string, nowMs: number): StoredAnswer | undefined {
    const shared = sharedKey(idempotencyKey);
    const found = shared === undefined ? undefined : this.#stored(keyState, shared, nowMs);
    return found?.request === END_OF_HOLD ? undefined : found;
  }

  /** Counts a caller's answers after loading and when there seem too many: the alarm deletes unnoticed. */
  #count({ key, answers }: KeyState, caller: string): AnswerCount {
    const known = answers.get(caller);
    if (known !== undefined && (known.count < MAX_ANSWERS || known.isExact)) return known;
    const counted = { ...this.#storage.answers.count(key, caller), isExact: true };
    answers.set(caller, counted);
    return counted;
  }
}

/** How a hold ended is stored as it is, an answer as JSON. Stored: never change. */
function textOf(remembered: RememberedAnswer, charge?: Charge): string {
  if (typeof remembered === "string") return remembered;
  const stored: StoredDecision = charge === undefined ? remembered : { ...remembered, charge };
  return JSON.stringify(stored);
}

function rememberedIn(text: string): RememberedAnswer {
  if (isEnding(text)) return text;
  const { charge: _, ...answer } = JSON.parse(text) as StoredDecision;
  return answer;
}

function isEnding(text: string): text is ClaimEnd {
  return text === "expired" || text === "cancelled";
}

/** Units taken by a call, stored with its answer for one refund. Stored: add fields, never rename one. */
export type Charge = Readonly<Record<string, TakenUnits>>;

interface TakenUnits {
  readonly units: number;
  /** The terms of the charge's plan. Once the policy has others for it, it is unknown which units have refilled. */
  readonly terms: string;
  /** What time had returned then. Absent: it returns none at a rate, or an earlier version stored the charge. */
  readonly refilled?: Refilled;
}

/** The charge of a cost that has left these accounts; `undefined`: the cost takes nothing. */
export function chargeOf(
  {
    policy,
    ruleStates,
  }: { readonly policy: Pick<Policy, "rules">; readonly ruleStates: readonly RuleAccount[] },
  accounts: readonly Account[],
  cost: Cost,
  nowMs: number,
): Charge | undefined {
  const taken = policy.rules
    .map((rule, index): [string, TakenUnits] => {
      const { algorithm, config } = ruleStates[index]?.rule ?? rule;
      const refilled = algorithm.refilled?.(config, accounts[index]?.state, nowMs);
      return [rule.name, { units: costOf(rule, cost), terms: termsOf(rule), ...(refilled && { refilled }) }];
    })
    .filter(([, { units }]) => units > 0);
  return taken.length === 0 ? undefined : Object.fromEntries(taken);
}

/** A charge that may be given back, with the rules that the policy now has for the plan under which it was taken. */
interface StandingCharge {
  readonly charge: Charge;
  readonly atMs: number;
  readonly rules: readonly Rule[];
}

/** How many of `units` the charge took of this rule; 0: the policy has other terms for the plan of the charge now. */
export function takenOf(
  { name }: Pick<Rule, "name">,
  { charge, rules }: StandingCharge,
  units: Cost,
): number {
  const taken = Object.hasOwn(charge, name) ? charge[name] : undefined;
  const rule = rules.find((each) => each.name === name);
  if (taken === undefined || rule === undefined || taken.terms !== termsOf(rule)) return 0;
  return Math.min(taken.units, costOf(rule, units));
}

/** Which part of the charge these units are. `none`: none of its rules can give them back. */
export function partOf(standing: StandingCharge, units: Cost): "all" | "some" | "none" {
  const parts = Object.entries(standing.charge).map(([name, taken]) => [
    taken.units,
    takenOf({ name }, standing, units),
  ]);
  if (parts.every(([taken, part]) => taken === part)) return "all";
  return parts.some(([, part]) => part !== 0) ? "some" : "none";
}

/** What comes back of a charge, as `credit` of its algorithm takes it. */
export function returnedOf(
  { rule, account: { state } }: RuleAccount,
  standing: StandingCharge,
  units: Cost,
  nowMs: number,
): readonly [units: number, atMs: number, capacity?: number, returned?: number] {
  const { atMs, rules, charge } = standing;
  const taken = takenOf(rule, standing, units);
  const charged = rules.find(({ name }) => name === rule.name);
  if (charged === undefined || taken === 0) return [0, atMs];
  const { algorithm, config, capacity } = charged;
  const now = rule.algorithm.refilled?.(rule.config, state, nowMs);
  const then = charge[rule.name]?.refilled;
  if (now !== undefined && then !== undefined) {
    // Since then it was whole, and so all had returned.
    if (then.sinceMs !== now.sinceMs) return [0, atMs];
    return [taken, atMs, capacity, Math.max(0, now.parts - partsOf(then, now))];
  }
  if (termsOf(charged) === termsOf(rule)) return [taken, atMs, capacity];
  // What other plans have returned of a charge of an earlier version is unknown.
  const hasReturned =
    now !== undefined ||
    algorithm.untouchedAtMs(config, algorithm.debit(config, undefined, atMs, taken)) <= nowMs;
  return [hasReturned ? 0 : taken, atMs];
}

/** How far into debt the units that came back are known, in capacities. */
const KNOWN_DEBT = 2;

/** The decisions after a refund, each with the whole units that came back, unless a block or a deep debt hides them. */
export function withRefunded(
  decisions: readonly RuleDecision[],
  [before, after]: readonly [readonly RuleAccount[], readonly RuleAccount[]],
  units: Cost,
  charge: Charge | undefined,
  nowMs: number,
): RuleDecision[] {
  return decisions.map((decision, index) => {
    const [was, is] = [before[index], after[index]];
    if (was === undefined || is === undefined) return decision;
    const { algorithm, name, config, capacity } = was.rule;
    const isNamed = costOf(was.rule, units) > 0 && (charge === undefined || Object.hasOwn(charge, name));
    if (!isNamed || algorithm.isStateless === true || algorithm.leasing !== undefined) return decision;
    const [free, freeNow] = [was, is].map(({ account: { state } }) => {
      const look = algorithm.decide(config, state, nowMs, 0, -KNOWN_DEBT * capacity);
      return look.quotaRemaining ?? look.remaining;
    });
    return free ? { ...decision, refunded: (freeNow ?? free) - free } : decision;
  });
}

/** In parts of a unit as of another moment, rounded down. */
function partsOf({ parts, perUnit }: Refilled, of: Refilled): number {
  return perUnit === of.perUnit ? parts : Number((BigInt(parts) * BigInt(of.perUnit)) / BigInt(perUnit));
}

/** Stored: never reword, or earlier charges could not be refunded. */
function termsOf({ algorithm, capacity, quota }: Rule): string {
  return `${algorithm.name} ${capacity} ${quota.units}/${quota.windowMs ?? 0}`;
}

/** Each decision reads all holds and leases of its key (docs/measurements.md has the cost). */
export const MAX_CLAIMS_OF_KEY = 10_000;
/** In one object, and of one caller there, so that no caller takes all places of a shared object. */
export const MAX_CLAIMS_OF_OBJECT = 20_000;
export const MAX_CLAIMS_OF_CALLER = 10_000;

/** How long a caller's answers are kept however many calls it makes, in milliseconds. */
const MIN_REMEMBERED_MS = 60_000;

/** The bound that new claims would exceed; `undefined`: none. Renewed claims need no room. */
export function claimsFull(storage: KeyStorage, keyState: KeyState, put: readonly Claim[]): Full | undefined {
  const { claims } = keyState;
  const begun = put.filter(({ id }) => !claims.has(id));
  if (begun.length === 0) return undefined;
  if (claims.size + begun.length > MAX_CLAIMS_OF_KEY) return full("key-claims", MAX_CLAIMS_OF_KEY);
  const { counts } = storage.claims;
  if (counts.all + begun.length > MAX_CLAIMS_OF_OBJECT) return full("object-claims", MAX_CLAIMS_OF_OBJECT);
  const { caller = "" } = begun[0] ?? {};
  // Claims without a caller are those of older versions, and of clients that send none.
  if (caller !== "" && counts.of(caller) + begun.length > MAX_CLAIMS_OF_CALLER)
    return full("caller-claims", MAX_CLAIMS_OF_CALLER);
  return undefined;
}

/** The plan that decides, in an answer: to a call that names none, or that is repeated later under another one. */
export function planOfKey({ policy: { plan } }: Pick<KeyState, "policy">): Pick<Decided, "plan"> {
  return plan === undefined ? {} : { plan };
}

/** The same of a call that may have named another plan, and waited. */
export function planFor({ chosen }: Pick<KeyState, "chosen">, call: SeenBy): Pick<Decided, "plan"> {
  return planOfKey({ policy: policyFor(chosen, call) });
}

/** The group of a call in the text of its request. Stored: never reword. */
export function ofGroupText({ group }: { readonly group?: string | undefined }): string {
  return group === undefined ? "" : ` for the group ${JSON.stringify(group)}`;
}
