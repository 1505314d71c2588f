/**
 * The worker utilization load shedder: while the machines behind a policy are too busy, it denies calls by chance, the
 * least important first. After P. Tarjan, "Scaling your API with rate limiters" (Stripe, 2017).
 *
 * The idea: one number, the *level*, defines what is shed. At 0 nothing is shed; at 1 every call of the least
 * important priority; at 1.4 these, and 40 % of the calls of the next one. The most important calls are never shed.
 * Above the `bad` utilization the level rises, below the `good` one it falls, in between it stays. It moves by one
 * priority in `over`. It rises only after trouble has lasted for `after`. Trouble ends when the utilization was below
 * `good`, or for `after` not above `bad`: so shed calls return slowly, and a burst sheds nothing.
 *
 * An example with good = 0.7, bad = 0.8, after = 28 s, over = 120 s: machines that are 95 % busy shed nothing for 28
 * s, 10 % of the `low` calls after 40 s, half of them after 88 s. If that lowers them to 78 %, the level stays while
 * the load lasts.
 *
 * Why it does not oscillate: shedding takes effect after a lag (`LAG_MS`: chances that isolates keep, reports that
 * fade, the queue of a machine). In that time the utilization moves by at most lag / over, which must be less than the
 * gap between good and bad: then too much shedding is not followed by too little. `sheddingOf` in
 * core/policies/priorities.ts rejects a shorter `over`.
 *
 * What it is bad at: an overload of less than a minute. Use a queue or a limit for that.
 */

/** When and how much a policy sheds. Utilizations are from 0 to 1. */
export interface Shedding {
  /** Below it, the level falls. */
  readonly good: number;
  /** Above it, the level rises. */
  readonly bad: number;
  readonly afterMs: number;
  readonly overMs: number;
  /** The source of the utilization: the key's share of `leases` in use, or callers' `reports`. */
  readonly by: "leases" | "reports";
}

interface Importance {
  /** The most important first. */
  readonly names: readonly string[];
  readonly usual: string;
}

export interface SheddingState {
  /** How many priorities are shed, from the least important. */
  readonly level: number;
  /** How long the utilization has been bad since it was last good. */
  readonly troubleMs: number;
  /** How long it has not been bad since then: `after` of that ends the trouble too. */
  readonly calmMs: number;
  readonly atMs: number;
  /** The sum of all reports and their number, both of which fade. */
  readonly sum: number;
  readonly count: number;
  readonly reportedAtMs: number;
}

export interface Reports {
  readonly sum: number;
  readonly count: number;
}

/** The time constant of fading: a report counts 37 % of one that comes this much later. */
export const FADES_MS = 5_000;
/** After this time without reports the utilization is unknown, and the level falls. */
export const KNOWN_FOR_MS = 15_000;
/** How long shedding takes to show in the reports: two refreshed chances, and reports that fade. */
export const LAG_MS = 8_000;

export function sheddingNothing(nowMs: number): SheddingState {
  return { level: 0, troubleMs: 0, calmMs: 0, atMs: nowMs, sum: 0, count: 0, reportedAtMs: -Infinity };
}

/** The utilization of the machines; `undefined`: no recent reports. */
export function utilizationOf(
  { sum, count, reportedAtMs }: SheddingState,
  nowMs: number,
): number | undefined {
  return count > 0 && nowMs < reportedAtMs + KNOWN_FOR_MS ? sum / count : undefined;
}

/** The state at `nowMs` without new reports. A clock that went backwards changes nothing. */
export function advanced(
  shedding: Shedding,
  priorities: Importance,
  state: SheddingState,
  nowMs: number,
): SheddingState {
  if (nowMs <= state.atMs) return state;
  const knownUntilMs = Math.min(Math.max(state.reportedAtMs + KNOWN_FOR_MS, state.atMs), nowMs);
  const known = moved(shedding, priorities, state, knownUntilMs);
  return moved(shedding, priorities, known, nowMs);
}

export function reported(
  shedding: Shedding,
  priorities: Importance,
  before: SheddingState,
  { sum, count }: Reports,
  nowMs: number,
): SheddingState {
  const state = advanced(shedding, priorities, before, nowMs);
  if (count === 0) return state;
  const stays = Math.exp(-Math.max(0, nowMs - state.reportedAtMs) / FADES_MS);
  return {
    ...state,
    sum: state.sum * stays + sum,
    count: state.count * stays + count,
    reportedAtMs: Math.max(nowMs, state.reportedAtMs),
  };
}

/** The state if this part of the leases has been in use since the last call. */
export function leasedSince(
  shedding: Shedding,
  importance: Importance,
  before: SheddingState,
  part: number,
  nowMs: number,
): SheddingState {
  const mean = before.count === 0 ? part : before.sum / before.count;
  const known = { ...before, reportedAtMs: Infinity, sum: mean, count: 1 };
  const ends = [];
  // After a minute the mean has converged.
  for (let atMs = before.atMs + STEP_MS; atMs < nowMs && ends.length < MAX_STEPS; atMs += STEP_MS)
    ends.push(atMs);
  return [...ends, nowMs].reduce((state, endMs) => {
    const ms = Math.max(0, endMs - state.atMs);
    const sum = part + (state.sum - part) * Math.exp(-ms / FADES_MS);
    return moved(shedding, importance, Object.assign({}, state, { sum }), Math.max(state.atMs, endMs));
  }, known);
}

const STEP_MS = 1_000;
const MAX_STEPS = 60;

function moved(
  { good, bad, afterMs, overMs }: Shedding,
  { names }: Importance,
  state: SheddingState,
  untilMs: number,
): SheddingState {
  const { level, troubleMs, atMs } = state;
  const ms = untilMs - atMs;
  const utilization = utilizationOf(state, atMs) ?? 0;
  const at = { ...state, atMs: untilMs };
  if (utilization < good) return { ...at, level: Math.max(0, level - ms / overMs), troubleMs: 0, calmMs: 0 };
  if (utilization <= bad) {
    const calmMs = state.calmMs + ms;
    return { ...at, troubleMs: calmMs < afterMs ? troubleMs : 0, calmMs };
  }
  const lastedMs = troubleMs + ms;
  const risesMs = Math.max(0, lastedMs - Math.max(troubleMs, afterMs));
  const maxLevel = names.length - 1;
  return { ...at, level: Math.min(maxLevel, level + risesMs / overMs), troubleMs: lastedMs, calmMs: 0 };
}

/** The chance, from 0 to 1, that a call of this priority is shed. */
export function chanceOf(priorities: Importance, level: number, priority: string | undefined): number {
  return Math.min(1, Math.max(0, level - importanceOf(priorities, priority)));
}

/** How long until calls of this priority are no longer shed if the overload ends now. */
export function restoredInMs(
  { overMs }: Shedding,
  priorities: Importance,
  level: number,
  priority: string | undefined,
): number {
  return Math.max(0, Math.ceil((level - importanceOf(priorities, priority)) * overMs));
}

/** 0: the least important priority. */
function importanceOf({ names, usual }: Importance, priority: string = usual): number {
  return names.length - 1 - names.indexOf(priority);
}
