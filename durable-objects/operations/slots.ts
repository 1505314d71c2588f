/**
 * Slots that holders lease by themselves: isolates, and clients in their callers' processes.
 *
 * A holder has some slots of a key for a while, and says in each message all that it has. They are one claim of the
 * holder, which is stored before the answer leaves, so a crash forgets none. The claim lasts longer than the holder may
 * lease, by the longest of its leases: a caller trusts its lease also when its isolate has gone. A lease that is older than
 * a pace is handed over, and is a claim of its own from then on, as the object's own leases are. A younger one is known
 * to its holder alone; the object tells the holder of an end that came here. Callers of a client lose their leases with its
 * process, so it hands none over, and its claim ends with its time.
 *
 * No message can free a slot that is in use: a holder keeps no more slots than the last answer that it heard left it, one
 * message is under way, and an older one is not applied. What was in memory about the order of messages is lost in a
 * crash; so memories have names, and a message for another one changes nothing.
 *
 * While callers wait, slots that are free go home, and calls are served in their order. Otherwise a holder has what it
 * needs, or its part. Slots that it lacks are owed to it: the object gives them to nobody else when they become free.
 */
import { outstandingOf, UNTOUCHED } from "../../core/accounts/account.ts";
import { holdWith, withHold, withoutHold } from "../../core/accounts/hold.ts";
import { tokenPassedMs } from "../../core/algorithms/concurrency.ts";
import { randomId } from "../../core/clock.ts";
import { publicName, relaxedRule } from "../../core/policies/policy.ts";
import type { GivenSlots, Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
import { MAX_REST_MS, MAX_YOUNG_MS, PACE_MS } from "../../core/protocol/messages.ts";
import { callerIn, markOf } from "../../core/protocol/names.ts";
import type { Counter } from "../../core/stats/tally.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { Claim } from "../storage/records.ts";
import { mayRestWith, partOfSlots } from "./client-bounds.ts";
import { handedLeases, handedMs, heard, keepsFrom, type KnownHolder, newHolder } from "./known-holders.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** Of many holders each asks more rarely: the object hears of 250 a second. */
const PACE_OF_HOLDER_MS = 4;
/** A holder may lease slots for so many paces after a message, and this. */
const LIFE_PACES = 4;
const LIFE_MS = 500;
/**
 * A client that only keeps its leases lives for as long as it has done so, up to this and its policy's ttl: so it need say
 * it seldom, and when its process dies its slots are free that soon.
 */
const MAX_LIFE_MS = 9_000;
/** By so much a holder's clock and the object's may differ while it counts its life. */
const MARGIN_MS = 300;
/** A row lasts longer, so that not each message writes one. After a crash the slots of a holder that has gone do, too. */
const ROW_MS = 30_000;
/** A holder that lacks slots asks again within this time. */
const OWED_MS = 1_000;
const OWED = "+owed";
/** Fencing tokens of an answer, and those of a holder that grants many leases: as many as it granted, this many times. */
const TOKENS = 1_000;
const TOKENS_OF_GRANTED = 4;
const MAX_TOKENS = 65_536;
/** A token is the time in microseconds. If they are further ahead of it, as after a false figure, no holder has more. */
const MAX_AHEAD_MS = 1_000;
/** So many calls of a holder that rests may pass one that waits at the object, of which the holder has not heard. */
const TOKENS_OF_REST = 64;
/** The most leases of a holder that have ended elsewhere since its last message. Ends of others are not known here. */
const MAX_ENDED = 1_024;

/** What is known of a key's holders until a crash. */
interface Memory {
  readonly name: string;
  readonly holders: Map<string, KnownHolder>;
  /** A timer is set for the rows of holders that have gone. */
  isTimed: boolean;
}

export class SlotOwner {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #counter: Pick<Counter, "add"> | undefined;
  readonly #memories = new WeakMap<KeyState, Memory>();

  constructor(store: KeyStore, queue: WaitQueue, counter?: Pick<Counter, "add">) {
    this.#store = store;
    this.#queue = queue;
    this.#counter = counter;
  }

  readonly take = (keyState: KeyState, call: SlotsCall, nowMs: number): Slots => {
    const memory = this.#memoryOf(keyState);
    const claim = slotsOf(keyState, call.holder);
    const isFirst = call.memory === undefined && claim === undefined && call.kept === 0;
    const holder = memory.holders.get(call.holder) ?? newHolder(claim);
    if (call.turn === holder.turn && holder.answer !== undefined) return holder.answer;
    const isApplied = (call.memory === memory.name || isFirst) && call.turn > holder.turn;
    // The name is to be known when the holder comes again.
    keyState.isAwaited = !isApplied;
    if (!isApplied) return { slots: { memory: memory.name } };
    memory.holders.set(call.holder, holder);
    const given = this.#apply(keyState, memory, holder, claim, call, nowMs);
    holder.answer = { slots: { memory: memory.name, given } };
    this.#forget(keyState, memory);
    this.#setTimer(keyState, memory, nowMs);
    this.#queue.serve(keyState);
    return holder.answer;
  };

  /** If the write throws, nothing has changed. */
  #apply(
    keyState: KeyState,
    memory: Memory,
    holder: KnownHolder,
    claim: Claim | undefined,
    call: SlotsCall,
    nowMs: number,
  ): GivenSlots {
    const { accounts } = keyState;
    const { index, name, rule } = leasedRule(keyState);
    const account = accounts[index] ?? UNTOUCHED;
    const isClient = callerIn(call.holder) !== undefined;
    const had = holdWith(account.holds, call.holder)?.units ?? 0;
    // Its claim has ended: it has what it gets now, and none of its leases goes on.
    const isNew = call.kept > had;
    const kept = isNew ? 0 : call.kept;
    const handed = isNew ? [] : handedLeases(keyState, holder, call, had - kept, name, nowMs);
    const capacity = rule?.capacity ?? 0;
    // What is owed to holders is not in use.
    const others = outstandingOf(account) - this.owed(keyState) - had;
    const inUse = others + kept + handed.reduce((sum, { units }) => sum + units, 0);
    const isHome = this.#queue.hasOthers(keyState, call.holder);
    const mayRest =
      !isHome && !isClient && mayRestWith(memory.holders, call, { others: inUse - kept, capacity }, nowMs);
    const rest = mayRest ? call.rest : undefined;
    const wanted = rest?.units ?? call.wanted;
    const part = isHome ? 0 : partOfSlots(memory.holders, { ...call, wanted }, { account, capacity }, nowMs);
    const more = Math.max(0, Math.min(part - kept, capacity - inUse));
    // Clients may take any number of names: nothing is owed to them.
    const owed = isClient || rest !== undefined ? 0 : Math.max(0, part - kept - more);
    const units = kept + more;
    const restMs = rest !== undefined && units > 0 ? Math.min(rest.ms, MAX_REST_MS) : 0;
    const aheadMs = rule === undefined ? 0 : tokenPassedMs(rule.algorithm, account.state) - nowMs;
    const mayHave = aheadMs > MAX_AHEAD_MS ? TOKENS : tokensFor(holder, call);
    const count = restMs > 0 ? TOKENS_OF_REST : mayHave;
    const tokens = units === 0 ? undefined : rule?.algorithm.leasing?.tokens?.(account.state, nowMs, count);
    const paceMs = Math.max(PACE_MS, PACE_OF_HOLDER_MS * memory.holders.size);
    const keepsFromMs = isClient ? keepsFrom(holder, call, nowMs) : nowMs;
    const keepsMs = Math.min(nowMs - keepsFromMs, MAX_LIFE_MS, keyState.policy.lease?.ttlMs ?? 0);
    const lifeMs = Math.max(Math.max(0, restMs - paceMs) + LIFE_PACES * paceMs + LIFE_MS, keepsMs);
    const ttlMs = Math.min(call.ttlMs, MAX_YOUNG_MS);
    const aliveUntilMs = nowMs + lifeMs + MARGIN_MS;
    const neededUntilMs = aliveUntilMs + ttlMs;
    // Leases of an earlier, longer life may end later.
    const expiresAtMs = Math.max(claim?.expiresAtMs ?? 0, neededUntilMs);
    const own = { id: call.holder, units, expiresAtMs };
    const slots: Claim = { ...own, kind: "lease", units: { [name]: units }, ttlMs: lifeMs, isSlots: true };
    const hasRow = units === had && expiresAtMs <= holder.rowUntilMs;
    const rowUntilMs = hasRow ? holder.rowUntilMs : Math.max(expiresAtMs, neededUntilMs + ROW_MS);
    const owedTo = owedId(call.holder);
    let holds = withoutHold(withoutHold(account.holds, call.holder), owedTo);
    for (const hold of units > 0 ? [own, ...handed] : handed)
      holds = withHold(holds, {
        id: hold.id,
        units: hold.units,
        expiresAtMs: hold.expiresAtMs,
        isStored: true,
      });
    if (owed > 0)
      holds = withHold(holds, { id: owedTo, units: owed, expiresAtMs: nowMs + OWED_MS, isStored: true });
    const last = holds.findLast(({ id }) => id !== call.holder && !isOwed(id));
    const change = {
      accounts: accounts.with(index, { state: tokens?.state ?? account.state, holds }),
      put: [
        ...handed.map(({ claim: lease }) => lease),
        ...(units > 0 && !hasRow ? [{ ...slots, expiresAtMs: rowUntilMs, leased: call.leased }] : []),
      ],
      end: units === 0 && claim !== undefined ? [claim] : [],
      sooner: units > 0 ? [{ ...slots, leased: call.leased }] : [],
    };
    this.#store.commit(keyState, change, nowMs);
    this.#count(keyState, holder, call);
    heard(holder, call);
    holder.tokens = mayHave;
    holder.heardAtMs = nowMs;
    holder.paceMs = paceMs;
    holder.keepsFromMs = keepsFromMs;
    holder.resting = restMs > 0 ? units : 0;
    holder.wanted = wanted;
    for (const [id, atMs] of holder.asked)
      if (nowMs >= atMs + handedMs(holder) + MAX_LIFE_MS) holder.asked.delete(id);
    holder.aliveUntilMs = Math.max(holder.aliveUntilMs, aliveUntilMs);
    holder.rowUntilMs = rowUntilMs;
    const { reset, waitsEnded } = holder;
    return {
      more,
      isNew,
      ...(reset && { resetAgoMs: nowMs - reset.atMs }),
      ...(waitsEnded && { waitsEndedAgoMs: nowMs - waitsEnded.atMs }),
      lifeMs,
      paceMs,
      ...(restMs > 0 && { restMs }),
      ttlMs,
      tokens: tokens === undefined ? [0, 0] : [tokens.from, tokens.from + count],
      ended: [...holder.ended.keys()],
      isHome,
      most: part,
      remaining: Math.max(0, capacity - inUse - more),
      resetAfterMs: Math.max(0, (last?.expiresAtMs ?? nowMs) - nowMs),
    };
  }

  #count(keyState: KeyState, holder: KnownHolder, call: SlotsCall): void {
    const label = [publicName(keyState.policy.name)];
    const add = (name: "leases_granted" | "leases_released", before: number, now: number) => {
      // No holder grants more, of this answer's tokens and the last one's: a client may say anything.
      if (now > before) this.#counter?.add(name, label, Math.min(now - before, 3 * holder.tokens));
    };
    if (isCounted(holder, call)) {
      add("leases_granted", holder.granted, call.granted);
      add("leases_released", holder.released, call.released);
    }
    holder.granted = call.granted;
    holder.released = call.released;
    holder.leased = call.leased;
  }

  /** Whether a lease is not known here, but a holder that lives may know it, and has had no time to hand it over. */
  mayBeYoung(keyState: KeyState, id: string, nowMs: number): boolean {
    if (keyState.claims.has(id)) return false;
    return this.#holdersOf(keyState, id, nowMs).some((holder) => {
      const { ended, asked, heardAtMs } = holder;
      if (ended.has(id)) return false;
      const askedAtMs = asked.get(id) ?? nowMs;
      if (asked.size < MAX_ENDED) asked.set(id, askedAtMs);
      return heardAtMs < askedAtMs + handedMs(holder);
    });
  }

  /** A lease that is not known here was released: its holder frees the slot. @returns whether it may be its lease */
  release(keyState: KeyState, id: string, nowMs: number): boolean {
    let isTaken = false;
    for (const { ended } of this.#holdersOf(keyState, id, nowMs))
      if (!ended.has(id) && ended.size < MAX_ENDED) {
        ended.set(id, Infinity);
        isTaken = true;
      }
    return isTaken;
  }

  /** A call is to wait, and comes before all that is owed to other isolates. @param mark of its own one */
  settleOwed(keyState: KeyState, mark: string | undefined, nowMs: number): void {
    if (this.owed(keyState) === 0) return;
    const isOthers = (id: string) => isOwed(id) && markOf(id) !== mark;
    const accounts = keyState.accounts.map(({ state, holds }) => ({
      state,
      holds: holds.filter(({ id }) => !isOthers(id)),
    }));
    this.#store.commit(keyState, { accounts }, nowMs);
  }

  /** Slots that go to holders as soon as they are free, so that other calls do not take them before. */
  owed({ accounts }: KeyState): number {
    let owed = 0;
    for (const { holds } of accounts) for (const { id, units } of holds) if (isOwed(id)) owed += units;
    return owed;
  }

  /** The leases that holders have granted until now are over. */
  reset(keyState: KeyState, nowMs: number): void {
    // Those that only a row says hear of it too.
    this.#holdersAt(keyState, nowMs);
    for (const holder of this.#memoryOf(keyState).holders.values()) {
      holder.reset = { atMs: nowMs, turn: Infinity };
      holder.leased = 0;
      // Its row was written with the end that is known here.
      holder.rowUntilMs = -Infinity;
    }
  }

  /** Holders end the waits of their callers until now, when they hear of it: with their next message. */
  endWaits(keyState: KeyState, nowMs: number): void {
    for (const holder of this.#holdersAt(keyState, nowMs))
      holder[1].waitsEnded = { atMs: nowMs, turn: Infinity };
  }

  /** The leases of a holder: as it said last, or as many as it may have. */
  leasedBy(keyState: KeyState, { id, units }: Claim): number {
    const holder = this.#memories.get(keyState)?.holders.get(id);
    const isKnown = holder !== undefined && holder.turn > 0;
    return isKnown ? holder.leased : Math.max(0, ...Object.values(units));
  }

  /** Those with the mark of this id. */
  #holdersOf(keyState: KeyState, id: string, nowMs: number): KnownHolder[] {
    return this.#holdersAt(keyState, nowMs).flatMap(([name, holder]) =>
      markOf(name) === markOf(id) ? [holder] : [],
    );
  }

  /** Those that live. What is only stored has begun before this memory. */
  #holdersAt(keyState: KeyState, nowMs: number): [name: string, holder: KnownHolder][] {
    const { holders } = this.#memoryOf(keyState);
    for (const claim of keyState.claims.values())
      if (claim.isSlots === true && !holders.has(claim.id)) {
        // It may rest.
        const aliveUntilMs = nowMs + MAX_REST_MS + LIFE_PACES * PACE_MS + LIFE_MS;
        holders.set(claim.id, { ...newHolder(claim), aliveUntilMs });
      }
    return [...holders].filter(([, { aliveUntilMs }]) => nowMs < aliveUntilMs);
  }

  #memoryOf(keyState: KeyState): Memory {
    const known = this.#memories.get(keyState);
    if (known !== undefined) return known;
    const memory = { name: randomId(), holders: new Map<string, KnownHolder>(), isTimed: false };
    this.#memories.set(keyState, memory);
    return memory;
  }

  /**
   * A key without calls leaves memory, which is as a crash. So when a holder may lease no more, its row is made to end with
   * its slots, or is deleted with them. Not of those that rest: for them the object would stay awake.
   */
  #setTimer(keyState: KeyState, memory: Memory, nowMs: number): void {
    const atMs = Math.min(
      ...[...memory.holders].flatMap(([name, holder]) =>
        holder.resting === 0 && outlasts(holder, slotsOf(keyState, name)) ? [holder.aliveUntilMs] : [],
      ),
    );
    if (memory.isTimed || atMs === Infinity) return;
    memory.isTimed = true;
    this.#queue.later(keyState, Math.max(1, atMs - nowMs), (laterMs) => {
      memory.isTimed = false;
      if (!this.#store.isHere(keyState)) return;
      this.#endRows(keyState, memory, laterMs);
      this.#setTimer(keyState, memory, laterMs);
    });
  }

  #endRows(keyState: KeyState, { holders }: Memory, nowMs: number): void {
    const ended = [...holders].flatMap(([name, holder]) => {
      const slots = slotsOf(keyState, name);
      const isOver = slots !== undefined && nowMs >= holder.aliveUntilMs && outlasts(holder, slots);
      return isOver ? [{ holder, slots }] : [];
    });
    this.#store.commit(
      keyState,
      { accounts: keyState.accounts, put: ended.map(({ slots }) => slots) },
      nowMs,
    );
    for (const { holder, slots } of ended) holder.rowUntilMs = slots.expiresAtMs;
  }

  /** Holders without slots are forgotten, unless their leases may still be repeated. */
  #forget(keyState: KeyState, { holders }: Memory): void {
    for (const [name, { handed }] of holders)
      if (slotsOf(keyState, name) === undefined && handed.size === 0) holders.delete(name);
  }
}

function owedId(holder: string): string {
  return `${holder}${OWED}`;
}

function isOwed(id: string): boolean {
  return id.endsWith(OWED);
}

/** Whether the row of a holder's slots ends later than they do. */
function outlasts({ rowUntilMs }: KnownHolder, slots: Claim | undefined): boolean {
  return slots !== undefined && slots.expiresAtMs < rowUntilMs;
}

function slotsOf({ claims }: KeyState, holder: string): Claim | undefined {
  const claim = claims.get(holder);
  return claim?.isSlots === true ? claim : undefined;
}

/** Whether it is known how many leases a holder had granted before: not what it had counted before this memory. */
function isCounted(holder: KnownHolder, call: SlotsCall): boolean {
  return holder.turn > 0 || call.turn === 1;
}

/** The fencing tokens for a holder's leases until its next message: without any, each lease is a message. */
function tokensFor(holder: KnownHolder, call: SlotsCall): number {
  const granted = isCounted(holder, call) ? call.granted - holder.granted : 0;
  return Math.min(MAX_TOKENS, Math.max(TOKENS, TOKENS_OF_GRANTED * granted, Math.floor(holder.tokens / 2)));
}

/** The rule that leases, and whether holders may have its slots: not while it is compared with another version's. */
function leasedRule({ ruleStates, policy }: KeyState) {
  const index = Math.max(
    0,
    ruleStates.findIndex(({ rule }) => rule.lease !== undefined),
  );
  const state = ruleStates[index];
  const rule = relaxedRule(policy);
  return { index, name: state?.rule.name ?? "", rule: rule === state?.rule ? rule : undefined };
}
