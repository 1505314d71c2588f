/** The built bundle with an object that counts its messages and the calls in them. */
import * as weir from "weir.js";

let [messages, calls] = [0, 0];

export class LimiterObject extends weir.LimiterObject {
  limit(...args) {
    messages += 1;
    calls += 1;
    return super.limit(...args);
  }

  reserve(message) {
    messages += 1;
    calls += "calls" in message ? JSON.parse(message.calls).length : 1;
    return super.reserve(message);
  }
}

export const Limiter = weir.Limiter;
export default {
  fetch(request, env, ctx) {
    if (new URL(request.url).pathname === "/messages") return Response.json({ messages, calls });
    return weir.default.fetch(request, env, ctx);
  },
};
