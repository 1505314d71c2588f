/**
 * What one isolate has counted and not sent yet. A decision is counted in an array at a place that its words give: no
 * text is made before it is sent.
 */
import { orTimeout, type Time } from "../clock.ts";
import type { Decision } from "../protocol/decision.ts";
import {
  bucketOf,
  comparedSeries,
  type ComparisonCounts,
  type Counts,
  keysOfCandidate,
  MAX_POLICIES,
  type Metric,
  OTHER_POLICIES,
  seriesOf,
  SUM,
} from "./counts.ts";
import type { Content, PolicyKeys, StatsMessage } from "./messages.ts";
import { TopKeys } from "./top-keys.ts";

/** So many policies of one message have their top keys in it: of 64 keys each, twice, some 10,000 keys. */
export const MAX_WITH_KEYS = 100;

/** A word that is not here counts as the last. They are not stored in this order: it may change. */
const REASONS = [
  "ok",
  "quota",
  "min-interval",
  "cost-over-limit",
  "shed",
  "blocked",
  "wait-timeout",
  "queue-full",
  "shadow",
  "degraded",
  "refused",
  "other",
] as const;
const SOURCES = ["isolate", "object", "pool", "fallback", "other"] as const;
const OUTCOMES = ["admitted", "denied"] as const;
const CELLS = REASONS.length * SOURCES.length * OUTCOMES.length;

/** What is counted of a decision. */
export type CountedDecision = Pick<Decision, "policy" | "key" | "success" | "reason" | "source" | "waitedMs">;

/** Takes what has to be counted. */
export interface Counter {
  /** Counts a decision that a caller is told. */
  decided(told: CountedDecision): void;
  /** Counts something else, by the values of its labels. */
  add(metric: Metric, labels: readonly string[], count?: number): void;
  /** Counts a duration. */
  lasted(metric: Metric, labels: readonly string[], durationMs: number): void;
}

/** The counts of one policy. */
interface Slot {
  readonly policy: string;
  readonly cells: Uint32Array;
  readonly denied: TopKeys | undefined;
  readonly active: TopKeys | undefined;
}

/** Counts for one isolate. */
export class Tally implements Counter {
  readonly #slots = new Map<string, Slot>();
  #last: Slot | undefined;
  readonly #others = new Map<string, number>();
  readonly #mayHaveKeys: (policy: string) => boolean;

  /** @param mayHaveKeys whether keys of a policy may be sent: those of a jurisdiction must not leave it */
  constructor(mayHaveKeys: (policy: string) => boolean = () => true) {
    this.#mayHaveKeys = mayHaveKeys;
  }

  decided(told: CountedDecision): void {
    const last = this.#last;
    const slot = last !== undefined && last.policy === told.policy ? last : this.#slotOf(told.policy);
    const place = placeOf(told);
    slot.cells[place] = (slot.cells[place] ?? 0) + 1;
    slot.active?.count(told.key);
    if (!told.success) slot.denied?.count(told.key);
    if (told.waitedMs !== undefined) this.lasted("waited_seconds", [slot.policy], told.waitedMs);
  }

  /** Counts what a candidate decided beside its policy. */
  compared({ policy, version, key, deniedBy }: ComparisonCounts): void {
    const series = comparedSeries(policy, version, deniedBy);
    this.#others.set(series, (this.#others.get(series) ?? 0) + 1);
    if (deniedBy === "candidate") this.#slotOf(keysOfCandidate(policy, version)).denied?.count(key);
  }

  add(metric: Metric, labels: readonly string[], count = 1): void {
    const series = seriesOf(metric, labels);
    this.#others.set(series, (this.#others.get(series) ?? 0) + count);
  }

  lasted(metric: Metric, labels: readonly string[], durationMs: number): void {
    // A clock may be put back meanwhile.
    const ms = Math.max(0, durationMs);
    this.add(metric, [...labels, bucketOf(ms)]);
    this.add(metric, [...labels, SUM], ms);
  }

  /** Takes all that has been counted; `undefined`: there is nothing. */
  take(): Content | undefined {
    if (this.#slots.size + this.#others.size === 0) return undefined;
    const counts: Record<string, number> = Object.fromEntries(this.#others);
    const keys: PolicyKeys[] = [];
    for (const { policy, cells, denied, active } of this.#slots.values()) {
      for (const [place, count] of cells.entries())
        if (count > 0) counts[seriesOf("decisions", [policy, ...wordsOf(place)])] = count;
      if (active !== undefined && denied !== undefined)
        keys.push({ policy, active: active.summary, denied: denied.summary });
    }
    this.#slots.clear();
    this.#others.clear();
    this.#last = undefined;
    return { counts: counts satisfies Counts, keys };
  }

  /** The policy's slot. Of very many policies the later ones share one, in which no keys are counted. */
  #slotOf(policy: string): Slot {
    const isFull = !this.#slots.has(policy) && this.#slots.size >= MAX_POLICIES;
    const name = isFull ? OTHER_POLICIES : policy;
    const slot = this.#slots.get(name) ?? this.#begin(name);
    this.#last = slot;
    return slot;
  }

  #begin(policy: string): Slot {
    const hasRoom = policy !== OTHER_POLICIES && this.#slots.size < MAX_WITH_KEYS;
    const hasKeys = hasRoom && this.#mayHaveKeys(policy);
    const top = () => (hasKeys ? new TopKeys() : undefined);
    const slot = { policy, cells: new Uint32Array(CELLS), denied: top(), active: top() };
    this.#slots.set(policy, slot);
    return slot;
  }
}

const REASON_PLACES = new Map<string, number>(REASONS.map((word, place) => [word, place]));
const SOURCE_PLACES = new Map<string, number>(SOURCES.map((word, place) => [word, place]));

function placeOf({ success, reason, source }: CountedDecision): number {
  // Nearly all decisions are one of these, and comparing costs less than looking up.
  const why =
    reason === "ok" ? 0 : reason === "quota" ? 1 : (REASON_PLACES.get(reason) ?? REASONS.length - 1);
  const who = source === "isolate" ? 0 : (SOURCE_PLACES.get(source) ?? SOURCES.length - 1);
  return (why * SOURCES.length + who) * OUTCOMES.length + (success ? 0 : 1);
}

/** The outcome, the reason and the source of a place. */
function wordsOf(place: number): string[] {
  const rest = Math.floor(place / OUTCOMES.length);
  const [outcome, source] = [OUTCOMES[place % OUTCOMES.length], SOURCES[rest % SOURCES.length]];
  return [outcome ?? "", REASONS[Math.floor(rest / SOURCES.length)] ?? "", source ?? ""];
}

/*
 * When an isolate sends what it has counted, and what.
 *
 * What it counts is sent 10 s after the first of it, so there is one message in 10 s at most, and one under way. Each
 * message has a number. As long as it has no answer, nobody knows whether it was counted: it is sent again as it is, with
 * the same number, and what was counted since waits for the next. So nothing is counted twice, and nothing is lost but
 * what an isolate has not sent when it is thrown away.
 *
 * Any request may be ended at any moment, so nothing here waits for a promise of another one: a message counts as lost
 * when its time is over.
 */

/** There is one message in so many milliseconds at most, unless tests bind another interval. */
export const SEND_EVERY_MS = 10_000;
/** A message without an answer counts as lost when the next one is due and so many milliseconds have passed. */
const LATE_MS = 2_000;
/** How often it is checked at the end of a process whether a message is still under way. */
const POLL_MS = 25;
/** After so long a message is not sent again, in milliseconds: the object forgets senders later (ledger.ts). */
export const SENT_AGAIN_MS = 600_000;

interface UnansweredMessage {
  readonly message: StatsMessage;
  readonly sinceMs: number;
}

/** Sends what one isolate counts. */
export class StatsSender {
  readonly #tally: Tally;
  readonly #makeId: () => string;
  readonly #onLost: (error: unknown) => void;
  /** There is one message in so many milliseconds at most. */
  readonly everyMs: number;
  readonly #deadlineMs: number;
  #id = "";
  #number = 0;
  #unanswered: UnansweredMessage | undefined;
  /** From this instant on the next message may be sent. */
  #nextMs = -Infinity;
  #underWayUntilMs = -Infinity;

  /**
   * @param makeId makes a random id; called for the first message, since start-up has no randomness
   * @param onLost is told why a message has no answer
   */
  constructor(
    tally: Tally,
    makeId: () => string,
    onLost: (error: unknown) => void = () => undefined,
    everyMs = SEND_EVERY_MS,
  ) {
    this.#onLost = onLost;
    this.everyMs = everyMs;
    this.#deadlineMs = everyMs + LATE_MS;
    this.#tally = tally;
    this.#makeId = makeId;
  }

  /** Whether somebody has to see to the next message: 10 s have passed since somebody did. */
  isDue(nowMs: number): boolean {
    // A clock that was put back by much would keep everything here.
    return nowMs >= this.#nextMs || nowMs < this.#nextMs - 2 * this.everyMs;
  }

  /** Sees to the next message: it is sent at once, or after 10 s together with what comes until then. */
  async begin(time: Time, push: (message: StatsMessage) => Promise<void>, afterMs: number): Promise<void> {
    this.#nextMs = time.nowMs() + this.everyMs;
    if (afterMs > 0) await new Promise<void>((done) => time.after(afterMs, done));
    await this.send(time, push);
  }

  /** Sends what there is, now. It never throws. Returns whether nothing is left to be sent. */
  async send(time: Time, push: (message: StatsMessage) => Promise<void>): Promise<boolean> {
    const nowMs = time.nowMs();
    if (this.#isUnderWay(nowMs)) return false;
    const message = this.#nextMessage(nowMs);
    if (message === undefined) return true;
    this.#underWayUntilMs = nowMs + this.#deadlineMs;
    let isAnswered = false;
    const answered = (async () => {
      await push(message);
      isAnswered = true;
    })().catch(this.#onLost);
    await orTimeout(answered, time, this.#deadlineMs);
    // It may have come late, and another message may be under way by now.
    if (this.#unanswered?.message !== message) return false;
    this.#underWayUntilMs = -Infinity;
    if (isAnswered) this.#unanswered = undefined;
    return isAnswered;
  }

  /** Sends all that there is: the process is about to end. It never throws. */
  async sendAll(time: Time, push: (message: StatsMessage) => Promise<void>): Promise<void> {
    // First what has no answer, then what has been counted since. Another request may be sending either.
    for (let messages = 0; messages < 2; messages += 1) {
      while (this.#isUnderWay(time.nowMs())) await new Promise<void>((done) => time.after(POLL_MS, done));
      await this.send(time, push);
    }
  }

  #isUnderWay(nowMs: number): boolean {
    return nowMs < this.#underWayUntilMs && this.#underWayUntilMs - nowMs <= this.#deadlineMs;
  }

  #nextMessage(nowMs: number): StatsMessage | undefined {
    const unanswered = this.#unanswered;
    if (unanswered !== undefined && Math.abs(nowMs - unanswered.sinceMs) < SENT_AGAIN_MS)
      return unanswered.message;
    this.#unanswered = undefined;
    const content = this.#tally.take();
    if (content === undefined) return undefined;
    if (this.#id === "") this.#id = this.#makeId();
    this.#number += 1;
    const message = { ...content, sender: this.#id, number: this.#number };
    this.#unanswered = { message, sinceMs: nowMs };
    return message;
  }
}
