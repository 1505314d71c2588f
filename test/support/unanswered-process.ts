/** A process that makes a call on a limiter which may not answer, and then has nothing to do. */
import { createLimiter } from "../../package/client.ts";

const [url = "", call = "", mayClose = ""] = process.argv.slice(2);
console.warn = () => undefined;
const limiter = createLimiter({ url, token: "weir_token", deadlineMs: 100 });
const asked = { policy: "api", key: "a" };
const CALLS: Record<string, () => Promise<unknown>> = {
  limit: () => limiter.limit(asked),
  limitAll: () => limiter.limitAll({ checks: [asked] }),
  limitAny: () => limiter.limitAny({ checks: [asked] }),
  acquire: () => limiter.acquire(asked),
  hold: () => limiter.hold({ ...asked, units: 1 }),
  settle: () => limiter.settle({ id: "hold_a", used: 1 }),
  peek: () => limiter.peek(asked),
  policies: () => limiter.policies(),
};
await CALLS[call]?.().catch(() => undefined);
if (mayClose === "close") await limiter.close();
process.stdout.write("answered\n");
