import type { Algorithm, AlgorithmDecision, AnyAlgorithm, Uses } from "../algorithm.ts";
import type { SlidingLogConfig } from "../log/sliding-log.ts";
import { divisorOf } from "../token-bucket.ts";
import { mostPeriods } from "./calendar.ts";
import type { FixedWindowConfig, Windows } from "./fixed-window.ts";
import type { SlidingWindowCounterConfig } from "./sliding-window-counter.ts";

/**
 * Several windows: a rule that also counts in the windows of its policy's other plans (core/policies/plan-windows.ts). It is
 * not an algorithm of its own: each window has a state of its algorithm, and every plan has the states of all windows.
 *
 * A cost passes when it passes in the plan's own window and in all longer ones. It counts in all of them, so a plan with a
 * shorter window finds there what has been used in it.
 *
 * Example: 1,000 a month, and a plan of 100 a day. 900 are used on the first of the month. On the second the plan has 100.
 * If it takes them, the month has none left.
 *
 * Storage keeps the state of the longest window, as earlier versions do, and beside it those of the others. A log of the
 * longest window knows the units of shorter ones too.
 */
interface SeveralWindows {
  /** The longest first. */
  readonly windows: readonly CountedWindow[];
  /** Which of them is the plan's. */
  readonly own: number;
}

export interface CountedWindow {
  readonly windowMs: number;
  readonly config: object;
}

/** By window; `undefined`: untouched there. */
type States = readonly unknown[];

/** Stored: never rename a field. The other fields are those of the longest window's record. */
interface Recorded {
  /** Of other windows than the longest. Absent: a log, an earlier version, or a plan without other windows wrote it. */
  readonly byWindow?: readonly (readonly [windowMs: number, record: unknown])[];
}

/** What a plan may take in a longer window of another plan. */
interface Counting<Config> {
  /** The most that it takes there by itself. */
  mostIn(config: Config, other: Config): number;
  /** Counts there, up to `limit` at least, and to what the other one may take. */
  countedIn(config: Config, other: Config, limit: number): object;
}

/** By the algorithms whose states know of no longer window. */
export const COUNTING: Readonly<Record<string, Counting<never>>> = {
  "sliding-log": {
    mostIn: ({ limit, windowMs }, other) => limit * Math.ceil(other.windowMs / windowMs),
    countedIn: (config, { windowMs }, limit) => ({ ...config, windowMs, limit }),
  } satisfies Counting<SlidingLogConfig>,
  "sliding-window-counter": {
    // Where its windows fit into the longer one, each takes at most the limit. Else it is as a bucket.
    mostIn({ limit, windowMs }, other) {
      const times = other.windowMs / windowMs;
      return Number.isInteger(times) ? limit * times : Math.floor(limit * (1 + times));
    },
    countedIn: (_, { windowMs }, limit) => ({ windowMs, limit }),
  } satisfies Counting<SlidingWindowCounterConfig>,
  "fixed-window": {
    mostIn: (config, other) => config.limit * mostWindows(config, other) + config.carry,
    countedIn: (_, other, limit) => ({
      ...other,
      limit,
      carry: Math.max(0, other.limit + other.carry - limit),
    }),
  } satisfies Counting<FixedWindowConfig>,
};

/** How many windows one window of another configuration meets at most. */
function mostWindows(windows: Windows, longer: Windows): number {
  const [short, long] = [windows.calendar, longer.calendar];
  const jitterMs = windows.jitterMs + longer.jitterMs;
  if (short && long && jitterMs === 0 && windows.timeZone === longer.timeZone)
    return mostPeriods(short.period, long.period);
  const { windowMs } = windows;
  const longMs = long?.longestMs ?? longer.windowMs;
  // A period of the calendar may be shorter than usual.
  if (windows.align !== "epoch" || longer.align !== "epoch" || jitterMs > 0)
    return Math.floor((longMs - 1 + jitterMs) / windowMs) + (short ? 3 : 2);
  // A window since the epoch begins at a multiple of what both have in common.
  return Math.ceil((longMs + windowMs - divisorOf(longMs, windowMs)) / windowMs);
}

type SeveralAlgorithm = Algorithm<SeveralWindows, States>;

export function severalWindows(algorithm: AnyAlgorithm): SeveralAlgorithm {
  const plain = algorithm as unknown as SeveralAlgorithm;
  const inAll = <Result>(
    { windows }: SeveralWindows,
    states: States | undefined,
    call: (config: object, state: unknown, index: number) => Result,
  ) => windows.map(({ config }, index) => call(config, states?.[index], index));
  const map = (...of: Parameters<typeof inAll<unknown>>) => statesOf(inAll(...of));
  const checked = <Result>(
    { windows, own }: SeveralWindows,
    states: States | undefined,
    call: (config: object, state: unknown) => Result,
  ) => windows.slice(0, own + 1).map(({ config }, index) => call(config, states?.[index]));
  const ownOf = ({ windows, own }: SeveralWindows) => windows[own]?.config ?? {};

  /** From when on all of the plan's limit is free. */
  const fullAtMs = (config: SeveralWindows, states: States | undefined, nowMs: number, uses?: Uses) => {
    const capacity = algorithm.capacity(ownOf(config));
    const ownMs = algorithm.untouchedAtMs(ownOf(config), states?.[config.own], uses);
    const fitsMs = checked(config, states, (each, state) => {
      const forecast = algorithm.forecast(each, state);
      if (uses !== undefined) forecast.debit(uses, 0, uses.endsMs.length);
      return forecast.passesAtMs(Math.max(ownMs, nowMs), capacity, 0);
    });
    return Math.max(...fitsMs);
  };

  return {
    ...plain,
    ...storageOf(algorithm),
    capacity: (config) => algorithm.capacity(ownOf(config)),
    quota: (config) => algorithm.quota(ownOf(config)),
    localDecisions: (config) => algorithm.localDecisions(ownOf(config)),
    refillMs: ({ windows }, missing) =>
      Math.max(...windows.map(({ config }) => algorithm.refillMs(config, missing))),
    scale: () => undefined,
    // What is held for a window of one is not enough for a longer window.
    lessRate: () => undefined,
    decide(config, states, nowMs, cost, outstanding) {
      const decisions = checked(config, states, (each, state) =>
        algorithm.decide(each, state, nowMs, cost, outstanding),
      );
      const resetAfterMs = (of: States | undefined) => fullAtMs(config, of, nowMs) - nowMs;
      if (decisions.some(({ allowed }) => !allowed)) {
        const looks = checked(config, states, (each, state) =>
          algorithm.decide(each, state, nowMs, 0, outstanding),
        );
        return denied(decisions, looks, states, resetAfterMs);
      }
      const after = map(config, states, (each, state, index) => {
        const decision = decisions[index];
        if (decision?.allowed === true) return decision.state;
        if (cost === 0) return state;
        return algorithm.debit(each, algorithm.noteHold?.(each, state, nowMs) ?? state, nowMs, cost);
      });
      return { allowed: true, state: after, ...least(decisions), resetAfterMs: resetAfterMs(after) };
    },
    ...(algorithm.noteHold && {
      noteHold: (config, states, nowMs) =>
        map(config, states, (each, state) => algorithm.noteHold?.(each, state, nowMs) ?? state),
    }),
    debit: (config, states, nowMs, units) =>
      map(config, states, (each, state) => algorithm.debit(each, state, nowMs, units)),
    ...(algorithm.maxDebit && {
      maxDebit: (config, states, nowMs) =>
        Math.min(
          ...inAll(config, states, (each, state) => algorithm.maxDebit?.(each, state, nowMs) ?? Infinity),
        ),
    }),
    credit: (config, states, ...charge) =>
      map(config, states, (each, state) => algorithm.credit(each, state, ...charge)),
    untouchedAtMs: (config, states, uses) =>
      Math.max(...inAll(config, states, (each, state) => algorithm.untouchedAtMs(each, state, uses))),
    outlastsMs: (config, states) =>
      Math.max(
        ...inAll(config, states, (each, state) =>
          state === undefined ? -Infinity : (algorithm.outlastsMs?.(each, state) ?? -Infinity),
        ),
      ),
    fullAtMs,
    forecast(config, states) {
      const forecasts = checked(config, states, (each, state) => algorithm.forecast(each, state));
      return {
        debit(...uses) {
          for (const each of forecasts) each.debit(...uses);
        },
        take(...units) {
          for (const each of forecasts) each.take(...units);
        },
        // What passes at an instant also passes later if no call comes, so the last of the instants is exact.
        passesAtMs: (...cost) => Math.max(...forecasts.map((each) => each.passesAtMs(...cost))),
        isCertain: (...held) => forecasts.every((each) => each.isCertain(...held)),
      };
    },
  };
}

function storageOf(algorithm: AnyAlgorithm): Pick<SeveralAlgorithm, "covers" | "pack" | "unpack" | "bytes"> {
  // A log may be large, and has what shorter windows count.
  const isLog = algorithm.bytes !== undefined;
  return {
    ...(isLog && {
      bytes: (states) =>
        states.reduce<number>(
          (sum, each) => sum + (each === undefined ? 0 : (algorithm.bytes?.(each) ?? 0)),
          0,
        ),
    }),
    covers: ({ windows }, stored, ahead, states, outstanding, nowMs) =>
      windows.every(({ windowMs, config }, index) => {
        if (isLog && index > 0) return true;
        const record = recordOf(stored, windowMs);
        return algorithm.covers(config, record, ahead, states?.[index], outstanding, nowMs);
      }),
    pack({ windows }, states, nowMs, before) {
      const records = windows.map(({ config }, index) => {
        const state = isLog && index > 0 ? undefined : states[index];
        return state === undefined ? undefined : algorithm.pack(config, state, nowMs, before);
      });
      const [longest] = records;
      if (isLog) return longest ?? { record: undefined };
      const byWindow = windows.map(({ windowMs }, index) => [windowMs, records[index]?.record ?? null]);
      // Earlier versions read the first that there is, in all windows.
      const first = longest ?? records.find((each) => each !== undefined);
      return { record: { ...(first?.record as object), byWindow: byWindow.slice(longest ? 1 : 0) } };
    },
    unpack: ({ windows }, stored, segments) =>
      windows.map(({ windowMs, config }) => {
        const record = recordOf(stored, windowMs);
        return record === undefined ? undefined : algorithm.unpack(config, record, segments);
      }),
  };
}

function recordOf(stored: unknown, windowMs: number): unknown {
  if (stored === undefined) return undefined;
  const { byWindow, ...longest } = stored as Recorded;
  const own = byWindow?.find(([ms]) => ms === windowMs);
  return own === undefined ? longest : (own[1] ?? undefined);
}

function statesOf(states: States): States | undefined {
  return states.every((state) => state === undefined) ? undefined : states;
}

type Decisions = readonly AlgorithmDecision<unknown>[];

function least(decisions: Decisions): Pick<AlgorithmDecision<unknown>, "remaining" | "quotaRemaining"> {
  const remaining = Math.min(...decisions.map((each) => each.remaining));
  if (decisions.every(({ quotaRemaining }) => quotaRemaining === undefined)) return { remaining };
  const quotas = decisions.map((each) => each.quotaRemaining ?? each.remaining);
  return { remaining, quotaRemaining: Math.min(...quotas) };
}

/** The denial with the longest wait. @param looks what remains in each window, as some admit the cost */
function denied(
  decisions: Decisions,
  looks: Decisions,
  states: States | undefined,
  resetAfterMs: (states: States | undefined) => number,
): AlgorithmDecision<States> {
  const denials = decisions.filter((each) => !each.allowed);
  const waitOf = ({ retryAfterMs }: { readonly retryAfterMs: number | null }) => retryAfterMs ?? Infinity;
  // The plan's own window is the last, and its reason comes first.
  const longest = denials.reduceRight((one, other) => (waitOf(other) > waitOf(one) ? other : one));
  const { counted: _, ...denial } = { ...longest, ...least(looks), resetAfterMs: resetAfterMs(states) };
  if (denials.every(({ counted }) => counted === undefined)) return denial;
  const after = Array.from({ length: states?.length ?? decisions.length }, (__, index) => {
    const decision = decisions[index];
    return (decision?.allowed === false && decision.counted?.state) || states?.[index];
  });
  const waitMs = Math.max(...denials.map(({ counted, ...each }) => waitOf(counted ?? each)));
  const retryAfterMs = waitMs === Infinity ? null : waitMs;
  return { ...denial, counted: { ...denial, retryAfterMs, resetAfterMs: resetAfterMs(after), state: after } };
}
