/** How long calls take from this machine, network included. */
import type { Calls } from "./calls.ts";
import type { Finding } from "./report.ts";

/** Measures each kind of call so many times, one after the other. */
export async function measureLatency(calls: Calls, policy: string, times: number): Promise<Finding> {
  const key = calls.freshKey();
  const kinds = {
    "the network: GET /healthz": () => calls.make("GET", "/healthz"),
    "a key that was asked for before": () => calls.make("POST", "/v1/limit", { policy, key, cost: 0 }),
    "a key for the first time": () =>
      calls.make("POST", "/v1/limit", { policy, key: calls.freshKey(), cost: 0 }),
  };
  const says: string[] = [];
  for (const [kind, call] of Object.entries(kinds)) {
    await call();
    const tookMs: number[] = [];
    for (let time = 0; time < times; time += 1) {
      const beginMs = performance.now();
      if ((await call()) !== undefined) tookMs.push(performance.now() - beginMs);
    }
    says.push(`${kind}: ${percentiles(tookMs)}`);
  }
  return { name: `latency, ${times} calls each, one after the other`, verdict: "measured", says };
}

/** Percentiles of durations, in words. */
export function percentiles(tookMs: readonly number[]): string {
  if (tookMs.length === 0) return "no answer";
  const inOrder = tookMs.toSorted((a, b) => a - b);
  const at = (share: number) => (inOrder[Math.ceil(share * inOrder.length) - 1] ?? 0).toFixed(1);
  return `p50 ${at(0.5)} ms, p95 ${at(0.95)} ms, p99 ${at(0.99)} ms`;
}
