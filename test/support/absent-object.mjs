/** The built bundle with objects that answer nothing after `/away`, until `/back`. */
import * as weir from "weir.js";

const NEVER = new Promise(() => undefined);
let isAway = false;

export class LimiterObject extends weir.LimiterObject {
  async reserve(...args) {
    return isAway ? await NEVER : await super.reserve(...args);
  }

  async limitCall(...args) {
    return isAway ? await NEVER : await super.limitCall(...args);
  }

  async hold(...args) {
    return isAway ? await NEVER : await super.hold(...args);
  }

  async fetch(request) {
    return isAway ? await NEVER : await super.fetch(request);
  }
}

export const { Limiter, CatalogObject, StatsObject } = weir;
export default {
  fetch(request, env, ctx) {
    const { pathname } = new URL(request.url);
    if (pathname !== "/away" && pathname !== "/back") return weir.default.fetch(request, env, ctx);
    isAway = pathname === "/away";
    return new Response();
  },
};
