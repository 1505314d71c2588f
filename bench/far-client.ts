/**
 * A process of far-clients.ts with several clients. Its arguments: the limiter, the token, the clients, the calls a second of
 * each, when to start, and for how many seconds.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { createLimiter } from "../package/client.ts";

export const FIRST_MS = 5_000;
/** A call that took longer has waited for a message. */
const WAITED_MS = 20;

export interface Counts {
  calls: number;
  admitted: number;
  degraded: number;
  /** Of the calls that waited for a message, in milliseconds. */
  readonly waitsMs: number[];
}

/** Calls that arrive at random, `rate` a second. */
async function runClient(url: string, token: string, rate: number, startMs: number, seconds: number) {
  const limiter = createLimiter({ url, token, policy: "hot" });
  const counts: Counts = { calls: 0, admitted: 0, degraded: 0, waitsMs: [] };
  // The first call of a process loads what fetch() needs.
  await (await fetch(`${url}/healthz`)).text();
  await sleep(startMs - Date.now());
  const beganMs = performance.now();
  const call = async (atMs: number) => {
    const { success, reason } = await limiter.limit({ key: "all" });
    if (atMs < FIRST_MS) return;
    counts.calls += 1;
    if (success) counts.admitted += 1;
    if (reason === "degraded") counts.degraded += 1;
    const tookMs = performance.now() - beganMs - atMs;
    if (tookMs > WAITED_MS) counts.waitsMs.push(Math.round(tookMs));
  };
  const under: Promise<void>[] = [];
  for (let atMs = 0; atMs < FIRST_MS + seconds * 1_000; atMs -= (Math.log(Math.random()) * 1_000) / rate) {
    const waitMs = beganMs + atMs - performance.now();
    if (waitMs > 1) await sleep(waitMs);
    under.push(call(performance.now() - beganMs));
  }
  await Promise.all(under);
  await limiter.close();
  return counts;
}

const [url, token, ...numbers] = process.argv.slice(2);
if (url !== undefined && token !== undefined) {
  const [clients = 0, rate = 0, startMs = 0, seconds = 0] = numbers.map(Number);
  const each = () => runClient(url, token, rate, startMs, seconds);
  console.log(JSON.stringify(await Promise.all(Array.from({ length: clients }, each))));
}
