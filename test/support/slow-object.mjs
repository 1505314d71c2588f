/** The built bundle with an object that takes 1.5 s to answer `reserve` outside batches, and counts these once if they come again. */
import * as weir from "weir.js";

const SLOW_MS = 1_500;
const reserves = new Set();

export class LimiterObject extends weir.LimiterObject {
  async reserve(...args) {
    if ("calls" in args[0]) return super.reserve(...args);
    const { from, number } = args[0].sent ?? {};
    reserves.add(number === undefined ? Symbol() : `${from} ${number}`);
    await new Promise((done) => setTimeout(done, SLOW_MS));
    return super.reserve(...args);
  }
}

export const Limiter = weir.Limiter;
export default {
  fetch(request, env, ctx) {
    if (new URL(request.url).pathname === "/reserves") return Response.json(reserves.size);
    return weir.default.fetch(request, env, ctx);
  },
};
