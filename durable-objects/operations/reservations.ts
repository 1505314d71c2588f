import {
  place,
  remainingOf,
  settle,
  unstoredOf,
  untouchedAtMs,
  decideTogether,
} from "../../core/accounts/account.ts";
import { holdWith, type RuleAccount } from "../../core/accounts/hold.ts";
import { MIN_USEFUL_TTL_MS, type Rule } from "../../core/policies/policy.ts";
import type { Answer, Prospect, Reserved } from "../../core/protocol/answers.ts";
import type { Reserving } from "../../core/protocol/messages.ts";
import { callerIn } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { grantedTogether, heldMs, isSpare, maxUnits, type Wish } from "../../core/reservations/sizing.ts";
import type { Holder } from "../keys/holders.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { Limits } from "./limits.ts";
import type { Reserve, Operations } from "./operations.ts";
import { cacheableDenial, cacheableForMs, isProvisionallyBlocked, peekTurn } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

export class Reservations {
  readonly #store: KeyStore;
  readonly #limits: Limits;
  readonly #queue: WaitQueue;

  constructor(store: KeyStore, limits: Limits, queue: WaitQueue) {
    this.#store = store;
    this.#limits = limits;
    this.#queue = queue;
  }

  readonly reserve: Operations["reserve"] = (keyState, call, nowMs) => {
    const { cost, priority, isBatched } = call;
    this.#queue.serve(keyState);
    const isBehind = this.#queue.aheadOf(keyState, priority, nowMs).length > 0;
    if (keyState.policy.lease !== undefined || isBehind) return this.#reserveBehind(keyState, call, nowMs);
    const noted = noteMessage(keyState, call, nowMs);
    // A later message came first. The caller is answered, and nothing is reserved.
    if (noted === undefined) return this.#limits.limit(keyState, { cost, priority, isBatched }, nowMs);
    const { admitted, accounts, rules } = decideTogether(noted.ruleAccounts, nowMs, cost);
    if (!admitted && isProvisionallyBlocked(keyState, call, nowMs)) {
      this.#commit(keyState, call.holder, noted, nowMs);
      return this.#limits.limit(keyState, { cost, priority, isBatched }, nowMs);
    }
    const ruleAccounts = noted.ruleAccounts.map(({ rule, account }, index) => ({
      rule,
      account: (cost === 0 ? undefined : accounts?.[index]) ?? account,
    }));
    const reserved = this.#grant(keyState, call, { ...noted, ruleAccounts }, nowMs);
    const denial = cacheableDenial(keyState, call.holder, priority, false, nowMs);
    const isCached = admitted || denial.next !== undefined;
    const firmMs = isCached ? 0 : cacheableForMs(keyState, call.holder, false);
    return { rules, reserved, ...denial, ...(firmMs > 0 && { firmForMs: firmMs }) };
  };

  /** While callers wait, a holder is granted nothing. Its returned units serve them before its own cost. */
  #reserveBehind(keyState: KeyState, call: Reserve, nowMs: number): MaybePromise<Answer> {
    const { cost, priority, isBatched } = call;
    const reserved = this.bringHome(keyState, call, nowMs);
    const next = peekTurn(this.#queue, keyState, { cost: 1, priority }, nowMs);
    const isDenied = next.some(({ success }) => !success);
    const withReserved = (answer: Answer): Answer =>
      reserved === undefined ? answer : { ...answer, reserved, ...(isDenied && { next }) };
    const answer = this.#limits.limit(keyState, { cost, priority, isBatched }, nowMs);
    return answer instanceof Promise ? answer.then(withReserved) : withReserved(answer);
  }

  /** The first half of `reserve`, before the pool is called; `undefined`: a later message came first. */
  bringHome(keyState: KeyState, call: Reserve, nowMs: number): Reserved | undefined {
    const rules = Object.entries(call.rules).map(([name, { used, kept }]): [string, Reserving] => [
      name,
      { used, kept, wanted: kept },
    ]);
    const home = { ...call, rules: Object.fromEntries(rules) };
    const noted = noteMessage(keyState, home, nowMs);
    return noted && this.#grant(keyState, home, noted, nowMs);
  }

  /** The second half: reserves wanted units, also new ones from the pool; `undefined`: see `bringHome`. */
  grantNoted(keyState: KeyState, call: Reserve, nowMs: number): Reserved | undefined {
    const noted = noteMessage(keyState, call, nowMs, true);
    return noted && this.#grant(keyState, call, noted, nowMs);
  }

  readonly giveBack: Operations["giveBack"] = (keyState, { holder, turn, used }, nowMs) => {
    const rules = Object.fromEntries(
      Object.entries(used).map(([name, units]) => [name, { used: units, kept: 0, wanted: 0 }]),
    );
    const noted = noteMessage(keyState, { holder, turn, ttlMs: 0, rules }, nowMs);
    if (noted === undefined) return;
    // Whether no isolate has units of the key any more.
    const isLast = noted.ruleAccounts.every(({ account }) => unstoredOf(account) === 0);
    const isAhead = keyState.ruleStates.some(({ stored }) => stored !== undefined && stored.ahead > 0);
    this.#commit(keyState, holder, noted, nowMs, isLast && isAhead);
    this.#queue.serve(keyState);
  };

  #grant(keyState: KeyState, call: Reserve, noted: HolderReport, nowMs: number): Reserved {
    // Of a pool only its last answer is known here, not the other regions.
    const isShared = keyState.policy.pool !== undefined;
    const { ttlMs, units } = granted(keyState, call, noted, nowMs);
    const { hold } = noted.holder;
    // Kept units never expire sooner than in an earlier answer: the holder relies on it if this one is lost.
    const keptHolds = noted.ruleAccounts.flatMap(({ account }, index) => {
      const keeps = (noted.kept[index] ?? 0) > 0;
      return keeps ? (holdWith(account.holds, hold) ?? []) : [];
    });
    const expiresAtMs = Math.max(nowMs + heldMs(ttlMs), ...keptHolds.map((each) => each.expiresAtMs));
    const spentMs = keptHolds.map((each) => each.spendableUntilMs ?? each.expiresAtMs);
    const spendableUntilMs = Math.max(nowMs + ttlMs, ...spentMs);
    const ruleAccounts = noted.ruleAccounts.map(({ rule, account }, index) => {
      const kept = noted.kept[index] ?? 0;
      const holding = { id: hold, units: kept + (units[index] ?? 0), expiresAtMs, spendableUntilMs };
      const without = kept === 0 ? account : settle(rule, account, nowMs, hold, 0);
      return { rule, account: holding.units === 0 ? without : place(without, holding) };
    });
    const rules = new Map(
      [...noted.holder.rules].map(([name, report], index) => [
        name,
        { ...report, held: (noted.kept[index] ?? 0) + (units[index] ?? 0) },
      ]),
    );
    const holder = { ...noted.holder, rules, untilMs: expiresAtMs };
    this.#commit(keyState, call.holder, { ruleAccounts, holder }, nowMs);
    this.#queue.serve(keyState);
    const named = Object.fromEntries(ruleAccounts.map(({ rule }, index) => [rule.name, units[index] ?? 0]));
    const prospects = Object.fromEntries(
      ruleAccounts.map((each) => [each.rule.name, prospectOf(each, ttlMs, nowMs)]),
    );
    return { ttlMs, isNew: noted.isNew, units: named, ...(!isShared && { prospects }) };
  }

  #commit(
    keyState: KeyState,
    id: string,
    { ruleAccounts, holder }: Pick<HolderReport, "ruleAccounts" | "holder">,
    nowMs: number,
    isExact = false,
  ): void {
    const accounts = ruleAccounts.map(({ account }) => account);
    // Without a change there is no commit: that could write.
    if (keyState.ruleStates.some(({ account }, index) => account !== accounts[index]))
      this.#store.commit(keyState, { accounts, isExact }, nowMs);
    if (keyState.holders.hasRoomFor(id)) keyState.holders.set(id, holder);
  }
}

/** In this many steps an answer tells how a quota refills while a holder has its units. */
const GAIN_STEPS = 4;

function prospectOf({ rule, account }: RuleAccount, ttlMs: number, nowMs: number): Prospect {
  const resetAfterMs = untouchedAtMs(rule, account, nowMs) - nowMs;
  const free = remainingOf(rule, account, nowMs);
  const gain = (step: number) =>
    remainingOf(rule, account, nowMs + Math.floor((ttlMs * step) / GAIN_STEPS)) - free;
  if (gain(GAIN_STEPS) === 0) return { resetAfterMs };
  return { resetAfterMs, gains: Array.from({ length: GAIN_STEPS }, (_, index) => gain(index + 1)) };
}

/** The part of a capacity that the clients of one caller may hold together while others want units. */
const MAX_SHARE_OF_CALLER = 1 / 2;

/** How many units to grant, and for how long: above the shortest lifetime only if they can be spared. */
function granted(
  keyState: KeyState,
  { holder: id, ttlMs: askedMs, isShort }: Reserve,
  { kept, ruleAccounts, holder }: HolderReport,
  nowMs: number,
): { readonly ttlMs: number; readonly units: readonly number[] } {
  const { holders, policy } = keyState;
  const { leastMs, mostMs } = policy.reservation;
  const ttlMs = Math.min(askedMs, mostMs, keyState.endsByMs - nowMs);
  if (
    !policy.localDecisions.admits ||
    !holders.hasRoomFor(id) ||
    holder.replaced !== undefined ||
    ttlMs < Math.min(askedMs, MIN_USEFUL_TTL_MS)
  )
    return { ttlMs: Math.max(0, ttlMs), units: ruleAccounts.map(() => 0) };
  const wishes = ruleAccounts.map(({ rule, account }, index): Wish => {
    const keeps = kept[index] ?? 0;
    const max = maxUnits(rule);
    const others = holders.others(id, rule.name, max, nowMs);
    const free = remainingOf(rule, account, nowMs);
    const room = rule.capacity * MAX_SHARE_OF_CALLER - others.heldByOwn - keeps;
    const isBounded = others.isContested && callerIn(id) !== undefined;
    return {
      wanted: holder.rules.get(rule.name)?.wanted ?? 0,
      kept: keeps,
      free: isBounded ? Math.max(0, Math.min(free, Math.floor(room))) : free,
      max,
      heldByOthers: unstoredOf(account) - keeps,
      wantedByOthers: others.wanted,
      isShort,
    };
  });
  const units = grantedTogether(wishes);
  const isSpared = wishes.every(({ kept: keeps, free }, index) => isSpare(keeps + (units[index] ?? 0), free));
  if (ttlMs <= leastMs || isSpared) return { ttlMs, units };
  const part = leastMs / askedMs;
  const shorter = wishes.map((wish) => ({ ...wish, wanted: Math.floor(wish.wanted * part) }));
  return { ttlMs: leastMs, units: grantedTogether(shorter) };
}

const NOTHING: Reserving = { used: 0, kept: 0, wanted: 0 };

interface HolderReport {
  readonly ruleAccounts: readonly RuleAccount[];
  readonly holder: Holder;
  readonly kept: readonly number[];
  /** The holder gets a new hold, and must not spend kept units (`Reserved.isNew`). */
  readonly isNew: boolean;
}

/** Reads a holder's message; `undefined`: a later one came first. `isAgain`: `bringHome` has read it. */
function noteMessage(
  keyState: KeyState,
  {
    holder: id,
    turn,
    ttlMs,
    rules,
    priority,
  }: Pick<Reserve, "holder" | "turn" | "ttlMs" | "rules" | "priority">,
  nowMs: number,
  isAgain = false,
): HolderReport | undefined {
  const { holders } = keyState;
  const ruleStates = keyState.seenBy(priority);
  holders.forgetEnded(nowMs);
  const before = holders.get(id);
  if (before !== undefined && (isAgain ? turn < before.turn : turn <= before.turn)) return undefined;
  const reports = ruleStates.map(({ rule, account }) => {
    const { used, kept, wanted } = (Object.hasOwn(rules, rule.name) && rules[rule.name]) || NOTHING;
    const reportedBefore = before?.rules.get(rule.name)?.used ?? 0;
    const held = before && holdWith(account.holds, before.hold);
    const wish = wishOf(id, rule, { kept, wanted });
    return { used: Math.max(used, reportedBefore), kept, wish, held, delta: used - reportedBefore };
  });
  // The holder keeps or used units that its hold here lacks: this object crashed, or an old message came
  // late. Those units are covered by the restored record, or settled. An old hold stays until it expires.
  const isNew =
    before === undefined ||
    reports.some(({ kept, delta, held }) =>
      held === undefined ? kept > 0 : Math.max(0, delta) + kept > held.units,
    );
  const isHeld = (hold: string) =>
    ruleStates.some(({ account }) => holdWith(account.holds, hold) !== undefined);
  const replaced = isNew && before !== undefined && isHeld(before.hold) ? before.hold : before?.replaced;
  const holder: Holder = {
    turn,
    hold: isNew ? `${id}.${turn}` : before.hold,
    ...(replaced !== undefined && isHeld(replaced) && { replaced }),
    rules: new Map(
      ruleStates.map(({ rule }, index) => {
        const { used = 0, wish = 0 } = reports[index] ?? {};
        return [rule.name, { used, wanted: wish, held: 0 }];
      }),
    ),
    untilMs: nowMs + ttlMs,
  };
  const ruleAccounts = ruleStates.map(({ rule, account }, index): RuleAccount => {
    const { held, delta = 0, kept = 0 } = reports[index] ?? {};
    if (isNew || held === undefined) return { rule, account };
    const settled = settle(rule, account, nowMs, held.id, Math.max(0, delta));
    return { rule, account: kept === 0 ? settled : place(settled, { ...held, units: kept }) };
  });
  return { ruleAccounts, holder, kept: reports.map(({ kept }) => (isNew ? 0 : kept)), isNew };
}

/** An isolate's number is trusted; a client's counts up to its maximum. */
export function wishOf(id: string, rule: Rule, { kept, wanted }: Pick<Reserving, "kept" | "wanted">): number {
  if (callerIn(id) === undefined) return wanted;
  return Math.min(wanted, Math.max(kept, Math.floor(maxUnits(rule))));
}
