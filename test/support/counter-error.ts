/**
 * The error of the sliding window counter: the same calls are decided by it and by the exact log, and each of
 * its decisions is compared with a log of its own admissions.
 */
import { UNTOUCHED } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import { decide } from "./decide.ts";
import { seededRandom } from "./random.ts";
import { log, ruleOf } from "./rules.ts";

const LIMIT = 100;
const WINDOW_MS = 10_000;
const WINDOWS = 200;

/** The chance of a call of one unit in each millisecond, in parts of the average limit. */
type Traffic = (atMs: number) => number;

const during =
  (onMs: number, offMs: number, rate: number): Traffic =>
  (atMs) =>
    atMs % (onMs + offMs) < onMs ? rate : 0;

/** The kinds of traffic, as the documentation names them. */
const TRAFFICS: Readonly<Record<string, Traffic>> = {
  "at random, half the limit": () => 0.5,
  "at random, 90 % of the limit": () => 0.9,
  "at random, the limit": () => 1,
  "at random, twice the limit": () => 2,
  "at random, ten times the limit": () => 10,
  "7 s of twice the limit, 6 s of nothing": during(7_000, 6_000, 2),
  "1 s of ten times the limit, 12 s of nothing": during(1_000, 12_000, 10),
  "1 s of twenty times the limit, 19 s of nothing": during(1_000, 19_000, 20),
};

export interface CounterError {
  readonly traffic: string;
  readonly calls: number;
  /** Calls that the exact log and the counter admit. */
  readonly byLog: number;
  readonly byCounter: number;
  /** Calls admitted though `LIMIT` units were in the window, and denied though fewer were. */
  readonly wronglyAdmitted: number;
  readonly wronglyDenied: number;
  /** The most units that the counter admitted in any window. */
  readonly mostInWindow: number;
}

/** Measures each kind of traffic. The seed makes the results the same everywhere. */
export function counterErrors(): CounterError[] {
  return Object.entries(TRAFFICS).map(([traffic, rateAt], index) => ({
    traffic,
    ...measure(rateAt, seededRandom(index + 1)),
  }));
}

/** The results as rows of a table in docs/policies.md. */
export function counterErrorRows(): string[] {
  const share = (part: number, all: number) => `${((100 * part) / all).toFixed(1)} %`;
  return counterErrors().map(
    ({ traffic, calls, byLog, byCounter, wronglyAdmitted, wronglyDenied, mostInWindow }) =>
      `| ${traffic} | ${share(byLog, calls)} | ${share(byCounter, calls)} | ${share(wronglyAdmitted, calls)} ` +
      `| ${share(wronglyDenied, calls)} | ${mostInWindow} |`,
  );
}

function measure(rateAt: Traffic, random: () => number): Omit<CounterError, "traffic"> {
  const fields = { limit: LIMIT, window: WINDOW_MS };
  const counter = ruleOf({ algorithm: "sliding-window-counter", ...fields });
  const exact = log(fields);
  // A log whose limit is never reached counts the units in the window.
  const counting = log({ ...fields, limit: 1_000_000 });
  let [counted, logged, truth]: Account[] = [UNTOUCHED, UNTOUCHED, UNTOUCHED];
  const sums = { calls: 0, byLog: 0, byCounter: 0, wronglyAdmitted: 0, wronglyDenied: 0, mostInWindow: 0 };
  for (let atMs = 0; atMs < WINDOWS * WINDOW_MS; atMs += 1) {
    if (random() >= (rateAt(atMs) * LIMIT) / WINDOW_MS) continue;
    // Not at the beginning of a window: traffic is independent of it.
    const nowMs = atMs + 4_321;
    sums.calls += 1;
    const byLog = decide(exact, logged ?? UNTOUCHED, nowMs, 1);
    if (byLog.allowed) {
      logged = byLog.account;
      sums.byLog += 1;
    }
    const inWindow = 1_000_000 - decide(counting, truth ?? UNTOUCHED, nowMs, 0).remaining;
    const byCounter = decide(counter, counted ?? UNTOUCHED, nowMs, 1);
    if (!byCounter.allowed) {
      if (inWindow < LIMIT) sums.wronglyDenied += 1;
      continue;
    }
    counted = byCounter.account;
    const after = decide(counting, truth ?? UNTOUCHED, nowMs, 1);
    if (after.allowed) truth = after.account;
    sums.byCounter += 1;
    if (inWindow >= LIMIT) sums.wronglyAdmitted += 1;
    sums.mostInWindow = Math.max(sums.mostInWindow, inWindow + 1);
  }
  return sums;
}
