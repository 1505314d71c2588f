/** Whether a limit is exact: many concurrent calls on one key. */
import { mostInWindow, worstExcess, type AdmittedCall } from "../../test/support/interval-bound.ts";
import { pause, type Answered, type Calls } from "./calls.ts";
import type { RatePolicy, RateRule } from "./policies.ts";
import { type Finding, untested } from "./report.ts";
import { windowExcess } from "./window-bound.ts";

export const CALLERS = 48;
/** The longest pause of a denied caller, in milliseconds. */
const MAX_PAUSE_MS = 25;
/** An object may move to a machine whose clock is ahead by this much: refills in that time are no error. */
export const CLOCKS_DIFFER_MS = 20;

interface Bounded {
  /** Units above the bound in the worst interval; 0 or less: it was kept. */
  readonly excess: number;
  readonly isBroken: boolean;
}

/** Calls on a fresh key, and compares the admissions with the bound in every interval. */
export async function verifyExactness(calls: Calls, rate: RatePolicy, lastsMs: number): Promise<Finding> {
  const key = calls.freshKey();
  const answers = await callByMany(calls, lastsMs, { policy: rate.policy, key });
  await calls.reset(rate.policy, key);
  return findingOf(rate, answers, lastsMs);
}

export async function callByMany(calls: Calls, lastsMs: number, body: object): Promise<Answered[]> {
  const answers: Answered[] = [];
  const endMs = performance.now() + lastsMs;
  const callUntilEnd = async () => {
    while (performance.now() < endMs) {
      const answered = await calls.make("POST", "/v1/limit", body);
      if (answered === undefined) {
        await pause(MAX_PAUSE_MS);
        continue;
      }
      answers.push(answered);
      if (answered.body["success"] === true) continue;
      const waitMs = Number(answered.body["retryAfterMs"] ?? MAX_PAUSE_MS);
      await pause(Math.max(1, Math.min(waitMs, MAX_PAUSE_MS)));
    }
  };
  await Promise.all(Array.from({ length: CALLERS }, callUntilEnd));
  return answers;
}

/** The answers that are decisions: no errors, and not degraded. */
export function decisionsIn(answers: readonly Answered[]): Answered[] {
  return answers.filter(({ status, body }) => status === 200 && body["reason"] !== "degraded");
}

export function notDecided(count: number): string[] {
  return count === 0 ? [] : [`${count} answers were not decisions: errors, or degraded`];
}

function findingOf(rate: RatePolicy, answers: readonly Answered[], lastsMs: number): Finding {
  const name = `exactness of ${rate.policy}: ${inWords(rate)}`;
  const decided = decisionsIn(answers);
  const admitted = decided
    .filter(({ body }) => body["success"] === true)
    .map((each) => ({ ...each, units: 1 }));
  const { excess, isBroken } = boundOf(rate, admitted);
  const says = [
    `${answers.length} calls by ${CALLERS} at once in ${lastsMs / 1_000} s: ${admitted.length} admitted of about ${mostIn(rate, lastsMs)}`,
    excess > 0
      ? `in the worst interval ${Math.ceil(excess)} more than the bound`
      : "in no interval more than the bound",
    ...notDecided(answers.length - decided.length),
  ];
  if (admitted.length === 0) return untested(name, ...says, "nothing was admitted");
  const isUsedUp = decided.length > admitted.length;
  if (!isUsedUp) says.push("nothing was denied: this machine is too slow to test this limit");
  return { name, verdict: isBroken ? "BROKEN" : isUsedUp ? "holds" : "untested", says };
}

export function inWords({ algorithm, limit, windowMs, capacity }: RateRule): string {
  return `${algorithm}, ${limit} per ${windowMs} ms, ${capacity} at once`;
}

/** Roughly the units that a rule admits in this time, if nothing was used before. */
export function mostIn({ algorithm, limit, windowMs, capacity }: RateRule, lastsMs: number): number {
  const windows = lastsMs / windowMs;
  const isRefilled = algorithm === "token-bucket" || algorithm === "gcra";
  return Math.floor(capacity + limit * (isRefilled ? windows : Math.floor(windows)));
}

export function boundOf(rule: RateRule, admitted: readonly AdmittedCall[]): Bounded {
  if (admitted.length === 0) return { excess: 0, isBroken: false };
  const { algorithm, limit, windowMs, capacity, shortestMs } = rule;
  if (algorithm === "sliding-log") return exact(mostInWindow(admitted, windowMs) - limit);
  if (algorithm === "fixed-window") return exact(excessOfWindows(admitted, limit, shortestMs));
  const excess = worstExcess(admitted, { limit, windowMs, burst: capacity });
  return { excess, isBroken: excess > (limit / windowMs) * CLOCKS_DIFFER_MS };
}

/** An interval of length L meets at most L / shortest + 2 windows, those of calls under way included. */
function excessOfWindows(admitted: readonly AdmittedCall[], limit: number, shortestMs: number): number {
  const atLeastMs = Math.max(1, shortestMs - CLOCKS_DIFFER_MS);
  const inAnyInterval = worstExcess(admitted, { limit, windowMs: atLeastMs, burst: 2 * limit });
  return Math.max(windowExcess(admitted, limit, atLeastMs), inAnyInterval);
}

function exact(excess: number): Bounded {
  return { excess, isBroken: excess > 0 };
}
