/** The unsent counts of one isolate, in an array: no text is built before it is sent. */
import { DENIAL_REASONS } from "../algorithms/algorithm.ts";
import { orTimeout, type Time } from "../clock.ts";
import { CALL_REASONS, type Decision } from "../protocol/decision.ts";
import {
  addTo,
  bucketOf,
  comparedSeries,
  type ComparedCall,
  type Counts,
  groupsOf,
  keysOfCandidate,
  MAX_POLICIES,
  type Metric,
  OTHER_POLICIES,
  PolicyNames,
  seriesOf,
  SUM,
} from "./counts.ts";
import type { Content, PolicyKeys, Receipt, StatsMessage, TopKind } from "./messages.ts";
import { TopKeys } from "./top-keys.ts";

/** The policies with top keys in one message: twice 64 keys each, some 10,000 keys. */
export const MAX_WITH_KEYS = 100;

/** Unknown reasons count as the last. The order is not stored: it may change. */
const COUNTED_REASONS = [...CALL_REASONS, ...DENIAL_REASONS, "other"] as const;
const SOURCES = ["isolate", "object", "pool", "fallback", "other"] as const;
const OUTCOMES = ["admitted", "denied"] as const;
const CELLS = COUNTED_REASONS.length * SOURCES.length * OUTCOMES.length;

/** An admitted call of a rule with less than this part of its limit left is near it: 1 / 5. */
const NEAR_PARTS = 5;

export type CountedDecision = Pick<
  Decision,
  "policy" | "key" | "success" | "reason" | "source" | "waitedMs" | "rules" | "plan" | "group"
>;

export interface Counter {
  decided(decision: CountedDecision): void;
  add(metric: Metric, labels: readonly string[], count?: number): void;
  lasted(metric: Metric, labels: readonly string[], durationMs: number): void;
}

interface Slot {
  readonly policy: string;
  readonly cells: Uint32Array;
  readonly keys: Readonly<Record<TopKind, TopKeys>> | undefined;
  near: number;
  /** By plan, and the last one of them: most calls of a policy come by the same plan as the call before. */
  readonly plans: Map<string, PlanCounts>;
  lastPlan: PlanCounts | undefined;
}

interface PlanCounts {
  readonly plan: string;
  admitted: number;
  denied: number;
}

export class Tally implements Counter {
  readonly #slots = new Map<string, Slot>();
  #last: Slot | undefined;
  /** Those of this message, within the bound of plans. */
  #names = new PolicyNames();
  readonly #others = new Map<string, number>();
  readonly #mayHaveKeys: (policy: string) => boolean;

  /** @param mayHaveKeys whether keys of a policy may be sent: keys must not leave a jurisdiction */
  constructor(mayHaveKeys: (policy: string) => boolean = () => true) {
    this.#mayHaveKeys = mayHaveKeys;
  }

  decided(decision: CountedDecision): void {
    const last = this.#last;
    const slot = last !== undefined && last.policy === decision.policy ? last : this.#slotOf(decision.policy);
    const cell = cellOf(decision);
    slot.cells[cell] = (slot.cells[cell] ?? 0) + 1;
    const { plan, group } = decision;
    if (plan !== undefined) this.#countPlan(slot, plan, decision.success);
    slot.keys?.active.count(decision.key, plan);
    if (!decision.success) slot.keys?.denied.count(decision.key, plan);
    else if (isNearLimit(decision)) slot.near += 1;
    if (decision.waitedMs !== undefined) this.lasted("waited_seconds", [slot.policy], decision.waitedMs);
    if (group === undefined) return;
    const groups = this.#slotOf(groupsOf(decision.policy)).keys;
    groups?.active.count(group);
    if (!decision.success) groups?.denied.count(group);
  }

  compared({ policy, version, key, deniedBy }: ComparedCall): void {
    const series = comparedSeries(policy, version, deniedBy);
    this.#others.set(series, (this.#others.get(series) ?? 0) + 1);
    if (deniedBy === "candidate") this.#slotOf(keysOfCandidate(policy, version)).keys?.denied.count(key);
  }

  add(metric: Metric, labels: readonly string[], count = 1): void {
    const series = seriesOf(metric, labels);
    this.#others.set(series, (this.#others.get(series) ?? 0) + count);
  }

  lasted(metric: Metric, labels: readonly string[], durationMs: number): void {
    // The clock may have been set back.
    const ms = Math.max(0, durationMs);
    this.add(metric, [...labels, bucketOf(metric, ms)]);
    this.add(metric, [...labels, SUM], ms);
  }

  take(): Content | undefined {
    if (this.#slots.size + this.#others.size === 0) return undefined;
    const counts: Record<string, number> = Object.fromEntries(this.#others);
    const tops: PolicyKeys[] = [];
    for (const { policy, cells, keys, near, plans } of this.#slots.values()) {
      for (const { plan, ...byOutcome } of plans.values())
        for (const outcome of OUTCOMES)
          // Clients' processes have said theirs.
          if (byOutcome[outcome] > 0)
            addTo(counts, seriesOf("plan_decisions", [policy, plan, outcome]), byOutcome[outcome]);
      if (near > 0) counts[seriesOf("near_limit", [policy])] = near;
      for (const [cell, count] of cells.entries())
        if (count > 0) counts[seriesOf("decisions", [policy, ...labelsOf(cell)])] = count;
      if (keys) tops.push({ policy, active: keys.active.summary, denied: keys.denied.summary });
    }
    this.#slots.clear();
    this.#others.clear();
    this.#last = undefined;
    this.#names = new PolicyNames();
    return { counts: counts satisfies Counts, keys: tops };
  }

  #countPlan(slot: Slot, plan: string, isAdmitted: boolean): void {
    let counts = slot.lastPlan;
    if (counts === undefined || counts.plan !== plan) {
      const name = this.#names.planOf(slot.policy, plan);
      counts = slot.plans.get(name) ?? { plan: name, admitted: 0, denied: 0 };
      slot.plans.set(name, counts);
      slot.lastPlan = counts;
    }
    if (isAdmitted) counts.admitted += 1;
    else counts.denied += 1;
  }

  /** The policy's slot. Policies past the bound share one, without keys. */
  #slotOf(policy: string): Slot {
    const isFull = !this.#slots.has(policy) && this.#slots.size >= MAX_POLICIES;
    const name = isFull ? OTHER_POLICIES : policy;
    let slot = this.#slots.get(name);
    if (slot === undefined) {
      const hasKeys = !isFull && this.#slots.size < MAX_WITH_KEYS && this.#mayHaveKeys(name);
      const keys = hasKeys ? { denied: new TopKeys(), active: new TopKeys() } : undefined;
      const cells = new Uint32Array(CELLS);
      slot = { policy: name, cells, keys, near: 0, plans: new Map(), lastPlan: undefined };
      this.#slots.set(name, slot);
    }
    this.#last = slot;
    return slot;
  }
}

function isNearLimit({ rules }: CountedDecision): boolean {
  for (const { remaining, quotaRemaining = remaining, limit } of rules)
    if (quotaRemaining * NEAR_PARTS < limit) return true;
  return false;
}

const REASON_INDEXES = new Map<string, number>(COUNTED_REASONS.map((reason, index) => [reason, index]));
const SOURCE_INDEXES = new Map<string, number>(SOURCES.map((source, index) => [source, index]));

function cellOf({ success, reason, source }: CountedDecision): number {
  // Nearly all decisions have one of these, and a comparison costs less than a map.
  const why = reason === "ok" ? 0 : (REASON_INDEXES.get(reason) ?? COUNTED_REASONS.length - 1);
  const who = source === "isolate" ? 0 : (SOURCE_INDEXES.get(source) ?? SOURCES.length - 1);
  return (why * SOURCES.length + who) * OUTCOMES.length + (success ? 0 : 1);
}

function labelsOf(cell: number): string[] {
  const rest = Math.floor(cell / OUTCOMES.length);
  const [outcome, source] = [OUTCOMES[cell % OUTCOMES.length], SOURCES[rest % SOURCES.length]];
  return [outcome ?? "", COUNTED_REASONS[Math.floor(rest / SOURCES.length)] ?? "", source ?? ""];
}

/*
 * When an isolate sends its counts: at most one message in 10 s, and one at a time. Each has a number and never changes.
 * The object answers at once, since an object that sends counts is billed while it waits, and stores later. So the
 * sender keeps a message until the answer to a later one says that it is stored. If the object has lost its memory
 * meanwhile, it says so, and gets again what it has lost. So nothing is counted twice, and only counts of an ended
 * isolate that were not stored are lost.
 *
 * Any request may end at any moment, so no code here waits for a promise of another request: a message counts as lost
 * after its deadline.
 */

/** The least time between two messages, unless tests bind another interval. */
export const SEND_EVERY_MS = 10_000;
/** After this time an unanswered message counts as lost. */
const DEADLINE_MS = 2_000;
/** How often the end of a process checks whether a message is in flight. */
const POLL_MS = 25;
/** After this time a message is not sent again: the object forgets senders later (ledger.ts). */
export const SENT_AGAIN_MS = 600_000;
/** The messages that are kept. Then the last one is sent again, until the object has stored some. */
const MAX_KEPT = 3;

interface KeptMessage {
  readonly message: StatsMessage;
  readonly sinceMs: number;
}

type Push = (message: StatsMessage) => Promise<Receipt | undefined>;

export class StatsSender {
  readonly #tally: Tally;
  readonly #makeId: () => string;
  readonly #onLost: (error: unknown) => void;
  readonly everyMs: number;
  /** As the object has asked for. */
  #paceMs: number;
  #id = "";
  #number = 0;
  /** Messages that are not known to be stored, in their order. */
  #kept: readonly KeptMessage[] = [];
  /** The last one that the object has counted. */
  #received = 0;
  #nextMs = -Infinity;
  #turn = 0;
  #underWayUntilMs = -Infinity;

  /** @param makeId called for the first message, since start-up has no randomness */
  constructor(
    tally: Tally,
    makeId: () => string,
    onLost: (error: unknown) => void = () => undefined,
    everyMs = SEND_EVERY_MS,
  ) {
    this.#onLost = onLost;
    this.everyMs = everyMs;
    this.#paceMs = everyMs;
    this.#tally = tally;
    this.#makeId = makeId;
  }

  /** Whether a request has to send the next message: 10 s have passed since the last one began. */
  isDue(nowMs: number): boolean {
    // A clock set far back would stop all messages.
    return nowMs >= this.#nextMs || nowMs < this.#nextMs - 2 * this.#paceMs;
  }

  /** Sends the next message after `afterMs`, with all counts up to then. */
  async begin(time: Time, push: Push, afterMs: number): Promise<void> {
    this.#nextMs = time.nowMs() + this.#paceMs;
    if (afterMs > 0) await new Promise<void>((done) => time.after(afterMs, done));
    await this.send(time, push);
  }

  /**
   * Sends the present counts, and what the object has lost. It never throws. Returns whether the object has all.
   * @param isLast the process is about to end: all must be stored
   */
  async send(time: Time, push: Push, isLast = false): Promise<boolean> {
    if (this.#isUnderWay(time.nowMs())) return false;
    let message = this.#nextMessage(time.nowMs(), isLast);
    for (let sent = 0; message !== undefined && sent <= MAX_KEPT; sent += 1) {
      if (!(await this.#isAnswered(time, push, message, isLast))) return false;
      message = this.#unreceived();
    }
    return message === undefined;
  }

  /** Sends everything when the process is about to end. It never throws. */
  async sendAll(time: Time, push: Push): Promise<void> {
    // First what the object does not have, then later counts. Another request may be sending either.
    for (let messages = 0; messages < 2; messages += 1) {
      while (this.#isUnderWay(time.nowMs())) await new Promise<void>((done) => time.after(POLL_MS, done));
      await this.send(time, push, true);
    }
  }

  #isUnderWay(nowMs: number): boolean {
    return nowMs < this.#underWayUntilMs && this.#underWayUntilMs - nowMs <= DEADLINE_MS;
  }

  #nextMessage(nowMs: number, isLast: boolean): StatsMessage | undefined {
    this.#kept = this.#kept.filter(({ sinceMs }) => Math.abs(nowMs - sinceMs) < SENT_AGAIN_MS);
    const unreceived = this.#unreceived();
    if (unreceived !== undefined) return unreceived;
    const isFull = this.#kept.length >= MAX_KEPT;
    const content = isFull ? undefined : this.#tally.take();
    if (content === undefined) return isFull || isLast ? this.#kept.at(-1)?.message : undefined;
    if (this.#id === "") this.#id = this.#makeId();
    this.#number += 1;
    const message = { ...content, sender: this.#id, number: this.#number };
    this.#kept = [...this.#kept, { message, sinceMs: nowMs }];
    return message;
  }

  #unreceived(): StatsMessage | undefined {
    return this.#kept.find(({ message }) => message.number > this.#received)?.message;
  }

  async #isAnswered(time: Time, push: Push, message: StatsMessage, isLast: boolean): Promise<boolean> {
    const { number } = message;
    const turn = (this.#turn += 1);
    this.#underWayUntilMs = time.nowMs() + DEADLINE_MS;
    const after = this.#kept.findLast((each) => each.message.number < number)?.message.number;
    const sent = {
      ...message,
      ...(!isLast && { isKept: true as const }),
      ...(after !== undefined && { after }),
    };
    let isTaken = false;
    const answered = (async () => {
      const receipt: Receipt = (await push(sent)) ?? { received: number, stored: number };
      // A late answer counts, unless another message is in flight.
      if (turn !== this.#turn) return;
      isTaken = true;
      const { received, stored, everyMs = 0 } = receipt;
      this.#received = received;
      this.#paceMs = Math.max(this.everyMs, everyMs);
      this.#kept = this.#kept.filter((each) => each.message.number > stored);
    })().catch(this.#onLost);
    await orTimeout(answered, time, DEADLINE_MS);
    if (turn === this.#turn) this.#underWayUntilMs = -Infinity;
    return isTaken;
  }
}
