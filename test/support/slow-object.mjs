/** The built bundle with an object that takes 1.5 s to answer `reserve` outside batches, and counts these. */
import * as weir from "weir.js";

const SLOW_MS = 1_500;
let reserves = 0;

export class LimiterObject extends weir.LimiterObject {
  async reserve(...args) {
    if ("calls" in args[0]) return super.reserve(...args);
    reserves += 1;
    await new Promise((done) => setTimeout(done, SLOW_MS));
    return super.reserve(...args);
  }
}

export const Limiter = weir.Limiter;
export default {
  fetch(request, env, ctx) {
    if (new URL(request.url).pathname === "/reserves") return Response.json(reserves);
    return weir.default.fetch(request, env, ctx);
  },
};
