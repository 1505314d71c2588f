/** The built bundle with an object older than the worker, as during a rollout: it knows no message. */
import * as weir from "weir.js";

const NEWER = 1_000;

export class LimiterObject extends weir.LimiterObject {
  reserve(call) {
    return super.reserve({ ...call, protocol: NEWER });
  }

  hold(call) {
    return super.hold({ ...call, protocol: NEWER });
  }

  acquire(call) {
    return super.acquire({ ...call, protocol: NEWER });
  }

  async fetch(request) {
    const { url, method } = request;
    const call = { ...(await request.json()), protocol: NEWER };
    return super.fetch(new Request(url, { method, body: JSON.stringify(call) }));
  }
}

export const Limiter = weir.Limiter;
export default weir.default;
