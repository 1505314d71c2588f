/** Messages to the statistics object. Versions mix in a rollout: fields are only added, as optional. */
import type { LocationHint } from "../policies/policy.ts";
import type { AnalyticsDataset } from "./analytics.ts";
import type { Counts } from "./counts.ts";

/** The object's name, which is stored for ever: never change it. */
export const STATS_NAME = "stats";

export const TOP_KINDS = ["denied", "active"] as const;
export type TopKind = (typeof TOP_KINDS)[number];

/**
 * `count` is at most `error` too high. `plan`: of the last decision; absent: the policy's own figures, or an older version
 * counted it. Sent and stored: never change the order.
 */
export type CountedKey = readonly [key: string, count: number, error: number, plan?: string];

/** The most frequent keys of one stream (tally.ts). Sent and stored: never rename a field. */
export interface Summary {
  /** The highest counts first. */
  readonly keys: readonly CountedKey[];
  /** The largest possible count of a key that is not in the summary. */
  readonly least: number;
}

export interface PolicyKeys {
  readonly policy: string;
  readonly denied?: Summary;
  readonly active?: Summary;
}

export interface Content {
  readonly counts: Counts;
  readonly keys: readonly PolicyKeys[];
}

/** The counts of one isolate since its last message. Without an answer, the same number is sent again. */
export interface StatsMessage extends Content {
  readonly sender: string;
  readonly number: number;
  /** The sender keeps it until a receipt says that it is stored. Absent: it is stored before it is answered. */
  readonly isKept?: true;
  /** The number of a message before it that the sender still keeps. Where that is not counted, this one is not either. */
  readonly after?: number;
}

/** What the object has of a sender. Numbers of messages; 0: none. */
export interface Receipt {
  /** The last one that is counted, if only in memory. */
  readonly received: number;
  /** The last one that is stored: neither it nor one before it is counted again. */
  readonly stored: number;
  /** How long the sender is to wait between messages, in milliseconds. Absent: as ever. */
  readonly everyMs?: number;
}

/** A sender that begins so runs objects. No other id has a dot. Sent and stored: never change it. */
export const OBJECTS_SENDER = "o.";

export interface Totals {
  /** With the gauge `isolates`. An object of an older version has none. */
  readonly counts: Counts;
  readonly sinceMs: number;
}

export const STEPS = ["minute", "hour"] as const;
export type Step = (typeof STEPS)[number];

export interface HistoryCall {
  readonly policy: string;
  readonly step: Step;
  readonly sinceMs: number;
}

/** The counts of one step, by outcome and reason, separated by a space. */
export interface HistoryPoint {
  readonly atMs: number;
  readonly counts: Counts;
  /** Decisions by plan and outcome. Absent: none was by a plan, or the object is of an older version. */
  readonly plans?: Counts;
}

export interface TopKeysCall {
  readonly policy: string;
  readonly by: TopKind;
}

export interface TopKeysAnswer {
  readonly sinceMs: number;
  readonly keys: readonly CountedKey[];
}

/** The methods of the object. Never change a name or an argument. */
export interface StatsStub {
  /** `undefined`: the object is of an older version, and has stored the message. */
  push(message: StatsMessage): Promise<Receipt | undefined>;
  totals(): Promise<Totals>;
  history(call: HistoryCall): Promise<readonly HistoryPoint[]>;
  topKeys(call: TopKeysCall): Promise<TopKeysAnswer>;
}

interface StatsNamespace {
  getByName(name: string, options?: { readonly locationHint: LocationHint }): StatsStub;
}

/** The bindings of the statistics. */
export interface StatsBindings {
  /** Absent: nothing is counted, except for ANALYTICS. */
  readonly STATS?: StatsNamespace;
  /** Gets decisions: from the object, or, without STATS, from each isolate of the worker. */
  readonly ANALYTICS?: AnalyticsDataset;
  /** Where the catalog and the statistics are made. Absent: near their first caller. */
  readonly HOME?: LocationHint;
}

/** A new stub for each message: one that has thrown stays broken, and other requests may not use it. */
export function statsStub({ STATS, HOME }: StatsBindings): StatsStub | undefined {
  return STATS?.getByName(STATS_NAME, HOME && { locationHint: HOME });
}
