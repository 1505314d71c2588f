/** The built bundle with a statistics object that is late, fails, dies or is silent, as a `PUT /statistics` says. */
import * as weir from "weir.js";

const SLOW_MS = 3_000;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
let fate = "well";

const methods = ["push", "totals", "history", "topKeys"].map((name) => [
  name,
  async function suffering(...args) {
    if (fate === "failing") throw new Error("the statistics fail");
    if (fate === "dead") this.ctx.abort("the statistics are dead");
    if (fate === "slow") await sleep(SLOW_MS);
    // With a timer: the runtime ends a call that waits for nothing.
    while (fate === "silent") await sleep(20);
    return weir.StatsObject.prototype[name].apply(this, args);
  },
]);
export class StatsObject extends weir.StatsObject {}
Object.assign(StatsObject.prototype, Object.fromEntries(methods));

export const { Limiter, LimiterObject, CatalogObject } = weir;
export default {
  async fetch(request, env, ctx) {
    if (new URL(request.url).pathname !== "/statistics") return weir.default.fetch(request, env, ctx);
    fate = await request.text();
    return new Response();
  },
};
