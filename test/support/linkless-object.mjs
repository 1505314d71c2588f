/** The built bundle with an object of before leases outlived their links, as during a rollout. */
import * as weir from "weir.js";

/** The highest version that such an object knows. */
const PROTOCOL = 5;

export class LimiterObject extends weir.LimiterObject {
  acquire(call) {
    if ((call.protocol ?? 1) > PROTOCOL)
      return Promise.resolve({ answer: JSON.stringify({ unsupported: { protocol: PROTOCOL } }) });
    return super.acquire({ ...call, graceMs: undefined, resume: undefined });
  }
}

export const Limiter = weir.Limiter;
export default weir.default;
