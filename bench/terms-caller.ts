/** The built bundle, which compares calls to its objects on request (terms.ts). */
// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";
import type { LimiterNamespace } from "../client/transports/objects.ts";
import { compare } from "./terms-comparison.ts";

export const { LimiterObject, Limiter } = weir;

export default {
  async fetch(request: Request, env: { readonly OBJECTS: LimiterNamespace }, ctx: ExecutionContext) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname !== "/compare") return weir.default.fetch(request, env, ctx) as Response;
    const policy = searchParams.get("policy") ?? "";
    return Response.json(await compare((name) => env.OBJECTS.getByName(name), policy));
  },
};
