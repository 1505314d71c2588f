/**
 * The built bundle with a catalog whose answers to isolates are late, fail or wait, as a `PUT /catalog` says. It counts its
 * messages from isolates. Writes are made as ever.
 */
import * as weir from "weir.js";

const SLOW_MS = 3_000;
const STEP_MS = 20;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
let fate = "well";
let messages = 0;

export class CatalogObject extends weir.CatalogObject {
  async changes(...asked) {
    messages += 1;
    if (fate === "failing") throw new Error("the catalog fails");
    if (fate === "dead") this.ctx.abort("the catalog is dead");
    if (fate === "slow") await sleep(SLOW_MS);
    // With a timer: the runtime ends a call that waits for nothing.
    while (fate === "silent") await sleep(STEP_MS);
    return super.changes(...asked);
  }
}

export const { Limiter, LimiterObject, StatsObject } = weir;
export default {
  async fetch(request, env, ctx) {
    if (new URL(request.url).pathname !== "/catalog") return weir.default.fetch(request, env, ctx);
    if (request.method === "PUT") fate = await request.text();
    return Response.json(messages);
  },
};
