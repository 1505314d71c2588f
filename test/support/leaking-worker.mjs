/**
 * The built bundle with a worker that leaks: half of the calls on a key go to another key, as if two objects
 * had one key. So twice the limit is admitted, and leases and holds do not exclude each other.
 */
import * as weir from "weir.js";

export default {
  async fetch(request, env, ctx) {
    const isTwin = Math.random() < 0.5;
    const { pathname } = new URL(request.url);
    if (!isTwin || request.method !== "POST" || !["/v1/limit", "/v1/holds", "/v1/leases"].includes(pathname))
      return weir.default.fetch(request, env, ctx);
    const body = await request.json();
    const { url, headers } = request;
    const twin = new Request(url, {
      method: "POST",
      headers,
      body: JSON.stringify({ ...body, key: `${body.key}-twin` }),
    });
    return weir.default.fetch(twin, env, ctx);
  },
};

export const LimiterObject = weir.LimiterObject;
export const Limiter = weir.Limiter;
