import {
  admitsTogether,
  decideTogether,
  type JointDecision,
  refund,
  withoutTaking,
} from "../../core/accounts/account.ts";
import { type Account, capacityOf, heldUnder } from "../../core/accounts/hold.ts";
import { andThen, jitterAt, randomId } from "../../core/clock.ts";
import {
  type Cost,
  costOf,
  costText,
  type PolicyRevision,
  type Rule,
  takesNothing,
} from "../../core/policies/policy.ts";
import type { Answer, Decided, RuleDecision } from "../../core/protocol/answers.ts";
import type { LimitParams, SetParams } from "../../core/protocol/calls.ts";
import { writtenKey } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import { quietMs } from "../../core/reservations/sizing.ts";
import {
  chargeOf,
  type Idempotent,
  ofGroupText,
  planFor,
  planOfKey,
  remembering,
  partOf,
  returnedOf,
  withRefunded,
} from "../keys/idempotency.ts";
import type { KeyState, RuleState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { withServed } from "../keys/leaving.ts";
import { exactly, policyFor } from "../keys/versions.ts";
import { type Limiting, MISSING, type Operations, type Params } from "./operations.ts";
import {
  cacheableDenial,
  cacheableForMs,
  isProvisionallyBlocked,
  kindMismatch,
  behindOlder,
  peekTurn,
  takeTurn,
  whenUncontended,
} from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

export class Limits {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #holdersForRegions: number | undefined;

  constructor(store: KeyStore, queue: WaitQueue, holdersForRegions?: number) {
    this.#holdersForRegions = holdersForRegions;
    this.#store = store;
    this.#queue = queue;
  }

  /** While callers wait, a call that does not wait is denied: it does not pass them. */
  readonly limit: Operations["limit"] = (keyState, call, nowMs) => {
    const answer = this.#limit(keyState, call, nowMs);
    this.#queue.admitted(keyState);
    if (call.servedBy === undefined) return answer;
    return andThen(answer, (made) => withServed(keyState, call, made, this.#holdersForRegions, nowMs));
  };

  #limit(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer> {
    const { cost, waitMs, shed } = call;
    this.#queue.serve(keyState, false);
    if (takesNothing(keyState.policy, cost))
      return this.#earlier(keyState, call, nowMs) ?? { rules: peekTurn(this.#queue, keyState, call, nowMs) };
    const isBehind = this.#queue.aheadOf(keyState, call, nowMs).length > 0;
    if (shed !== undefined || (waitMs === undefined && !isBehind))
      return this.#limitAtOnce(keyState, call, nowMs);
    const answer = takeTurn(this.#queue, keyState, { ...call, ttlMs: 0 }, nowMs, {
      earlier: (atMs) => this.#standing(keyState, call, atMs),
      grant: (atMs, waitedMs) =>
        admitsTogether(keyState.seenBy(call), atMs, cost)
          ? this.#answer(keyState, call, this.#decide(keyState, call, atMs), atMs, waitedMs)
          : undefined,
      deny: (atMs) => this.#answer(keyState, call, this.#decide(keyState, call, atMs), atMs),
    });
    // A check of several never waits for its turn, so this is no promise.
    return answer instanceof Promise ? answer : this.#noteDenial(keyState, call, answer, nowMs);
  }

  /** Waits only for calls on several keys to end (turns.ts). */
  #limitAtOnce(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer> {
    const decideAt = (atMs: number, isLast: boolean): Answer | undefined => {
      // Read each time: a repetition may have been answered while this call waited.
      const standing = this.#standing(keyState, call, atMs);
      if (standing !== undefined) return standing;
      if (keyState.policy.lease !== undefined) return kindMismatch(keyState, atMs);
      if (call.attempt?.isBlocked === true) return { rules: denials(keyState, call, atMs, "blocked", null) };
      if (call.shed !== undefined) return { shed: call.shed };
      const decided = this.#decide(keyState, call, atMs);
      if (!decided.admitted && !isLast && isProvisionallyBlocked(keyState, call, atMs)) return undefined;
      return this.#answer(keyState, call, decided, atMs);
    };
    // In the same turn: another attempt may be admitted as soon as this one waits.
    const answerAt = (atMs: number, isLast: boolean) => {
      const decided = decideAt(atMs, isLast);
      return decided && this.#noteDenial(keyState, call, decided, atMs);
    };
    const answer = answerAt(nowMs, false);
    if (answer !== undefined) return answer;
    if (call.isBatched === true) return full("batch-waits", 0);
    return whenUncontended(
      this.#queue,
      keyState,
      { cost: call.cost, inForce: call.inForce },
      nowMs,
      answerAt,
    );
  }

  #earlier(keyState: KeyState, call: Limiting, atMs: number): Answer | undefined {
    const idempotent = idempotentLimit(call);
    return idempotent && this.#store.answers.earlier(keyState, idempotent, atMs);
  }

  /** The earlier answer to the same call, except a counted denial, or one of an earlier round: it is decided again. */
  #standing(keyState: KeyState, call: Limiting, atMs: number): Answer | undefined {
    const earlier = this.#earlier(keyState, call, atMs);
    if (earlier === undefined || !isDenial(earlier)) return earlier;
    const { round = -1 } = earlier.deniedIn ?? {};
    if (call.attempt === undefined || round < call.attempt.round) return undefined;
    return { ...earlier, deniedIn: { round, isEarlier: true } };
  }

  /** Stores the denial of an attempt (`Attempt`), in the turn in which it was decided. Only the answer changes. */
  #noteDenial(keyState: KeyState, call: Limiting, answer: Answer, atMs: number): Answer {
    const { attempt, idempotencyKey } = call;
    if (attempt === undefined || idempotencyKey === undefined) return answer;
    const { request, round } = attempt;
    const deniedIn = { round };
    const denied: Decided | undefined =
      "shed" in answer
        ? { rules: denials(keyState, call, atMs, "shed", answer.shed.restoredInMs), deniedIn }
        : isDenial(answer) && answer.deniedIn === undefined
          ? { rules: answer.rules, deniedIn }
          : undefined;
    if (denied === undefined) return answer;
    const accounts = keyState.ruleStates.map(({ account }) => account);
    const remember = remembering({ idempotencyKey, request }, denied);
    return (
      this.#store.commitWithin(keyState, { accounts, remember }, atMs) ??
      ("shed" in answer ? answer : { ...answer, deniedIn })
    );
  }

  #decide(keyState: KeyState, call: Limiting, atMs: number): JointDecision {
    return decideTogether(keyState.seenBy(call), atMs, call.cost);
  }

  #answer(keyState: KeyState, call: Limiting, decided: JointDecision, atMs: number, waitedMs?: number) {
    const { cost } = call;
    const { admitted, accounts } = decided;
    const rules = admitted ? decided.rules : behindOlder(this.#queue, keyState, call, atMs, decided.rules);
    // A denial that a rule counted (`countDenied`) is not counted again.
    const isCounted = !admitted && this.#earlier(keyState, call, atMs) !== undefined;
    if (isCounted) return { rules: withoutTaking(keyState.seenBy(call), atMs, cost) };
    const answer: Decided = { rules, ...(waitedMs !== undefined && { waitedMs }) };
    const isInLine = this.#queue.waitersOf(keyState).length > 0;
    if (accounts === undefined) {
      const firmMs = admitted ? 0 : cacheableForMs(keyState, undefined, isInLine);
      return firmMs > 0 ? { ...answer, firmForMs: firmMs } : answer;
    }
    const idempotent = idempotentLimit(call);
    const exact = keyState.isInForce(call) ? {} : exactly(keyState, call);
    if (idempotent !== undefined) {
      const seen = { policy: policyFor(keyState.chosen, call), ruleStates: keyState.seenBy(call) };
      const charge = admitted ? chargeOf(seen, accounts, cost, atMs) : undefined;
      const remember = remembering(idempotent, { ...answer, ...planFor(keyState, call) }, charge);
      return this.#store.commitWithin(keyState, { accounts, remember, ...exact }, atMs) ?? answer;
    }
    this.#store.commit(keyState, { accounts, ...exact }, atMs);
    // An admission of the last unit also has the denial of the next call.
    const isLast = admitted && rules.some(({ remaining }) => remaining === 0);
    if (!isLast || !keyState.policy.localDecisions.denies) return answer;
    return { ...answer, ...cacheableDenial(keyState, undefined, call, isInLine, atMs) };
  }

  readonly refund = (keyState: KeyState, call: Params<"refund">, nowMs: number): Answer => {
    const { units, idempotencyKey, charge } = call;
    const idempotent = { idempotencyKey, request: refundText(units, charge) };
    const earlier = this.#store.answers.earlier(keyState, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const standing = charge === undefined ? undefined : this.#store.answers.chargeOf(keyState, charge, nowMs);
    if (charge !== undefined && standing === undefined) return MISSING;
    const refunded = keyState.seenBy(standing).map(({ rule, account }) => {
      if (standing === undefined) return { rule, account: refund(rule, account, nowMs, costOf(rule, units)) };
      const returned = returnedOf({ rule, account }, standing, units, nowMs);
      return { rule, account: refund(rule, account, nowMs, ...returned) };
    });
    const decisions = withoutTaking(refunded, nowMs, 0);
    const looks = [keyState.ruleStates, refunded] as const;
    const rules = withRefunded(decisions, looks, units, standing?.charge, nowMs);
    const answer = { rules, ...planOfKey(keyState) };
    const accounts = refunded.map(({ account }) => account);
    // In one commit: otherwise the charge could be refunded again.
    const change = { accounts, remember: remembering(idempotent, answer) };
    // After a full refund a repeated call is decided again. A charge of other rules stays as it is.
    const part = standing === undefined ? "none" : partOf(standing, units);
    const ends = { all: { forget: [charge ?? ""] }, some: { uncharge: charge ?? "" }, none: {} };
    const end = ends[part];
    const over = this.#store.commitWithin(keyState, { ...change, ...end }, nowMs);
    if (over === undefined) this.#queue.serve(keyState);
    return over ?? answer;
  };

  /** Takes a cost under all rules without a decision, once per idempotency key. The answer admits. */
  force(keyState: KeyState, call: LimitParams, nowMs: number): Answer {
    checkNoPool(keyState);
    const { cost, idempotencyKey } = call;
    const request = `debit of ${costText(cost)}${ofGroupText(call)}`;
    const idempotent = idempotencyKey === undefined ? undefined : { idempotencyKey, request };
    const earlier = this.#store.answers.earlier(keyState, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const ruleStates = keyState.seenBy(call);
    const accounts = accountsOf(ruleStates, ({ rule, account }) =>
      forced(rule, account, nowMs, costOf(rule, cost)),
    );
    if ("full" in accounts) return accounts;
    const after = ruleStates.map(({ rule }, index) => ({ rule, account: accounts[index] as Account }));
    const answer = { rules: withoutTaking(after, nowMs, 0) };
    const remember = remembering(idempotent, answer, chargeOf(keyState, accounts, cost, nowMs));
    return this.#store.commitWithin(keyState, { accounts, remember }, nowMs) ?? answer;
  }

  /** Sets the usage of the rules that count a rate. Holds and leases stay. */
  setUsed(keyState: KeyState, { used }: SetParams, nowMs: number): Full | undefined {
    checkNoPool(keyState);
    const accounts = accountsOf(keyState.ruleStates, ({ rule, account }) => {
      const isNamed = typeof used === "number" || Object.hasOwn(used, rule.unit);
      return isNamed && rule.lease === undefined
        ? withUsed(rule, account, nowMs, costOf(rule, used))
        : account;
    });
    if ("full" in accounts) return accounts;
    this.#store.commit(keyState, { accounts, isExact: true }, nowMs);
    this.#queue.serve(keyState);
    return undefined;
  }
}

function idempotentLimit(call: Limiting): Idempotent | undefined {
  const { idempotencyKey, cost, attempt } = call;
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: attempt?.request ?? `limit of ${costText(cost)}${ofGroupText(call)}` };
}

function isDenial(answer: Answer): answer is Decided {
  return "rules" in answer && answer.rules.some(({ success }) => !success);
}

/** The decisions of rules that were not asked. */
function denials(
  keyState: KeyState,
  call: Limiting,
  atMs: number,
  reason: "blocked" | "shed",
  retryAfterMs: number | null,
): readonly RuleDecision[] {
  return withoutTaking(keyState.seenBy(call), atMs, call.cost).map((decision) => {
    const { delayMs: _, ...rule } = decision;
    return { ...rule, success: false, retryAfterMs, reason };
  });
}

/** A refund as text, with the call whose charge it refunds. Stored: never reword. */
export function refundText(units: Cost, charge: string | undefined): string {
  const text = `refund of ${costText(units)}`;
  return charge === undefined ? text : `${text} of the charge ${JSON.stringify(writtenKey(charge))}`;
}

function checkNoPool({ policy }: KeyState): void {
  if (policy.pool === undefined) return;
  throw new Error(`the policy ${JSON.stringify(policy.name)} has a pool, where nothing can be forced or set`);
}

function accountsOf(
  ruleStates: readonly RuleState[],
  next: (ruleState: RuleState) => Account | TooMany,
): readonly Account[] | Full {
  const accounts: Account[] = [];
  for (const ruleState of ruleStates) {
    const account = next(ruleState);
    if ("most" in account) return full("debt", account.most);
    accounts.push(account);
  }
  return accounts;
}

/** The units cannot be counted exactly; at most `most` can, if none is used. */
export interface TooMany {
  readonly most: number;
}

/** Takes units without a decision, and begins `minInterval`. Missing units become a debt. */
export function forced(rule: Rule, account: Account, nowMs: number, units: number): Account | TooMany {
  if (units === 0) return account;
  const { algorithm, config } = rule;
  const noted = algorithm.noteHold?.(config, account.state, nowMs) ?? account.state;
  return debited(rule, { ...account, state: noted }, nowMs, units);
}

/** The account as if exactly `used` units were taken now. It begins no `minInterval`. */
export function withUsed(rule: Rule, { holds }: Account, nowMs: number, used: number): Account | TooMany {
  return debited(rule, { state: undefined, holds }, nowMs, used);
}

function debited(rule: Rule, { state, holds }: Account, nowMs: number, units: number): Account | TooMany {
  const { algorithm, config } = rule;
  const most = algorithm.maxDebit?.(config, state, nowMs) ?? Infinity;
  if (units > most) return { most: algorithm.maxDebit?.(config, undefined, nowMs) ?? most };
  return { state: algorithm.debit(config, state, nowMs, units), holds: heldUnder(holds, capacityOf(rule)) };
}

/**
 * Tells each of many holders with a denial how long to deny by itself. Each gets another time, so they do not ask together.
 * What a holder needs counts until it may ask again. @param part of the time in which the part of each becomes a unit
 */
export function withQuiet(
  { holders, policy, ruleStates }: KeyState,
  answer: Answer,
  nowMs: number,
  { holder, part = 1 }: { readonly holder?: string | undefined; readonly part?: number } = {},
): Answer {
  if (policy.pool !== undefined || !("rules" in answer)) return answer;
  const { rules, next, reserved } = answer;
  const isDenied = (index: number) => rules[index]?.success === false || next?.[index]?.success === false;
  const waits = ruleStates.flatMap(({ rule: { quota } }, index) => {
    const { windowMs = 0, units } = quota;
    // Of a group's units only its own holders wait for one.
    return isDenied(index) ? [windowMs / Math.max(1, rules[index]?.share?.limit ?? units)] : [];
  });
  const group = rules.find(({ share }) => share !== undefined)?.share?.group;
  const quiet = waits.length === 0 ? 0 : quietMs(holders.countOf(group), Math.max(...waits));
  // A holder with a bucket of its own gets units meanwhile.
  const buckets = Object.values(reserved?.buckets ?? {});
  const isAlone = buckets.length > 0 && (quiet > 0 || buckets.some(({ rate }) => rate.isHeld));
  const ms = isAlone ? Math.max(quiet, (reserved?.ttlMs ?? 0) / 2) : quiet;
  if (ms === 0) return answer;
  // Widely spread: holders that started together were denied together, and nobody would ask until all do.
  const ownMs = Math.round(part * ms * (0.25 + 1.5 * jitterAt(nowMs)));
  if (holder !== undefined) holders.stay(holder, nowMs + 2 * ownMs, nowMs);
  return { ...answer, quietMs: ownMs };
}

/** What tells a version of a policy from others. */
type Version = Pick<PolicyRevision, "version" | "candidate">;
const OF_THE_FILE: Version = { version: 0 };

/**
 * The times in which an object lifts no denial. A refund, a reset, a debit, another policy or a key that leaves begins the
 * next one, as does each start of the object. An answer renews the denials of its epoch, whatever their keys: otherwise an
 * isolate asks for each denied key again after each `denialTtl` (leases on volumes: Yin, Alvisi, Dahlin and Lin, 1999).
 */
export class Epochs {
  #present: string | undefined;
  #inForce = OF_THE_FILE;

  /** A denial may end sooner than was said. */
  lift(): void {
    this.#present = undefined;
  }

  /** A call came with this version of its key's policy. */
  hear(inForce: PolicyRevision | undefined): void {
    if (inForce === undefined || inForce.version < this.#inForce.version || this.#isKnown(inForce)) return;
    this.#inForce = inForce;
    this.lift();
  }

  #isKnown({ version, candidate }: Version): boolean {
    return version === this.#inForce.version && candidate === this.#inForce.candidate;
  }

  /** The answer with the present epoch, unless who asks has an earlier version: a key that has the later one may admit more. */
  written(
    { policy }: KeyState,
    { inForce = OF_THE_FILE }: { readonly inForce?: Version | undefined },
    answer: Answer,
  ): Answer {
    const { objects, pool, localDecisions } = policy;
    const isShared = objects !== "per-key" && pool === undefined && localDecisions.denies;
    if (!isShared || !("rules" in answer) || !this.#isKnown(inForce)) return answer;
    this.#present ??= randomId();
    return { ...answer, epoch: this.#present };
  }
}
