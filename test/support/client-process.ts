/**
 * A process that calls one key at a set rate through its own client, until its input ends. It prints each
 * admitted call as `begin end`, in milliseconds of the machine's clock, and at the end a summary.
 */
import { createLimiter } from "../../package/client.ts";

const [url = "", token = "", policy = "", key = "", paceMs = "0"] = process.argv.slice(2);
let requests = 0;
const counting = (at: string, init: RequestInit): Promise<Response> => {
  requests += 1;
  return fetch(at, init);
};
const limiter = createLimiter({ url, token, policy, fetch: counting });
console.warn = () => undefined;
let isOver = false;
process.stdin.on("end", () => (isOver = true)).resume();
const counts = { calls: 0, admitted: 0, here: 0 };
let lines: string[] = [];
const flush = () => {
  if (lines.length > 0) process.stdout.write(`${lines.join("\n")}\n`);
  lines = [];
};
while (!isOver) {
  const beganMs = Date.now();
  const { success, source } = await limiter.limit({ key });
  counts.calls += 1;
  if (source === "isolate") counts.here += 1;
  if (success) {
    counts.admitted += 1;
    lines.push(`${beganMs} ${Date.now()}`);
  }
  if (counts.calls % 64 === 0) {
    flush();
    await new Promise((done) => setTimeout(done, Number(paceMs)));
  }
}
flush();
await limiter.close();
process.stdout.write(`${JSON.stringify({ ...counts, requests })}\n`);
