/**
 * `weir/worker`: the whole limiter. A worker of one's own is one line:
 * `export { default, Limiter, LimiterObject, CatalogObject, StatsObject } from "weir/worker";`
 */
import * as worker from "../worker/index.ts";

/** What the runtime calls. It makes the instances too, and nobody else does. */
type Class<Instance> = new (ctx: never, env: never) => Instance;

/** The HTTP worker. */
const handler: { fetch(request: Request, env: never, ctx: never): Response | Promise<Response> } =
  worker.default;
export default handler;

/** The entrypoint for service bindings, whose type is `LimiterService` of the package. */
export const Limiter: Class<object> = worker.Limiter;
/** The classes of objects. Their names are stored with every object: never export one under another name. */
export const LimiterObject: Class<object> = worker.LimiterObject;
export const CatalogObject: Class<object> = worker.CatalogObject;
export const StatsObject: Class<object> = worker.StatsObject;
