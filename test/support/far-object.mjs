/** The built bundle with an object 40 ms away, which counts its messages, and those whose answer has a bucket. */
import * as weir from "weir.js";

const DELAY_MS = 40;
const count = { messages: 0, buckets: 0 };
const later = () => new Promise((done) => setTimeout(done, DELAY_MS / 2));

export class LimiterObject extends weir.LimiterObject {
  async reserve(...args) {
    await later();
    const answer = await super.reserve(...args);
    count.messages += 1;
    if (answer.includes('"buckets"')) count.buckets += 1;
    await later();
    return answer;
  }
}

export const Limiter = weir.Limiter;
export default {
  fetch(request, env, ctx) {
    if (new URL(request.url).pathname === "/messages") return Response.json(count);
    return weir.default.fetch(request, env, ctx);
  },
};
