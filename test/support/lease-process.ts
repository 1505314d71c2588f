/**
 * A process that leases slots of one key through its own client. It makes pairs of acquire and release, prints
 * each as `begin end` in milliseconds of the machine's clock, and a summary. Then it holds leases until its input ends.
 */
import { createLimiter } from "../../package/client.ts";

const [url = "", token = "", policy = "", key = "", pairs = "0", held = "0"] = process.argv.slice(2);
let requests = 0;
const counting = (at: string, init: RequestInit): Promise<Response> => {
  requests += 1;
  return fetch(at, init);
};
const limiter = createLimiter({ url, token, policy, fetch: counting });
console.warn = () => undefined;
const isOver = new Promise<void>((done) => process.stdin.on("end", done).resume());
const counts = { pairs: 0, here: 0, denied: 0, lost: 0 };
const rest = () => new Promise((done) => setTimeout(done, 1));

/** Acquires until a slot is free here. */
async function acquireHere() {
  for (;;) {
    const grant = await limiter.acquire({ key });
    if (grant.lease?.signal !== undefined) return grant;
    if (grant.lease !== undefined) await limiter.release({ id: grant.lease.id });
    await rest();
  }
}

async function makePairs(): Promise<void> {
  while (counts.pairs < Number(pairs)) {
    counts.pairs += 1;
    const { lease } = await limiter.acquire({ key });
    const beganMs = Date.now();
    if (lease === undefined) counts.denied += 1;
    else if (lease.signal !== undefined) counts.here += 1;
    await rest();
    if (lease?.signal?.aborted === true) counts.lost += 1;
    if (lease === undefined) continue;
    process.stdout.write(`${beganMs} ${Date.now()}\n`);
    await limiter.release({ id: lease.id }).catch(() => undefined);
  }
}

await acquireHere().then((grant) => grant[Symbol.asyncDispose]());
const before = requests;
await Promise.all(Array.from({ length: 4 }, () => makePairs()));
process.stdout.write(`${JSON.stringify({ ...counts, requests: requests - before })}\n`);
const grants = [];
for (let count = 0; count < Number(held); count += 1) grants.push(await acquireHere());
if (grants.length > 0) process.stdout.write("holding\n");
await isOver;
await limiter.close();
process.stdout.write(`${JSON.stringify({ aborted: grants.map(({ lease }) => lease?.signal?.aborted) })}\n`);
