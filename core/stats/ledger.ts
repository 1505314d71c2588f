/**
 * What the object of the statistics knows, as plain data, and how it changes. It has three parts, which are written at
 * different times: the open minute with each batch of messages, all that is older once a minute, top keys every ten.
 */
import { type Counts, merged, ofLatestCandidates, partsOf, PolicyNames, seriesOf } from "./counts.ts";
import { familyOf, POLICY_LABEL } from "./families.ts";
import type { StatsMessage } from "./messages.ts";

export const MINUTE_MS = 60_000;
export const MINUTES_AN_HOUR = 60;
/** A sender that was silent for so long is forgotten. It sends nothing again after a third of that (sender.ts). */
export const SENDER_KEPT_MS = 1_800_000;
/** So many senders are remembered. Of more the longest silent ones are forgotten. */
export const MAX_SENDERS = 2_000;

/** The last message of a sender. Stored: never change the order. */
export type SenderMark = readonly [sender: string, number: number, atMs: number];

/** What has been counted since the minute began, and by whom. Stored: never rename a field. */
export interface OpenMinute {
  /** Since 1970. */
  readonly minute: number;
  readonly counts: Counts;
  readonly senders: readonly SenderMark[];
}

/** All that was counted before the open minute. Stored: never rename a field. */
export interface ClosedMinute {
  readonly sinceMs: number;
  readonly totals: Counts;
  /** The hour to which the last minute belongs, since 1970, and its history: by policy, outcome and reason. */
  readonly hour: number;
  readonly hourCounts: Counts;
}

/** The open minute with a message; the same one: the message was counted before. */
export function withMessage(
  open: OpenMinute,
  message: StatsMessage,
  names: PolicyNames,
  nowMs: number,
): OpenMinute {
  const { sender, number } = message;
  const heard = open.senders.find(([id]) => id === sender);
  const others = open.senders.filter((each) => each !== heard && nowMs - each[2] < SENDER_KEPT_MS);
  const isRepeated = heard !== undefined && number <= heard[1];
  const result = seriesOf("stats_messages", [isRepeated ? "repeated" : "counted"]);
  const senders: SenderMark[] = [
    ...others.slice(-(MAX_SENDERS - 1)),
    [sender, isRepeated ? heard[1] : number, nowMs],
  ];
  const counts = isRepeated ? {} : named(message.counts, names);
  return { ...open, senders, counts: merged(merged(open.counts, counts), { [result]: 1 }) };
}

/** The counts with the names under which policies are counted. */
function named(counts: Counts, names: PolicyNames): Counts {
  const all: Record<string, number> = {};
  for (const [series, count] of Object.entries(counts)) {
    const [metric = "", policy = "", ...labels] = partsOf(series);
    const isOfPolicy = familyOf(metric)?.labels[0] === POLICY_LABEL;
    addTo(all, isOfPolicy ? seriesOf(metric, [names.of(policy), ...labels]) : series, count);
  }
  return all;
}

/** The names that counts have. */
export function namesIn(counts: Counts, names = new PolicyNames()): PolicyNames {
  for (const series of Object.keys(counts)) {
    const [metric = "", policy] = partsOf(series);
    if (policy !== undefined && familyOf(metric)?.labels[0] === POLICY_LABEL) names.of(policy);
  }
  return names;
}

/** The decisions among counts: by policy, then by outcome and reason, how many. */
export function historyOf(counts: Counts): ReadonlyMap<string, Counts> {
  const byPolicy = new Map<string, Record<string, number>>();
  for (const [series, count] of Object.entries(counts)) {
    const [metric, policy = "", outcome = "", reason = ""] = partsOf(series);
    if (metric !== "decisions") continue;
    const ofPolicy = byPolicy.get(policy) ?? {};
    addTo(ofPolicy, `${outcome} ${reason}`, count);
    byPolicy.set(policy, ofPolicy);
  }
  return byPolicy;
}

function addTo(counts: Record<string, number>, series: string, count: number): void {
  counts[series] = (counts[series] ?? 0) + count;
}

/** What a minute's end makes of what is known, and which rows of the history it completes. */
export interface MinuteClosing {
  readonly closed: ClosedMinute;
  /** By policy. */
  readonly minute: ReadonlyMap<string, Counts>;
  /** The hour that is over, by policy; empty: it is not. */
  readonly hour: ReadonlyMap<string, Counts>;
}

/** Closes the open minute, at a later one. */
export function closing(closed: ClosedMinute, open: OpenMinute, nowMinute: number): MinuteClosing {
  const minute = historyOf(open.counts);
  const isSameHour = hourOf(open.minute) === closed.hour;
  // The hour of the open minute may be another one than that of the last minute with traffic, which was not written yet.
  const before = isSameHour ? closed.hourCounts : {};
  const hourCounts = merged(before, decisionsIn(open.counts));
  const isOver = hourOf(nowMinute) !== hourOf(open.minute);
  return {
    closed: {
      ...closed,
      totals: ofLatestCandidates(merged(closed.totals, open.counts)),
      hour: hourOf(open.minute),
      hourCounts,
    },
    minute,
    hour: isOver ? historyOf(hourCounts) : new Map(),
  };
}

/** The hour of a minute, both since 1970. */
export function hourOf(minute: number): number {
  return Math.floor(minute / MINUTES_AN_HOUR);
}

function decisionsIn(counts: Counts): Counts {
  return Object.fromEntries(Object.entries(counts).filter(([series]) => partsOf(series)[0] === "decisions"));
}
