/** Puts load on pools from several regions, and records the admissions. */
import type { HttpClient } from "./http-client.ts";
import { mostInWindow, worstExcess, type AdmittedCall } from "./interval-bound.ts";

export interface Rate {
  readonly limit: number;
  readonly windowMs: number;
  /** Absent: a sliding log. */
  readonly burst?: number;
}

export interface Tally {
  readonly admitted: AdmittedCall[];
  /** The number of answers, by `source` and outcome. */
  readonly answers: Record<string, number>;
}

export function pooled({ windowMs, ...rate }: Rate, fields: object = {}): object {
  const algorithm = rate.burst === undefined ? "sliding-log" : "token-bucket";
  return { algorithm, window: windowMs, ...rate, pool: "redis", deadlineMs: 4_000, ...fields };
}

export function newTally(): Tally {
  return { admitted: [], answers: {} };
}

/** Calls in `workers` loops, with a pause after each call, until stopped. */
export async function hammer(
  client: () => HttpClient,
  workers: number,
  { policy, key }: { readonly policy: string; readonly key: string },
  { admitted, answers }: Tally,
  isOver: () => boolean,
  pauseMs = 0,
): Promise<void> {
  const work = async () => {
    while (!isOver()) {
      try {
        const { body, sentAtMs, receivedAtMs } = await client().limit(policy, key);
        const answer = `${String(body["source"])} ${body["success"] === true ? "admits" : "denies"}`;
        answers[answer] = (answers[answer] ?? 0) + 1;
        if (body["success"] === true) admitted.push({ sentAtMs, receivedAtMs, units: 1 });
        if (pauseMs > 0) await new Promise((done) => setTimeout(done, pauseMs));
      } catch {
        await new Promise((done) => setTimeout(done, 20));
      }
    }
  };
  await Promise.all(Array.from({ length: workers }, work));
}

/** The largest excess over the bound in any interval, in units; 0: the bound is kept. */
export function excessOf({ admitted }: Tally, { limit, windowMs, burst }: Rate): number {
  const excess =
    burst === undefined
      ? mostInWindow(admitted, windowMs) - limit
      : worstExcess(admitted, { limit, windowMs, burst });
  return Math.max(0, excess);
}

/** The admitted units, as a part of those that one exact bucket or log admits of callers that never pause. */
export function shareOfBound({ admitted }: Tally, { limit, windowMs, burst }: Rate): number {
  const firstMs = Math.min(...admitted.map(({ sentAtMs }) => sentAtMs));
  const lastMs = Math.max(...admitted.map(({ receivedAtMs }) => receivedAtMs));
  const windows = (lastMs - firstMs) / windowMs;
  return (
    admitted.length / (burst === undefined ? limit * (Math.floor(windows) + 1) : burst + limit * windows)
  );
}
