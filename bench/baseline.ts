/**
 * The baselines against which Weir is measured. They are Hono routes that answer a constant, as large as a decision,
 * to the same POST body without reading it. (a) does nothing else. (b) makes one RPC to an object that counts in
 * memory. (c) makes one RPC, and the object writes one row. (h) reads the body, and makes one RPC to an object of the key's
 * own. (f), (g), (i) and (j) are past any router, and read the call.
 */
import { DurableObject, WorkerEntrypoint } from "cloudflare:workers";
import { Hono } from "hono";

/** It has the name of Weir's class, because it is served with Weir's configuration. */
export class LimiterObject extends DurableObject {
  #count = 0;
  #hasTable = false;
  readonly #counts = new Map<string, number>();

  count(): number {
    this.#count += 1;
    return this.#count;
  }

  countAndWrite(key = "x", count = (this.#count += 1)): number {
    if (!this.#hasTable)
      this.ctx.storage.sql.exec(
        "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID",
      );
    this.#hasTable = true;
    this.ctx.storage.sql.exec("INSERT OR REPLACE INTO counts (key, count) VALUES (?, ?)", key, count);
    return this.#count;
  }

  /** Counts a key's calls, and writes a row for each. */
  countKey(key: string): number {
    const count = (this.#counts.get(key) ?? 0) + 1;
    this.#counts.set(key, count);
    this.countAndWrite(key, count);
    return count;
  }

  /** One row for all of a message's calls. */
  writeTogether(keys: readonly string[]): number[] {
    this.countAndWrite();
    return keys.map((_, index) => this.#count + index);
  }
}

const rule = {
  name: "hot",
  success: true,
  limit: 1_000_000,
  remaining: 999_999,
  resetAfterMs: 1,
  retryAfterMs: 0,
  reason: "ok",
};
const answer = { ...rule, policy: "hot", key: "user:42", source: "object", rules: [rule] };

/** (e): a constant over a service binding. */
export class Limiter extends WorkerEntrypoint {
  limit(): typeof answer {
    return answer;
  }
}

interface Env {
  readonly OBJECTS: DurableObjectNamespace<LimiterObject>;
}

const app = new Hono<{ Bindings: Env }>();
app.post("/constant", (c) => c.json(answer));
app.post("/rpc", async (c) => {
  await c.env.OBJECTS.getByName("x").count();
  return c.json(answer);
});
app.post("/rpc-by-key", async (c) => {
  const { key } = await c.req.json<{ key: string }>();
  await c.env.OBJECTS.getByName(key).count();
  return c.json(answer);
});
app.post("/write", async (c) => {
  await c.env.OBJECTS.getByName("x").countAndWrite();
  return c.json(answer);
});

/**
 * (f): a route that reads the body, parses it, and answers a decision's text and headers, past any router: all that a
 * limiter has to do but decide. With a query instead of a body, that is read.
 */
async function parsed(request: Request): Promise<Response> {
  const given = JSON.parse(decoder.decode(await request.arrayBuffer())) as { key: string };
  return decisionFor(given.key);
}

function inQuery(url: string): Response {
  return decisionFor(/&key=([^&]*)/.exec(url)?.[1] ?? "");
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function decisionFor(key: string): Response {
  const text = `{"success":true,"policy":"hot","key":${JSON.stringify(key)},"limit":1000000,"remaining":999999,"resetAfterMs":1,"retryAfterMs":0,"reason":"ok","source":"isolate","rules":[{"name":"hot","success":true,"limit":1000000,"remaining":999999,"resetAfterMs":1,"retryAfterMs":0,"reason":"ok"}]}`;
  return new Response(text, { headers: HEADERS });
}

const HEADERS = {
  "content-type": "application/json",
  "cache-control": "no-store",
  "ratelimit-policy": '"hot";q=1000000;w=1',
  ratelimit: '"hot";r=999999;t=1',
};

interface Waiting {
  readonly key: string;
  readonly resolve: (count: number | undefined) => void;
}

let waiting: Waiting[] = [];
let isSending = false;
let messages = 0;

/**
 * (i): as (f), but each answer waits until an object has written a row. Calls that came within a millisecond, or while a
 * message was under way, go in one message, which writes one row: all that a stored decision has to do but decide.
 */
async function together(request: Request, env: Env, ctx: ExecutionContext): Promise<Response> {
  const given = JSON.parse(decoder.decode(await request.arrayBuffer())) as { key: string };
  const answered = new Promise<number | undefined>((resolve) => waiting.push({ key: given.key, resolve }));
  if (!isSending) {
    isSending = true;
    ctx.waitUntil(send(env));
  }
  // A request that waits for another one alone counts as one that hangs.
  const timer = setTimeout(() => {}, 10_000);
  await answered;
  clearTimeout(timer);
  return decisionFor(given.key);
}

async function send(env: Env): Promise<void> {
  await scheduler.wait(1);
  const calls = waiting;
  waiting = [];
  messages += 1;
  const counts = await env.OBJECTS.getByName("x").writeTogether(calls.map(({ key }) => key));
  isSending = false;
  for (const [index, call] of calls.entries()) call.resolve(counts[index]);
}

/** How many calls of a key (j) admits. */
const ADMITTED = 2;
const OBJECTS = 16;
const used = new Set<string>();

/** (j): as (f), but a key's first calls are counted and stored by one of 16 objects. The isolate denies all others by itself. */
async function mostlyDenied(request: Request, env: Env): Promise<Response> {
  const { key } = JSON.parse(decoder.decode(await request.arrayBuffer())) as { key: string };
  if (used.has(key)) return decisionFor(key);
  messages += 1;
  const name = String(Number(key.slice(key.indexOf(":") + 1)) % OBJECTS);
  const count = await env.OBJECTS.getByName(name).countKey(key);
  if (count >= ADMITTED) used.add(key);
  return decisionFor(key);
}

export default {
  fetch(request: Request, env: Env, ctx: ExecutionContext): Response | Promise<Response> {
    const { url } = request;
    if (url.endsWith("/parsed")) return parsed(request);
    if (url.endsWith("/together")) return together(request, env, ctx);
    if (url.endsWith("/few")) return mostlyDenied(request, env);
    if (url.endsWith("/counts")) return Response.json({ objectCalls: messages, rowsWritten: messages });
    return url.includes("/in-query?") ? inQuery(url) : app.fetch(request, env, ctx);
  },
};
