/** The built bundle with a worker whose denials are not all or nothing: denied calls take their tokens. */
import * as weir from "weir.js";

export default {
  async fetch(request, env, ctx) {
    const { pathname } = new URL(request.url);
    if (request.method !== "POST" || pathname !== "/v1/limit") return weir.default.fetch(request, env, ctx);
    const body = await request.json();
    const ask = (cost) => {
      const { url, headers } = request;
      const asked = new Request(url, { method: "POST", headers, body: JSON.stringify({ ...body, cost }) });
      return weir.default.fetch(asked, env, ctx);
    };
    const answer = await ask(body.cost);
    const text = await answer.text();
    if (JSON.parse(text).success === false) await ask({ requests: 0, tokens: body.cost.tokens });
    return new Response(text, answer);
  },
};

export const LimiterObject = weir.LimiterObject;
export const Limiter = weir.Limiter;
