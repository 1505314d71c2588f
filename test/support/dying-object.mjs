/** The built bundle with an object that dies on `/die?name=`, with all its memory. */
import * as weir from "weir.js";

export class LimiterObject extends weir.LimiterObject {
  die() {
    this.ctx.abort("it went");
  }
}

export const { Limiter, CatalogObject, StatsObject } = weir;
export default {
  async fetch(request, env, ctx) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname !== "/die") return weir.default.fetch(request, env, ctx);
    await env.OBJECTS.getByName(searchParams.get("name"))
      .die()
      .catch(() => undefined);
    return new Response();
  },
};
