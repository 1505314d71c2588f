/**
 * The messages to the object that has what the limiter did. Versions mix while a deployment is rolled out: fields are
 * only added, never renamed, and an added field is optional.
 */
import type { Counts } from "./counts.ts";

/** The object's name, which is stored for ever: never change it. */
export const STATS_NAME = "stats";

/** By what keys are the top ones: how often they were denied, or asked for. */
export const TOP_KINDS = ["denied", "active"] as const;
export type TopKind = (typeof TOP_KINDS)[number];

/** A key, its count at most, and by how much that may be too high. Sent and stored: never change the order. */
export type CountedKey = readonly [key: string, count: number, error: number];

/** The keys that came most often in one stream: see tally.ts. Sent and stored: never rename a field. */
export interface Summary {
  /** The highest counts first. */
  readonly keys: readonly CountedKey[];
  /** The largest count that a key may have which is not in the summary. */
  readonly least: number;
}

/** The keys of one policy that came most often. */
export interface PolicyKeys {
  readonly policy: string;
  readonly denied?: Summary;
  readonly active?: Summary;
}

/** What has been counted since the last message. */
export interface Content {
  readonly counts: Counts;
  readonly keys: readonly PolicyKeys[];
}

/** What one isolate has counted since its last message. The same number comes again if there was no answer. */
export interface StatsMessage extends Content {
  /** The isolate's id, which is random. */
  readonly sender: string;
  /** Rises with each message of the sender. */
  readonly number: number;
}

/** All counts so far, and since when there are any. */
export interface Totals {
  readonly counts: Counts;
  readonly sinceMs: number;
}

/** The steps of the history. */
export const STEPS = ["minute", "hour"] as const;
export type Step = (typeof STEPS)[number];

/** Asks for a policy's history from an instant on. */
export interface HistoryCall {
  readonly policy: string;
  readonly step: Step;
  readonly sinceMs: number;
}

/** What happened in one step: by outcome and reason, with a space between them, how often. */
export interface HistoryPoint {
  /** When the step began. */
  readonly atMs: number;
  readonly counts: Counts;
}

/** Asks for a policy's top keys. */
export interface TopKeysCall {
  readonly policy: string;
  readonly by: TopKind;
}

/** The top keys since an instant. */
export interface TopKeysAnswer {
  readonly sinceMs: number;
  readonly keys: readonly (readonly [key: string, count: number, error: number])[];
}

/** The methods of the object, as others call them. Never change a name or an argument. */
export interface StatsStub {
  push(message: StatsMessage): Promise<void>;
  totals(): Promise<Totals>;
  history(call: HistoryCall): Promise<readonly HistoryPoint[]>;
  topKeys(call: TopKeysCall): Promise<TopKeysAnswer>;
}

/** The binding of the object. */
export interface StatsNamespace {
  getByName(name: string): StatsStub;
}
