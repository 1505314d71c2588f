/** Messages to the statistics object. Versions mix in a rollout: fields are only added, as optional. */
import type { LocationHint } from "../policies/policy.ts";
import type { Counts } from "./counts.ts";

/** The object's name, which is stored for ever: never change it. */
export const STATS_NAME = "stats";

export const TOP_KINDS = ["denied", "active"] as const;
export type TopKind = (typeof TOP_KINDS)[number];

/** `count` is at most `error` too high. Sent and stored: never change the order. */
export type CountedKey = readonly [key: string, count: number, error: number];

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
}

export interface Totals {
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
  push(message: StatsMessage): Promise<void>;
  totals(): Promise<Totals>;
  history(call: HistoryCall): Promise<readonly HistoryPoint[]>;
  topKeys(call: TopKeysCall): Promise<TopKeysAnswer>;
}

export interface StatsNamespace {
  getByName(name: string, options?: { readonly locationHint: LocationHint }): StatsStub;
}

/** The bindings of the statistics. */
export interface StatsBindings {
  /** Absent: nothing is counted. */
  readonly STATS?: StatsNamespace;
  /** Where the catalog and the statistics are made. Absent: near their first caller. */
  readonly HOME?: LocationHint;
}

/** A new stub for each message: one that has thrown stays broken, and other requests may not use it. */
export function statsStub({ STATS, HOME }: StatsBindings): StatsStub | undefined {
  return STATS?.getByName(STATS_NAME, HOME && { locationHint: HOME });
}
