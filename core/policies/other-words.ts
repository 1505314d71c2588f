/** What other limiters and people call a field, an algorithm or a duration, for the hints of errors. */
import { didYouMean, meant } from "../violations.ts";

const FIELDS: Readonly<Record<string, readonly string[]>> = {
  block: ["blockFor"],
  blockduration: ["blockFor"],
  blockms: ["blockFor"],
  bucketsize: ["burst"],
  capacity: ["burst"],
  dryrun: ["shadow"],
  duration: ["window"],
  failopen: ["onFailure"],
  interval: ["window"],
  leasetime: ["ttl"],
  max: ["limit"],
  maxconcurrency: ["limit"],
  maxqueue: ["maxWaiters"],
  maxqueued: ["maxWaiters"],
  maxqueuesize: ["maxWaiters"],
  maxrequests: ["limit"],
  maxtokens: ["burst"],
  period: ["window"],
  permits: ["limit"],
  points: ["limit"],
  queue: ["maxWait", "maxWaiters"],
  queuelimit: ["maxWaiters"],
  queuesize: ["maxWaiters"],
  queuetimeout: ["maxWait"],
  quota: ["limit"],
  rate: ["limit"],
  requests: ["limit"],
  tokens: ["limit"],
};

const ALGORITHMS: Readonly<Record<string, string>> = {
  bulkhead: "concurrency",
  calendar: "fixed-window",
  counter: "fixed-window",
  lock: "concurrency, with a limit of 1",
  mutex: "concurrency, with a limit of 1",
  queue: "concurrency with maxWait and maxWaiters, or leaky-bucket",
  semaphore: "concurrency",
  slidingwindow: "sliding-log, or sliding-window-counter, which estimates",
  throttle: "leaky-bucket",
};

const ON_FAILURE: Readonly<Record<string, string>> = {
  allow: "open",
  admit: "open",
  failopen: "open",
  pass: "open",
  block: "closed",
  deny: "closed",
  failclosed: "closed",
  reject: "closed",
};

const plainly = (word: string) => word.toLowerCase().replaceAll(/[-_ ]/g, "");

/** The hint for an unknown field: what others call so, or the most similar known one; "": there is none. */
export function fieldMeant(field: string, known: readonly string[]): string {
  const word = plainly(field);
  const names = Object.hasOwn(FIELDS, word) ? (FIELDS[word] ?? []) : [];
  const found = names.filter((name) => known.includes(name));
  return found.length > 0 ? didYouMean(found.join(" and ")) : meant(field, known);
}

/** The same for the name of an algorithm. */
export function algorithmMeant(name: string, known: readonly string[]): string {
  const word = plainly(name);
  const found = Object.hasOwn(ALGORITHMS, word) ? ALGORITHMS[word] : undefined;
  return found === undefined ? meant(name, known) : didYouMean(found);
}

/** The same for a word of `onFailure`. */
export function failureMeant(given: string, known: readonly string[]): string {
  const word = plainly(given);
  const found = Object.hasOwn(ON_FAILURE, word) ? ON_FAILURE[word] : undefined;
  return found === undefined ? meant(given, known) : didYouMean(found);
}

const DURATION = /^(?<amount>\d{1,9}(?:\.\d{1,3})?)\s*(?<word>[a-z]+)\.?$/;
const UNITS: readonly (readonly [unit: string, ms: number, words: RegExp])[] = [
  ["d", 86_400_000, /^d(ays?)?$/],
  ["h", 3_600_000, /^h(rs?|ours?)?$/],
  ["m", 60_000, /^m(ins?|inutes?)?$/],
  ["s", 1_000, /^s(ecs?|econds?)?$/],
  ["ms", 1, /^(ms|msecs?|millis|milliseconds?)$/],
];

/** The duration that a text is meant to be, such as `"15m"` for `15 min` and `"90m"` for `1.5 hours`; `undefined`: none. */
export function durationMeant(text: string): string | undefined {
  const { amount, word = "" } = DURATION.exec(text.trim().toLowerCase())?.groups ?? {};
  const [unit, unitMs] = UNITS.find(([, , words]) => words.test(word)) ?? [];
  if (amount === undefined || unitMs === undefined) return undefined;
  const ms = Math.round(Number(amount) * unitMs);
  return ms % unitMs === 0 ? `${ms / unitMs}${unit}` : durationText(ms);
}

/** A duration as one writes it: `15m` for 900,000. */
export function durationText(ms: number): string {
  const [unit, unitMs] = UNITS.find(([, each]) => ms % each === 0) ?? ["ms", 1];
  return `${ms / unitMs}${unit}`;
}

/** A text about milliseconds in durations as one writes them. */
export function inDurations(text: string): string {
  return text.replaceAll(/(?<!\^)\b(\d+) ms\b/g, (_, ms: string) => durationText(Number(ms)));
}
