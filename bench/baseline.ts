/**
 * The baselines against which Weir is measured. They are Hono routes that answer a constant, as large as a decision,
 * to the same POST body without reading it. (a) does nothing else. (b) makes one RPC to an object that counts in
 * memory. (c) makes one RPC, and the object writes one row. (h) reads the body, and makes one RPC to an object of the key's
 * own.
 */
import { DurableObject, WorkerEntrypoint } from "cloudflare:workers";
import { Hono } from "hono";

/** It has the name of Weir's class, because it is served with Weir's configuration. */
export class LimiterObject extends DurableObject {
  #count = 0;
  #hasTable = false;

  count(): number {
    this.#count += 1;
    return this.#count;
  }

  countAndWrite(): number {
    this.#count += 1;
    if (!this.#hasTable)
      this.ctx.storage.sql.exec(
        "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID",
      );
    this.#hasTable = true;
    this.ctx.storage.sql.exec("INSERT OR REPLACE INTO counts (key, count) VALUES ('x', ?)", this.#count);
    return this.#count;
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

export default {
  fetch(request: Request, env: Env, ctx: ExecutionContext): Response | Promise<Response> {
    const { url } = request;
    if (url.endsWith("/parsed")) return parsed(request);
    return url.includes("/in-query?") ? inQuery(url) : app.fetch(request, env, ctx);
  },
};
