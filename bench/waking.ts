/** Measures how long after a release the next caller in the queue has its lease, beside a call that does not wait. */
import { setTimeout as sleep } from "node:timers/promises";

const ROUNDS = 300;

export async function measureWaking(url: string, token: string): Promise<void> {
  const call = async (method: string, path: string, body?: object) => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const response = await fetch(`${url}${path}`, { method, headers, body: JSON.stringify(body) ?? null });
    const text = await response.text();
    return (text === "" ? {} : JSON.parse(text)) as { lease?: { id: string }; queueLength?: number };
  };
  const acquire = async (waitMs: number) => {
    const body = { policy: "slots", key: "waking", units: 10_000, waitMs };
    const { lease } = await call("POST", "/v1/leases", body);
    if (lease === undefined) throw new Error("no lease");
    return lease.id;
  };
  const [wakingMs, plainMs]: [number[], number[]] = [[], []];
  let held = await acquire(0);
  for (let round = 0; round < ROUNDS; round += 1) {
    const waiting = acquire(30_000);
    const key = "/v1/policies/slots/keys/waking";
    while ((await call("GET", key)).queueLength !== 1) await sleep(1);
    const readAtMs = performance.now();
    await call("GET", key);
    const releasedAtMs = performance.now();
    plainMs.push(releasedAtMs - readAtMs);
    const released = call("DELETE", `/v1/leases/${held}`);
    held = await waiting;
    wakingMs.push(performance.now() - releasedAtMs);
    await released;
  }
  console.log(`
From a release being sent to the next waiter having its lease: ${quantiles(wakingMs)}; a plain read of the same key, for
comparison: ${quantiles(plainMs)} (${ROUNDS} rounds, one client).`);
}

function quantiles(latenciesMs: readonly number[]): string {
  const sorted = latenciesMs.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.floor(sorted.length * share)]?.toFixed(1);
  return `${at(0.5)} ms in the middle, ${at(0.99)} ms at the 99th percentile`;
}
