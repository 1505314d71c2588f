/** Whether a limit is exact: one key, asked by many at once. */
import { mostInWindow, worstExcess, type AdmittedCall } from "../../test/support/interval-bound.ts";
import { pause, type Answered, type Calls } from "./calls.ts";
import type { RatePolicy } from "./policies.ts";
import type { Finding } from "./report.ts";

/** So many ask at once. */
const ASKERS = 48;
/** Whoever was denied asks again after this many milliseconds at most. */
const MOST_PAUSE_MS = 25;
/**
 * Objects may move from one machine to another, whose clock is ahead by so many milliseconds: what refills in them is
 * no leak of the limiter.
 */
const CLOCKS_DIFFER_MS = 20;

/** Asks for a fresh key for so long, and compares what was admitted with the bound in every interval. */
export async function verifyExactness(calls: Calls, rate: RatePolicy, lastsMs: number): Promise<Finding> {
  const key = calls.freshKey();
  const answers: Answered[] = [];
  const endMs = performance.now() + lastsMs;
  const askUntilEnd = async () => {
    while (performance.now() < endMs) {
      const answered = await calls.make("POST", "/v1/limit", { policy: rate.policy, key });
      if (answered === undefined) {
        await pause(MOST_PAUSE_MS);
        continue;
      }
      answers.push(answered);
      if (answered.body["success"] === true) continue;
      const waitMs = Number(answered.body["retryAfterMs"] ?? MOST_PAUSE_MS);
      await pause(Math.max(1, Math.min(waitMs, MOST_PAUSE_MS)));
    }
  };
  await Promise.all(Array.from({ length: ASKERS }, askUntilEnd));
  await calls.make("DELETE", `/v1/policies/${rate.policy}/keys/${encodeURIComponent(key)}`);
  return findingOf(rate, answers, lastsMs);
}

function findingOf(rate: RatePolicy, answers: readonly Answered[], lastsMs: number): Finding {
  const { policy, algorithm, limit, windowMs, capacity } = rate;
  const name = `exactness of ${policy}: ${algorithm}, ${limit} per ${windowMs} ms, ${capacity} at once`;
  const decided = answers.filter(({ status, body }) => status === 200 && body["reason"] !== "degraded");
  const admitted = decided
    .filter(({ body }) => body["success"] === true)
    .map((each) => ({ ...each, units: 1 }));
  const excess = excessOf(rate, admitted);
  const perMs = limit / windowMs;
  const allowed = Math.max(0, algorithm === "token-bucket" ? perMs * CLOCKS_DIFFER_MS : 0);
  const most = Math.floor(capacity + (algorithm === "token-bucket" ? perMs * lastsMs : 0));
  const says = [
    `${answers.length} calls by ${ASKERS} at once in ${lastsMs / 1_000} s: ${admitted.length} admitted of about ${most}`,
    excess > 0
      ? `in the worst interval ${Math.ceil(excess)} more than the bound`
      : "in no interval more than the bound",
    ...notDecided(answers.length - decided.length),
  ];
  if (admitted.length === 0) return { name, verdict: "untested", says: [...says, "nothing was admitted"] };
  const isUsedUp = decided.length > admitted.length;
  if (!isUsedUp) says.push("nothing was denied: this machine cannot ask fast enough to test this limit");
  return { name, verdict: excess > allowed ? "BROKEN" : isUsedUp ? "holds" : "untested", says };
}

/** By how many units the bound was exceeded in the worst interval; 0 or less: it was kept. */
function excessOf(rate: RatePolicy, admitted: readonly AdmittedCall[]): number {
  if (admitted.length === 0) return 0;
  const { algorithm, limit, windowMs, capacity } = rate;
  if (algorithm === "sliding-log") return mostInWindow(admitted, windowMs) - limit;
  return worstExcess(admitted, { limit, windowMs, burst: capacity });
}

function notDecided(count: number): string[] {
  return count === 0 ? [] : [`${count} answers were no decisions: errors, or degraded`];
}
