/**
 * The baselines against which Weir is measured. They are Hono routes that answer a constant, as large as a decision,
 * to the same POST body without reading it. (a) does nothing else. (b) makes one RPC to an object that counts in
 * memory. (c) makes one RPC, and the object writes one row.
 */
import { DurableObject, WorkerEntrypoint } from "cloudflare:workers";
import { Hono } from "hono";

/** It has the name of Weir's class, because it is served with Weir's configuration. */
export class LimiterObject extends DurableObject {
  #count = 0;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    ctx.storage.sql.exec(
      "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID",
    );
  }

  count(): number {
    this.#count += 1;
    return this.#count;
  }

  countAndWrite(): number {
    this.#count += 1;
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

const app = new Hono<{ Bindings: { OBJECTS: DurableObjectNamespace<LimiterObject> } }>();
app.post("/constant", (c) => c.json(answer));
app.post("/rpc", async (c) => {
  await c.env.OBJECTS.getByName("x").count();
  return c.json(answer);
});
app.post("/write", async (c) => {
  await c.env.OBJECTS.getByName("x").countAndWrite();
  return c.json(answer);
});

export default app;
