/**
 * Leases that this isolate grants by itself, from slots of a key that it has for a while: no message for a pair of
 * acquire and release. durable-objects/operations/slots.ts has the protocol, and what the object promises.
 *
 * The isolate takes slots of a key with several acquires in a pace, as many as its leases need. Its requests share only
 * plain data: each acquire or release may send the next message, and one request at a time goes on when no other comes.
 */
import { HolderClock, Latch } from "../core/clock.ts";
import {
  costOf,
  type Policy,
  publicName,
  relaxedRule,
  type Rule,
  versionOf,
} from "../core/policies/policy.ts";
import type { Decided, Lease, Slots } from "../core/protocol/answers.ts";
import type { AcquireParams, SlotsCall } from "../core/protocol/calls.ts";
import { MAX_REST_MS, MAX_YOUNG_MS, PACE_MS } from "../core/protocol/messages.ts";
import { markOf } from "../core/protocol/names.ts";
import { Problem } from "../core/protocol/problems.ts";
import type { ClientContext } from "./call-gate.ts";
import { handedOf, IsolateKeySlots, MAX_HANDED, type WaitingCall } from "./isolate-key-slots.ts";
import { SlotsByKey } from "./key-slots.ts";
import { pause } from "./reservation-cache.ts";

/** The clock may be set back by so much unseen. */
const MARGIN_MS = 250;
/** The most leases of the object for callers of this isolate whose time counts as demand. */
const MAX_OTHERS = 1_024;
/** The runtime ends background work of a request after 30 s. */
const RUN_MS = 20_000;
const SILENT_MS = 2_000;
/** A request may make 1,000 calls to objects, and has others to make. */
const MAX_MESSAGES = 200;

/** A call that this isolate may grant. */
type OwnCall = AcquireParams & Pick<WaitingCall, "makeId">;

/** One request's work in the background. */
interface Run {
  readonly untilMs: number;
  checkedAtMs: number;
}

/** The slots of this isolate, by key. */
export class IsolateSlots {
  readonly #keys = new SlotsByKey<IsolateKeySlots, Policy>();
  readonly #clock = new HolderClock(MARGIN_MS);
  #run: Run | undefined;

  #now(readMs: number): number {
    // After the clock is set back, slots would be leased for longer than the object expects.
    if (this.#clock.read(readMs)) this.#stop();
    return this.#clock.latestMs;
  }

  #stop(): void {
    for (const slots of this.#keys.all) slots.restart(this.#clock.latestMs);
  }

  /** Grants a lease from a free slot; `undefined`: the object decides it. */
  acquire(caller: ClientContext, policy: Policy, key: string, call: OwnCall): Decided | undefined {
    const rule = relaxedRule(policy);
    const nowMs = this.#now(caller.time.nowMs());
    if (rule === undefined) this.#endRest(caller, policy, key, nowMs);
    if (rule === undefined || !isPlain(call)) return undefined;
    const slots = this.#keys.open(policy, key, () => new IsolateKeySlots(policy, key, nowMs));
    if (slots === undefined) return undefined;
    this.#serve(slots, nowMs);
    slots.called(costOf(rule, call.cost), nowMs);
    slots.hasCalls = true;
    slots.longestMs = Math.max(slots.longestMs, call.ttlMs);
    const answer = this.#grantFree(caller, slots, rule, call, nowMs);
    this.#sendIfDue(caller, slots, nowMs);
    return answer;
  }

  #grantFree(
    { callerId }: ClientContext,
    slots: IsolateKeySlots,
    rule: Rule,
    { cost, ttlMs, makeId }: OwnCall,
    nowMs: number,
  ): Decided | undefined {
    const units = costOf(rule, cost);
    if (slots.firstWaiting !== undefined || !slots.admits(units, ttlMs, nowMs)) return undefined;
    return slots.grant(rule, { id: makeId(slots.holder), units, ttlMs, caller: callerId }, nowMs, 0);
  }

  /**
   * The object has denied a call for want of slots, and this isolate has free ones.
   * @param remaining the slots that are free at the object
   * @returns its grant, if they suffice; whether they were given back, so that the object may grant it now
   */
  async afterDenial(
    caller: ClientContext,
    policy: Policy,
    key: string,
    call: OwnCall,
    remaining: number,
  ): Promise<Decided | boolean> {
    const rule = relaxedRule(policy);
    const slots = this.#find(policy, key);
    if (rule === undefined || slots === undefined) return false;
    const nowMs = this.#now(caller.time.nowMs());
    this.#serve(slots, nowMs);
    const own = isPlain(call) ? this.#grantFree(caller, slots, rule, call, nowMs) : undefined;
    if (own !== undefined) return own;
    if (!slots.suffices(costOf(rule, call.cost), remaining, nowMs)) return false;
    await this.#send(caller, slots, nowMs, true);
    return true;
  }

  /** What remains for a call in this isolate: its free slots too, beside those that the object says. */
  remainingOf(policy: Policy, key: string, remaining: number): number {
    const { idle = 0, said } = this.#find(policy, key) ?? {};
    // Those of a version that leased slots go back.
    if (said === undefined || idle <= 0 || relaxedRule(policy) === undefined) return remaining;
    // Slots that came after that answer was made are not in both.
    return Math.min(remaining, said.remaining) + idle;
  }

  /** The policy leases no slots any more: the idle ones go back at once, and the object hears of it also during a rest. */
  #endRest(caller: ClientContext, policy: Policy, key: string, nowMs: number): void {
    const slots = this.#find(policy, key);
    if (slots === undefined || slots.isUnderWay(nowMs)) return;
    if (slots.restMs === 0 && slots.idle <= 0) return;
    slots.policy = policy;
    slots.isAtOnce = true;
    this.#sendIfDue(caller, slots, nowMs);
  }

  /** A call that `acquire` has not granted waits for a slot of this isolate; `undefined`: it cannot get one. */
  enter(
    caller: ClientContext,
    policy: Policy,
    key: string,
    call: OwnCall & Pick<WaitingCall, "signal">,
  ): WaitingCall | undefined {
    const rule = relaxedRule(policy);
    const slots = this.#find(policy, key);
    if (rule === undefined || slots === undefined || !isPlain(call)) return undefined;
    const units = costOf(rule, call.cost);
    if (units > slots.kept || slots.waiting.length >= (policy.lease?.maxWaiters ?? 0)) return undefined;
    const { makeId, signal, ttlMs } = call;
    const sinceMs = this.#now(caller.time.nowMs());
    const waiting = {
      makeId,
      signal,
      ttlMs,
      units,
      caller: caller.callerId,
      sinceMs,
      untilMs: sinceMs + call.waitMs + policy.deadlineMs,
      latch: new Latch(),
    };
    slots.waiting.push(waiting);
    return waiting;
  }

  leave(policy: Policy, key: string, call: WaitingCall): void {
    const { waiting = [] } = this.#find(policy, key) ?? {};
    const index = waiting.indexOf(call);
    if (index >= 0) waiting.splice(index, 1);
  }

  /** Whether calls wait here alone: slots of this isolate come free sooner than others. */
  isOwn(caller: ClientContext, policy: Policy, key: string, { units }: WaitingCall): boolean {
    const slots = this.#find(policy, key);
    if (slots === undefined) return false;
    const nowMs = this.#now(caller.time.nowMs());
    this.#serve(slots, nowMs);
    this.#sendIfDue(caller, slots, nowMs);
    return !slots.isHome && units <= slots.kept && nowMs < slots.spendableUntilMs;
  }

  /** Free slots go to the calls that wait, in their order. */
  #serve(slots: IsolateKeySlots, nowMs: number): void {
    slots.endExpired(nowMs);
    const rule = relaxedRule(slots.policy);
    for (
      let first = slots.firstWaiting;
      rule !== undefined && first !== undefined;
      first = slots.firstWaiting
    ) {
      const isGone = first.signal?.aborted === true || nowMs >= first.untilMs;
      if (!isGone && !slots.admits(first.units, first.ttlMs, nowMs)) return;
      slots.waiting.splice(slots.waiting.indexOf(first), 1);
      if (isGone) continue;
      const id = first.makeId(slots.holder);
      first.answer = slots.grant(rule, { ...first, id }, nowMs, nowMs - first.sinceMs);
      first.latch.open();
    }
  }

  /** Ends the waits of calls in this isolate. The wait that they are told is until its own leases end. */
  endWaits(caller: ClientContext, policy: Policy, key: string): void {
    const slots = this.#find(policy, key);
    const rule = relaxedRule(policy);
    // Without one no call waits here alone.
    if (slots === undefined || rule === undefined) return;
    const nowMs = this.#now(caller.time.nowMs());
    this.#serve(slots, nowMs);
    this.#endWaits(slots, rule, nowMs, nowMs);
  }

  #endWaits(slots: IsolateKeySlots, rule: Rule, beganUntilMs: number, nowMs: number): void {
    for (const waiting of slots.waiting.splice(0)) {
      if (waiting.sinceMs > beganUntilMs) {
        slots.waiting.push(waiting);
        continue;
      }
      waiting.answer = slots.denial(rule, waiting, nowMs);
      waiting.latch.open();
    }
  }

  /** The mark of the holder of a key. */
  markOf(policy: Policy, key: string): string | undefined {
    const slots = this.#find(policy, key);
    return slots && markOf(slots.holder);
  }

  /** The object has answered an acquire of a caller of this isolate. @param sent as in `SaidFigures` */
  heard(caller: ClientContext, policy: Policy, key: string, { rules, lease }: Decided, sent: number): void {
    const slots = this.#find(policy, key);
    const [rule] = rules;
    if (slots === undefined || rule === undefined) return;
    const nowMs = this.#now(caller.time.nowMs());
    slots.said.hear(rule.remaining, nowMs + rule.resetAfterMs, sent);
    if (lease !== undefined && slots.others.size < MAX_OTHERS) slots.others.set(lease.id, nowMs);
  }

  /** Ends a lease of its own. @returns whether it was one; otherwise the object is to end it */
  release(caller: ClientContext, policy: Policy, key: string, id: string): boolean {
    const slots = this.#find(policy, key);
    if (slots === undefined) return false;
    const nowMs = this.#now(caller.time.nowMs());
    slots.endExpired(nowMs);
    const isOwn = slots.end(id, nowMs) !== undefined;
    if (isOwn) slots.released += 1;
    else slots.endOther(id, nowMs);
    this.#serve(slots, nowMs);
    this.#sendIfDue(caller, slots, nowMs);
    return isOwn;
  }

  /** Prolongs a lease of its own; `undefined`: the object is to do it, and knows the lease. */
  async renew(
    caller: ClientContext,
    policy: Policy,
    key: string,
    id: string,
    ttlMs?: number,
    isHanded = false,
  ): Promise<Lease | undefined> {
    const slots = this.#find(policy, key);
    const nowMs = this.#now(caller.time.nowMs());
    slots?.endExpired(nowMs);
    const lease = slots?.young.get(id);
    if (slots === undefined || lease === undefined) return undefined;
    const forMs = ttlMs ?? lease.ttlMs;
    if (isHanded || nowMs >= slots.spendableUntilMs || forMs > slots.ttlMs) {
      // A message under way is not superseded: its answer may bring slots.
      const isUnderWay = slots.isUnderWay(nowMs);
      slots.isAtOnce = true;
      if (isUnderWay || slots.handed.size >= MAX_HANDED) lease.grantedAtMs = -Infinity;
      else {
        slots.hand(lease, nowMs);
        await this.#send(caller, slots, nowMs);
      }
      return undefined;
    }
    slots.prolong(lease, nowMs + forMs);
    this.#sendIfDue(caller, slots, nowMs);
    return { id, fencingToken: lease.fencingToken, expiresAfterMs: forMs };
  }

  /** The object has prolonged a lease. */
  renewed(caller: ClientContext, policy: Policy, key: string, { expiresAfterMs }: Lease): void {
    this.#find(policy, key)?.said.endsAt(this.#now(caller.time.nowMs()) + expiresAfterMs);
  }

  /** Whether only another holder may know such a lease, if the object does not. */
  isOthers(policy: Policy, key: string, id: string): boolean {
    const slots = this.#find(policy, key);
    const isOwn = slots !== undefined && markOf(id) === markOf(slots.holder);
    return !isOwn || slots.young.has(id) || slots.handed.has(id);
  }

  #find(policy: Policy, key: string): IsolateKeySlots | undefined {
    return this.#keys.find(policy.name, key);
  }

  #sendIfDue(caller: ClientContext, slots: IsolateKeySlots, nowMs: number): void {
    if (!slots.needsMessage(nowMs)) return;
    caller.inBackground(this.#send(caller, slots, nowMs));
    this.#keep(caller, nowMs);
  }

  /** Says all that it has, and asks for what its leases need, or gives back all that is free. */
  async #send(
    caller: ClientContext,
    slots: IsolateKeySlots,
    nowMs: number,
    isGivingBack = false,
  ): Promise<void> {
    slots.endExpired(nowMs);
    const rule = relaxedRule(slots.policy);
    const mayLease = rule !== undefined && !isGivingBack;
    const resting = mayLease ? slots.rest(nowMs) : undefined;
    const wanted = mayLease ? slots.estimate(nowMs) : 0;
    const rest = resting && { ...resting, units: Math.max(resting.units, wanted) };
    slots.handOver(nowMs);
    const { policy, key, hasCalls } = slots;
    slots.hasCalls = false;
    if (caller.counter !== undefined) slots.heldTimes.count(caller.counter, publicName(policy.name));
    const call: SlotsCall = {
      policy: policy.name,
      key,
      ...(hasCalls ? versionOf(policy) : withoutPlan(policy)),
      ...slots.message(wanted, nowMs, rest),
      ttlMs: slots.longestMs,
      handed: [...slots.handed.values()].map((lease) => handedOf(lease, nowMs)),
    };
    const reply = await caller.objects.call<Slots>(policy, key, { operation: { op: "slots", ...call } });
    if (slots.turn !== call.turn) return;
    const answer = reply === undefined || reply instanceof Problem ? undefined : reply.answer;
    const atMs = this.#now(caller.time.nowMs());
    const given = slots.answered(call, answer, nowMs, atMs);
    if (given !== undefined) {
      for (const { id } of call.handed) slots.handed.delete(id);
      slots.ttlMs = given.ttlMs;
      if (rest !== undefined && given.restMs === undefined) slots.noRestUntilMs = atMs + MAX_REST_MS;
      this.#serve(slots, atMs);
      const { waitsEndedAgoMs } = given;
      // From the answer on: a wait that began while it was under way may end too, and none that began before is missed.
      if (waitsEndedAgoMs !== undefined && rule !== undefined)
        this.#endWaits(slots, rule, atMs - waitsEndedAgoMs, atMs);
    }
    this.#sendIfDue(caller, slots, atMs);
  }

  /** Ensures that some request sends what is due while no other call comes. */
  #keep(caller: ClientContext, nowMs: number): void {
    const run = this.#run;
    const isAlive =
      run !== undefined && nowMs < run.checkedAtMs + SILENT_MS && nowMs < run.untilMs - SILENT_MS;
    if (isAlive) return;
    this.#run = { untilMs: nowMs + RUN_MS, checkedAtMs: nowMs };
    caller.inBackground(this.#work(caller, this.#run));
  }

  async #work(caller: ClientContext, run: Run): Promise<void> {
    const step = this.#clock.steps();
    step(0, caller.time.nowMs());
    const stepMs = PACE_MS / 2;
    let messagesLeft = MAX_MESSAGES;
    while (this.#run === run && run.checkedAtMs < run.untilMs) {
      await pause(caller.time, stepMs);
      const readMs = caller.time.nowMs();
      if (step(stepMs, readMs)) this.#stop();
      run.checkedAtMs = this.#now(readMs);
      const due: IsolateKeySlots[] = [];
      let isHolding = false;
      for (const slots of this.#keys.all) {
        this.#serve(slots, run.checkedAtMs);
        isHolding ||= slots.isHolding;
        if (slots.isHolding && slots.needsMessage(run.checkedAtMs)) due.push(slots);
      }
      const now = due.slice(0, Math.min(messagesLeft, caller.objects.mostAtOnce));
      messagesLeft -= now.length;
      await Promise.all(now.map((slots) => this.#send(caller, slots, run.checkedAtMs)));
      // Another request goes on.
      if (!isHolding || messagesLeft <= 0) break;
    }
    if (this.#run === run) this.#run = undefined;
  }
}

/** Without calls it keeps what it has, and another isolate's may have named another plan. */
function withoutPlan({ inForce }: Policy): Pick<Policy, "inForce"> {
  return inForce === undefined ? {} : { inForce };
}

function isPlain({ ttlMs, idempotencyKey, confirmWithinMs, resume, graceMs }: AcquireParams): boolean {
  const isAttached = resume !== undefined || graceMs !== undefined;
  return (
    idempotencyKey === undefined && confirmWithinMs === undefined && !isAttached && ttlMs <= MAX_YOUNG_MS
  );
}
