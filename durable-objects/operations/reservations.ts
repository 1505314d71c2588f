import {
  broughtTo,
  fullAtMs,
  place,
  remainingOf,
  partOfGroup,
  settle,
  unstoredOf,
  decideTogether,
} from "../../core/accounts/account.ts";
import { capacityOf, heldUnits, holdWith, type RuleAccount } from "../../core/accounts/hold.ts";
import { andThen } from "../../core/clock.ts";
import { MIN_USEFUL_TTL_MS, publicName } from "../../core/policies/policy.ts";
import type { Answer, Prospect, Reserved } from "../../core/protocol/answers.ts";
import type { Reserving, SeenBy } from "../../core/protocol/calls.ts";
import { callerIn } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { grantedTogether, heldMs, isSpare, maxUnits, type Wish } from "../../core/reservations/sizing.ts";
import type { LeaseCounter } from "../../core/stats/held-times.ts";
import { type GivenRate, settleRate, UNKNOWN_RATES, withRate } from "../keys/given-rates.ts";
import type { KnownHolder } from "../keys/holders.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { hasRegions, leaving } from "../keys/leaving.ts";
import { claimsMore, mayHave, returnedBy, roomOfCaller, wishOf } from "./client-bounds.ts";
import type { Operations, Params } from "./operations.ts";
import { credited, heldFor, ownBuckets, rateOf, withoutUnits, withSent } from "./own-buckets.ts";
import { behindOlder, cacheableDenial, cacheableForMs, isProvisionallyBlocked, peekTurn } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

export interface ReservationOptions {
  readonly counter?: LeaseCounter | undefined;
  /** From so many holders on, those that know their region ask an object there (durable-objects/regions/). */
  readonly holdersForRegions?: number | undefined;
}

export class Reservations {
  readonly #store: Pick<KeyStore, "commit">;
  readonly #limit: Operations["limit"];
  readonly #queue: WaitQueue;
  readonly #counter: LeaseCounter | undefined;
  readonly #holdersForRegions: number | undefined;

  constructor(
    store: Pick<KeyStore, "commit">,
    limit: Operations["limit"],
    queue: WaitQueue,
    { counter, holdersForRegions }: ReservationOptions = {},
  ) {
    this.#store = store;
    this.#limit = limit;
    this.#queue = queue;
    this.#counter = counter;
    this.#holdersForRegions = holdersForRegions;
  }

  readonly reserve: Operations["reserve"] = (keyState, said, nowMs) => {
    const call = withSent(keyState, said, nowMs);
    const { cost, holders } = call;
    this.#queue.serve(keyState);
    const isBehind = this.#queue.aheadOf(keyState, call, nowMs).length > 0;
    if (keyState.policy.lease !== undefined || isBehind) return this.#reserveBehind(keyState, call, nowMs);
    // The region's object has too few holders now, and they come here.
    if (holders !== undefined && !hasRegions(keyState, this.#holdersForRegions, nowMs))
      return this.#reserveBehind(keyState, call, nowMs);
    const noted = noteMessage(keyState, call, nowMs);
    // A later message came first. The caller is answered, and nothing is reserved.
    if (noted === undefined) return this.#limit(keyState, alone(call), nowMs);
    const { admitted, accounts = [], rules: decided } = decideTogether(noted.rules, nowMs, cost);
    const decisions = admitted ? decided : behindOlder(this.#queue, keyState, call, nowMs, decided);
    if (!admitted && isProvisionallyBlocked(keyState, call, nowMs)) {
      this.#commit(keyState, noted, nowMs);
      return this.#limit(keyState, alone(call), nowMs);
    }
    const rules = noted.rules.map((report, index) => ({
      ...report,
      account: (cost === 0 ? undefined : accounts[index]) ?? report.account,
    }));
    const leaves = leaving(keyState, call, rules, this.#holdersForRegions, nowMs);
    if (leaves !== undefined) {
      const moved = rules.map((rule) => ({ ...rule, wanted: 0, demand: 0 }));
      this.#commit(keyState, { ...noted, holder: { ...noted.holder, untilMs: nowMs }, rules: moved }, nowMs);
      const units = Object.fromEntries(rules.map(({ rule }) => [rule.name, 0]));
      return { rules: decisions, reserved: { ttlMs: 0, isNew: noted.isNew, units, ...leaves } };
    }
    const { reserved: got, isFull } = this.#grant(keyState, call, { ...noted, rules }, nowMs);
    const reserved = call === said ? got : { ...got, sentThere: holders };
    // A holder whose bucket is empty while others want units as well need not ask before it has a unit.
    const denial = isFull
      ? { next: decisions.map((rule) => withoutUnits(rule, reserved)) }
      : cacheableDenial(keyState, call.holder, call, false, nowMs);
    const isCached = admitted || denial.next !== undefined;
    const firmMs = isCached ? 0 : cacheableForMs(keyState, call.holder, false);
    return { rules: decisions, reserved, ...denial, ...(firmMs > 0 && { firmForMs: firmMs }) };
  };

  /** While callers wait, a holder is granted nothing. Its returned units serve them before its own cost. */
  #reserveBehind(keyState: KeyState, call: Params<"reserve">, nowMs: number): MaybePromise<Answer> {
    const reserved = this.settleMessage(keyState, call, nowMs);
    const next = peekTurn(this.#queue, keyState, { ...seenAs(call), cost: 1 }, nowMs);
    const isDenied = next.some(({ success }) => !success);
    const answered = this.#limit(keyState, alone(call), nowMs);
    return andThen(answered, (answer): Answer =>
      reserved === undefined ? answer : { ...answer, reserved, ...(isDenied && { next }) },
    );
  }

  /** The first half of `reserve`, before the pool is called; `undefined`: a later message came first. */
  settleMessage(keyState: KeyState, call: Params<"reserve">, nowMs: number): Reserved | undefined {
    const rules = Object.entries(call.rules).map(
      ([name, rule]) => [name, { ...rule, wanted: rule.kept }] as const,
    );
    const message = { ...call, takesBucket: undefined, rules: Object.fromEntries(rules) };
    const noted = noteMessage(keyState, message, nowMs);
    return noted && this.#grant(keyState, message, noted, nowMs).reserved;
  }

  /** The second half: reserves wanted units, also new ones from the pool; `undefined`: see `settleMessage`. */
  grantNoted(keyState: KeyState, call: Params<"reserve">, nowMs: number): Reserved | undefined {
    const noted = noteMessage(keyState, call, nowMs, true);
    return noted && this.#grant(keyState, call, noted, nowMs).reserved;
  }

  readonly giveBack: Operations["giveBack"] = (keyState, { holder, turn, used, left = {} }, nowMs) => {
    const rules = Object.fromEntries(
      Object.entries(used).map(([name, units]) => [
        name,
        { used: units, kept: 0, wanted: 0, left: (Object.hasOwn(left, name) && left[name]) || 0 },
      ]),
    );
    const noted = noteMessage(keyState, { holder, turn, ttlMs: 0, rules }, nowMs);
    if (noted === undefined) return;
    // Whether no isolate has units of the key any more.
    const isLast = noted.rules.every(({ account }) => unstoredOf(account) === 0);
    const isAhead = keyState.ruleStates.some(({ stored }) => stored !== undefined && stored.ahead > 0);
    this.#commit(keyState, noted, nowMs, isLast && isAhead);
    this.#queue.serve(keyState);
  };

  #grant(keyState: KeyState, call: Params<"reserve">, noted: HolderReport, nowMs: number) {
    const { ttlMs, units, buckets, isFull = false, moved = [] } = granted(keyState, call, noted, nowMs);
    const count = units.reduce((sum, each) => sum + each, 0);
    const label = [publicName(keyState.policy.name)];
    if (count > 0) this.#counter?.add("units_reserved", label, count);
    if (buckets !== undefined) this.#counter?.add("buckets_reserved", label);
    const { hold } = noted.holder;
    // Kept units never expire sooner than in an earlier answer: the holder relies on it if this one is lost.
    const keptHolds = noted.rules.flatMap(({ account, kept }) =>
      kept > 0 ? (holdWith(account.holds, hold) ?? []) : [],
    );
    const expiresAtMs = Math.max(nowMs + heldMs(ttlMs), ...keptHolds.map((each) => each.expiresAtMs));
    const spentMs = keptHolds.map((each) => each.spendableUntilMs ?? each.expiresAtMs);
    const spendableUntilMs = Math.max(nowMs + ttlMs, ...spentMs);
    const rules = noted.rules.map((report, index) => {
      const { rule, account, kept } = report;
      const bucket = buckets?.[index];
      const got = units[index] ?? 0;
      // Until its next message says that it has the new rate, the holder may have the one that it had.
      const perWindow = Math.max(bucket?.rate.units ?? 0, kept === 0 ? 0 : report.rate);
      const most = bucket === undefined ? kept + got : Math.max(kept, bucket.most);
      // Units in place of a bucket are held once; its burst is held twice, while the holder may still have it.
      const held = bucket ? heldFor(rule, most, perWindow) : heldFor(rule, kept, perWindow) + got;
      const without = kept === 0 ? account : settle(rule, account, nowMs, hold, 0);
      const rate = perWindow > 0 && { rate: rateOf(rule, perWindow) };
      // What its bucket lacks was used: the rest of the account lacks that much less. A log or window is cut from what is left.
      const missing = held - got - heldFor(rule, kept, report.rate);
      const isPart = rate !== false && rule.algorithm.isCutByWindow !== true;
      const back = isPart ? missing : (moved[index] ?? 0);
      const before = credited(rule, isPart ? broughtTo(rule, without, nowMs) : without, nowMs, back);
      const lacks = rate !== false && { lacks: Math.max(0, most - report.level - got) };
      const { group } = noted.holder;
      const ofKept = kept > 0 ? heldUnits(account.holds).capacity : 0;
      const of = { capacity: Math.max(ofKept, capacityOf(rule)), ...(group !== undefined && { group }) };
      const holding = { id: hold, units: held, expiresAtMs, spendableUntilMs, ...rate, ...lacks, ...of };
      const after = held === 0 ? without : place(before, holding);
      const change = { left: report.rate, now: perWindow, moved: moved[index] ?? 0 };
      const rates = report.rates && withRate(report.rates, change, nowMs);
      return { ...report, mayHave: report.mayHave + got, rates, account: after };
    });
    const holder = { ...noted.holder, untilMs: expiresAtMs };
    this.#commit(keyState, { id: noted.id, holder, rules }, nowMs);
    this.#queue.serve(keyState);
    const named = <Value>(values: readonly Value[]) =>
      Object.fromEntries(rules.map(({ rule }, index) => [rule.name, values[index] as Value]));
    const reserved: Reserved = {
      ttlMs,
      isNew: noted.isNew,
      units: named(units),
      ...(buckets && { buckets: named(buckets) }),
    };
    // Of a pool only its last answer is known here, not the other regions.
    if (keyState.policy.pool !== undefined) return { reserved, isFull };
    const prospects = rules.map((each) => [each.rule.name, prospectOf(each, ttlMs, nowMs)]);
    const hasProspects = { prospects: Object.fromEntries(prospects) as Record<string, Prospect> };
    return { reserved: { ...reserved, ...hasProspects }, isFull };
  }

  #commit(keyState: KeyState, report: Omit<HolderReport, "isNew">, nowMs: number, isExact = false): void {
    const { id, rules, holder } = report;
    const accounts = rules.map(({ account }) => account);
    // Without a change there is no commit: that could write.
    if (keyState.ruleStates.some(({ account }, index) => account !== accounts[index]))
      this.#store.commit(keyState, { accounts, isExact }, nowMs);
    if (!keyState.holders.hasRoomFor(id)) return;
    const units = rules.map(({ rule, used, demand = 0, mayHave: had, rates, ...said }) => {
      const wanted = wishOf(id, said, maxUnits(rule, said.isFar));
      return [rule.name, { used, wanted, demand, mayHave: had, rates }] as const;
    });
    keyState.holders.set(id, { ...holder, rules: new Map(units) });
  }
}

/** The call without units for its holder. */
function alone({ cost, isBatched, ...call }: Params<"reserve">) {
  return { ...seenAs(call), cost, isBatched };
}

function seenAs({ priority, group, namedBy, inForce }: SeenBy): SeenBy {
  return { priority, group, namedBy, inForce };
}

/** In this many steps an answer tells how a quota refills while a holder has its units. */
const GAIN_STEPS = 4;

function prospectOf({ rule, account }: RuleAccount, ttlMs: number, nowMs: number): Prospect {
  const resetAfterMs = fullAtMs(rule, account, nowMs) - nowMs;
  const free = remainingOf(rule, account, nowMs);
  const gain = (step: number) =>
    remainingOf(rule, account, nowMs + Math.floor((ttlMs * step) / GAIN_STEPS)) - free;
  if (gain(GAIN_STEPS) === 0 || account.holds.some(({ rate }) => rate !== undefined)) return { resetAfterMs };
  return { resetAfterMs, gains: Array.from({ length: GAIN_STEPS }, (_, index) => gain(index + 1)) };
}

type OwnBuckets = NonNullable<ReturnType<typeof ownBuckets>>;
type Granted = Pick<OwnBuckets, "ttlMs"> & { readonly units: readonly number[] } & Partial<OwnBuckets>;

/** How many units to grant, and for how long: above the shortest lifetime only if they can be spared. */
function granted(keyState: KeyState, call: Params<"reserve">, noted: HolderReport, nowMs: number): Granted {
  const { ttlMs: askedMs, isShort } = call;
  const { id, rules, holder } = noted;
  const { holders, policy } = keyState;
  const { leastMs, mostMs } = policy.reservation;
  const ttlMs = Math.min(askedMs, mostMs, keyState.endsByMs - nowMs);
  if (
    !policy.localDecisions.admits ||
    !holders.hasRoomFor(id) ||
    holder.replaced !== undefined ||
    ttlMs < Math.min(askedMs, MIN_USEFUL_TTL_MS)
  )
    return { ttlMs: Math.max(0, ttlMs), units: rules.map(() => 0) };
  const cut = ownBuckets(keyState, call, noted, nowMs);
  if (cut !== undefined) return cut;
  const wish = (report: RuleReport, part: number): Wish => {
    const { rule, account, kept, isFar } = report;
    // A group's holders share its part as those of a key share its limit.
    const ofGroup = partOfGroup(rule, account, nowMs);
    const group = ofGroup && holder.group;
    const max = maxUnits({ ...rule, capacity: ofGroup?.part ?? rule.capacity }, isFar);
    const others = holders.others(id, rule.name, max, nowMs, group);
    const free = remainingOf(rule, account, nowMs);
    const isBounded = others.isContested && callerIn(id) !== undefined;
    // Until it says that it has given up its rate, that counts as well.
    const own = heldFor(rule, kept, report.rate);
    const each = report.rate > 0 && rule.algorithm.isCutByWindow === true ? 2 : 1;
    const room = isBounded ? (roomOfCaller(report, 0, { id, ...holder }).units - own) / each : Infinity;
    return {
      wanted: wishOf(id, { kept, wanted: Math.floor(report.wanted * part) }, max),
      kept,
      free: Math.max(0, Math.floor(Math.min(free, room))),
      max,
      heldByOthers: (ofGroup?.held ?? unstoredOf(account)) - kept,
      wantedByOthers: others.wanted,
      isShort,
    };
  };
  const wishes = rules.map((report) => wish(report, 1));
  const units = grantedTogether(wishes);
  const isSpared = wishes.every(({ kept, free }, index) => isSpare(kept + (units[index] ?? 0), free));
  if (ttlMs <= leastMs || isSpared) return { ttlMs, units };
  return { ttlMs: leastMs, units: grantedTogether(rules.map((report) => wish(report, leastMs / askedMs))) };
}

const NOTHING: Reserving = { used: 0, kept: 0, wanted: 0 };

/** What a holder reports of one rule, whose account has that settled. */
interface RuleReport extends RuleAccount {
  /** Since the holder began. */
  readonly used: number;
  /** As it says. What counts of a client's number is `wishOf`. */
  readonly wanted: number;
  /** It keeps units of a log or window, and while its message is under way its calls use more. */
  readonly isFar: boolean;
  /** The units that its calls need in a millisecond. */
  readonly demand: number | undefined;
  /** Of its bucket, the most units in it; otherwise those that it keeps. */
  readonly kept: number;
  /** The rate that it has, and how many units there are. */
  readonly rate: number;
  readonly level: number;
  /** Of those with a rate: units that it returns unused. */
  readonly left: number;
  /** The units that it may have kept, if it has used none. */
  readonly mayHave: number;
  readonly rates: readonly GivenRate[] | undefined;
}

interface HolderReport {
  readonly id: string;
  readonly rules: readonly RuleReport[];
  readonly holder: Omit<KnownHolder, "rules">;
  /** The holder gets a new hold, and must not spend kept units (`Reserved.isNew`). */
  readonly isNew: boolean;
}

type Message = SeenBy &
  Pick<Params<"reserve">, "holder" | "turn" | "ttlMs" | "rules" | "takesBucket" | "mayAskRegion" | "holders">;

/** Reads a holder's message; `undefined`: a later one came first. `isAgain`: `settleMessage` has read it. */
function noteMessage(keyState: KeyState, message: Message, nowMs: number, isAgain = false) {
  const { holders } = keyState;
  const { holder: id, turn, ttlMs } = message;
  holders.forgetEnded(nowMs);
  const before = holders.get(id);
  if (before !== undefined && (isAgain ? turn < before.turn : turn <= before.turn)) return undefined;
  const reports = keyState.seenBy(message).map(({ rule, account }) => {
    const { rules } = message;
    const said = (Object.hasOwn(rules, rule.name) && rules[rule.name]) || NOTHING;
    const { used, kept, wanted, demand, rate = 0, level = kept, left = 0 } = said;
    const { used: usedBefore = 0, rates = UNKNOWN_RATES } = before?.rules.get(rule.name) ?? {};
    const { isCutByWindow } = rule.algorithm;
    const held = before && holdWith(account.holds, before.hold);
    const most = mayHave(rule, held, before, nowMs);
    const having = { kept, rate, level, left };
    const returned = returnedBy(id, having, most);
    return {
      ...having,
      left: returned,
      rule,
      account,
      used: Math.max(used, usedBefore),
      most,
      mayHave: kept === 0 ? 0 : held?.rate === undefined ? kept : most - returned,
      wanted,
      isFar: message.takesBucket === true && isCutByWindow === true,
      rates: isCutByWindow && message.holders !== undefined ? rates : undefined,
      demand: demand === undefined ? undefined : demand / 1_000,
      held,
      delta: Math.max(0, used - usedBefore),
    };
  });
  // The holder keeps or used units that its hold here lacks: this object crashed, or an old message came
  // late. Those units are covered by the restored record, or settled. An old hold stays until it expires.
  const isNew =
    before === undefined ||
    reports.some(({ held, ...said }) =>
      claimsMore(id, { ...said, stays: heldFor(said.rule, said.kept, said.rate) }, held),
    );
  const isHeld = (hold: string) => reports.some(({ account }) => holdWith(account.holds, hold) !== undefined);
  const replaced = isNew && before !== undefined && isHeld(before.hold) ? before.hold : before?.replaced;
  const group = message.group ?? before?.group;
  const holder = {
    turn,
    atMs: nowMs,
    hold: isNew ? `${id}.${turn}` : before.hold,
    ...(replaced !== undefined && isHeld(replaced) && { replaced }),
    untilMs: nowMs + ttlMs,
    ...(message.holders !== undefined && {
      count: message.holders,
      knowsFew: reports.every(({ kept }) => kept === 0),
    }),
    ...(group !== undefined && { group }),
  };
  const rules = reports.map(({ held, delta, ...report }): RuleReport => {
    const { rule, kept, rate, left } = report;
    if (isNew) return { ...report, kept: 0, rate: 0, level: 0, mayHave: 0, rates: report.rates && [] };
    if (held === undefined) return report;
    // What came at its rate was counted as it came. Of its units, those that it neither keeps nor returns are used.
    const stays = heldFor(rule, kept, rate);
    const used = held.rate === undefined ? delta : Math.max(0, held.units - stays - left);
    const settled = settleRate(report, { hold: held, used, rate }, nowMs);
    if (kept === 0) return { ...report, account: settled };
    const { rate: heldRate, ...plain } = held;
    const going = heldRate !== undefined && rate > 0 && { rate: { ...heldRate, units: rate } };
    return { ...report, account: place(settled, { ...plain, units: stays, ...going }) };
  });
  return { id, rules, holder, isNew };
}
