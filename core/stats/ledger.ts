/**
 * The data of the statistics object in three parts: the open minute is stored with each batch of messages, older
 * minutes once a minute, top keys every ten minutes.
 */
import {
  addTo,
  type Counts,
  familyOf,
  merged,
  type Metric,
  ofLatestCandidates,
  partsOf,
  plansOf,
  POLICY_LABEL,
  PolicyNames,
  seriesOf,
} from "./counts.ts";
import {
  OBJECTS_SENDER,
  type PolicyKeys,
  type StatsMessage,
  type Summary,
  type TopKeysAnswer,
  type TopKeysCall,
} from "./messages.ts";
import { mergedKeys, NO_KEYS } from "./top-keys.ts";

export const MINUTE_MS = 60_000;
export const MINUTES_AN_HOUR = 60;
/** A sender is forgotten after this silence. It repeats no message after a third of that (tally.ts). */
export const SENDER_KEPT_MS = 1_800_000;
/** Of more senders, the longest silent ones are forgotten. So many are three rows of a write. */
export const MAX_SENDERS = 20_000;

/** The last message of a sender. Stored: never change the order. */
export type SenderMark = readonly [sender: string, number: number, atMs: number];

/** The last messages of senders, from the one that has been silent longest on. */
export class Senders {
  readonly #marks: Map<string, SenderMark>;

  constructor(marks: Iterable<SenderMark> = []) {
    this.#marks = new Map(Array.from(marks, (mark) => [mark[0], mark]));
  }

  /** A copy, to try a change. */
  copy(): Senders {
    const copy = new Senders();
    for (const [sender, mark] of this.#marks) copy.#marks.set(sender, mark);
    return copy;
  }

  /** The number of a sender's last message; 0: none is known. */
  lastOf(sender: string): number {
    return this.#marks.get(sender)?.[1] ?? 0;
  }

  /** How many have sent something since then, by what they run. */
  countSince(atMs: number): Readonly<Record<"worker" | "objects", number>> {
    const active = this.toJSON().filter((mark) => mark[2] >= atMs);
    const objects = active.filter(([sender]) => sender.startsWith(OBJECTS_SENDER)).length;
    return { worker: active.length - objects, objects };
  }

  /** Notes a message. Returns whether it is to be counted: a repeated or overtaken one is not. */
  note({ sender, number }: StatsMessage, nowMs: number): boolean {
    const last = this.lastOf(sender);
    this.#marks.delete(sender);
    this.#marks.set(sender, [sender, Math.max(number, last), nowMs]);
    return number > last;
  }

  /** Forgets the longest silent ones. Not with each message: a map is slow to begin where much was deleted. */
  forget(nowMs: number): void {
    for (const [id, [, , atMs]] of this.#marks) {
      if (this.#marks.size <= MAX_SENDERS && nowMs - atMs < SENDER_KEPT_MS) break;
      this.#marks.delete(id);
    }
  }

  /** As it is stored. */
  toJSON(): readonly SenderMark[] {
    return [...this.#marks.values()];
  }
}

/** Counts since the minute began, and the senders. Stored: never rename a field. */
export interface OpenMinute {
  /** Since 1970. */
  readonly minute: number;
  readonly counts: Counts;
  readonly senders: Senders;
}

/** Counts before the open minute. Stored: never rename a field. */
export interface ClosedMinute {
  readonly sinceMs: number;
  readonly totals: Counts;
  /** The hour of the last minute, since 1970, and its history: by policy, outcome and reason, or plan and outcome. */
  readonly hour: number;
  readonly hourCounts: Counts;
}

/** The open minute with messages. `fresh` are counted for the first time; others count only as repeated. */
export function withMessages(
  open: OpenMinute,
  messages: readonly StatsMessage[],
  names: PolicyNames,
  nowMs: number,
): { readonly open: OpenMinute; readonly fresh: readonly StatsMessage[] } {
  const senders = open.senders.copy();
  const counts = { ...open.counts };
  const fresh = messages.filter((message) => {
    const isFresh = senders.note(message, nowMs);
    addTo(counts, seriesOf("stats_messages", [isFresh ? "counted" : "repeated"]), 1);
    return isFresh;
  });
  senders.forget(nowMs);
  // Isolates count much the same series.
  const known = new Map<string, string>();
  for (const message of fresh)
    for (const [series, count] of Object.entries(message.counts)) {
      const own = known.get(series) ?? named(series, names);
      known.set(series, own);
      addTo(counts, own, count);
    }
  return { open: { ...open, senders, counts }, fresh };
}

/** The series, with the name of its policy that is counted. */
function named(series: string, names: PolicyNames): string {
  const policy = policyIn(series);
  if (policy === undefined) return series;
  const [metric = "", , ...labels] = partsOf(series);
  const name = names.of(policy);
  if (metric !== PLAN_DECISIONS) return seriesOf(metric, [name, ...labels]);
  const [plan = "", outcome = ""] = labels;
  return seriesOf(metric, [name, names.planOf(name, plan), outcome]);
}

/** The names, with the policies of counts added. */
export function namesIn(counts: Counts, names = new PolicyNames()): PolicyNames {
  for (const series of Object.keys(counts)) {
    const policy = policyIn(series);
    if (policy === undefined) continue;
    names.of(policy);
    const [metric, , plan = ""] = partsOf(series);
    if (metric === PLAN_DECISIONS) names.planOf(policy, plan);
  }
  return names;
}

/** The policy of a series, if it has one. */
function policyIn(series: string): string | undefined {
  const [metric = "", policy] = partsOf(series);
  return familyOf(metric)?.labels[0] === POLICY_LABEL ? policy : undefined;
}

const PLAN_DECISIONS = "plan_decisions" satisfies Metric;

/** The history by policy; that by plan has a name of its own (`plansOf`), which an older version does not read. */
export function historyOf(counts: Counts): ReadonlyMap<string, Counts> {
  const byPolicy = new Map<string, Record<string, number>>();
  for (const [series, count] of Object.entries(counts)) {
    // Of decisions the outcome and the reason, of those by plan the plan and the outcome.
    const [metric, policy = "", first = "", second = ""] = partsOf(series);
    if (!isHistoric(metric)) continue;
    const name = metric === PLAN_DECISIONS ? plansOf(policy) : policy;
    const ofName = byPolicy.get(name) ?? {};
    addTo(ofName, `${first} ${second}`, count);
    byPolicy.set(name, ofName);
  }
  return byPolicy;
}

function isHistoric(metric: string | undefined): boolean {
  return metric === "decisions" || metric === PLAN_DECISIONS;
}

interface MinuteClosing {
  readonly closed: ClosedMinute;
  readonly minute: ReadonlyMap<string, Counts>;
  /** The row of the hour that ended, by policy; empty: it continues. */
  readonly hour: ReadonlyMap<string, Counts>;
}

export function closing(closed: ClosedMinute, open: OpenMinute, nowMinute: number): MinuteClosing {
  const hour = hourOf(open.minute);
  // The last minute with traffic may be of an earlier hour, not written yet.
  const before = hour === closed.hour ? closed.hourCounts : {};
  const decisions = Object.entries(open.counts).filter(([series]) => isHistoric(partsOf(series)[0]));
  const hourCounts = merged(before, Object.fromEntries(decisions));
  const totals = ofLatestCandidates(merged(closed.totals, open.counts));
  return {
    closed: { ...closed, totals, hour, hourCounts },
    minute: historyOf(open.counts),
    hour: hourOf(nowMinute) === hour ? new Map() : historyOf(hourCounts),
  };
}

export function hourOf(minute: number): number {
  return Math.floor(minute / MINUTES_AN_HOUR);
}

/* The top keys of all policies, of this hour and the last one. */

/** The policies with top keys: four times 64 keys each, some 64,000 keys. */
const MAX_TOPS = 250;
const HOUR_MS = 3_600_000;

/** Stored: never rename a field. */
interface OfHour {
  readonly denied: Summary;
  readonly active: Summary;
}

/** The top keys of a policy, in an hour since 1970 and the one before. Stored: never rename a field. */
export interface PolicyTops {
  readonly hour: number;
  readonly now: OfHour;
  readonly before: OfHour;
}

/** Stored: never change the order. */
export type PolicyWithTops = readonly [policy: string, tops: PolicyTops];

const NONE: OfHour = { denied: NO_KEYS, active: NO_KEYS };

export class Tops {
  readonly #byPolicy: Map<string, PolicyTops>;
  readonly #changed: Set<string>;

  /** @param recent changed since they were stored by themselves */
  constructor(stored: Iterable<PolicyWithTops> = [], recent: readonly PolicyWithTops[] = []) {
    this.#byPolicy = new Map([...stored, ...recent]);
    this.#changed = new Set(recent.map(([policy]) => policy));
  }

  /** A copy, to try a change. */
  copy(): Tops {
    return new Tops(this.#byPolicy, this.recent);
  }

  get recent(): readonly PolicyWithTops[] {
    return [...this.#changed].flatMap((policy) => {
      const tops = this.#byPolicy.get(policy);
      return tops === undefined ? [] : [[policy, tops] as const];
    });
  }

  /** Adds the keys of a message. Policies past the bound have none, until others have had none for two hours. */
  add(all: readonly PolicyKeys[], nowMs: number): void {
    const hour = Math.floor(nowMs / HOUR_MS);
    for (const { policy, denied = NO_KEYS, active = NO_KEYS } of all) {
      if (!this.#byPolicy.has(policy) && !this.#hasRoom(hour)) continue;
      const { now, before } = atHour(this.#byPolicy.get(policy), hour);
      const sum = { denied: mergedKeys(now.denied, denied), active: mergedKeys(now.active, active) };
      this.#byPolicy.set(policy, { hour, now: sum, before });
      this.#changed.add(policy);
    }
  }

  answer({ policy, by }: TopKeysCall, nowMs: number): TopKeysAnswer {
    const hour = Math.floor(nowMs / HOUR_MS);
    const { now, before } = atHour(this.#byPolicy.get(policy), hour);
    return { sinceMs: (hour - 1) * HOUR_MS, keys: mergedKeys(before[by], now[by]).keys };
  }

  /** Changes since the last call, by policy; `undefined`: delete it. */
  takeChanges(): ReadonlyMap<string, PolicyTops | undefined> {
    const changes = new Map([...this.#changed].map((policy) => [policy, this.#byPolicy.get(policy)]));
    this.#changed.clear();
    return changes;
  }

  #hasRoom(hour: number): boolean {
    if (this.#byPolicy.size < MAX_TOPS) return true;
    for (const [policy, tops] of this.#byPolicy) {
      if (hour - tops.hour < 2) continue;
      this.#byPolicy.delete(policy);
      this.#changed.add(policy);
      return true;
    }
    return false;
  }
}

function atHour(tops: PolicyTops | undefined, hour: number): PolicyTops {
  if (tops === undefined) return { hour, now: NONE, before: NONE };
  // An earlier hour means that a clock was set back.
  if (hour <= tops.hour) return tops;
  return { hour, now: NONE, before: hour - tops.hour === 1 ? tops.now : NONE };
}
