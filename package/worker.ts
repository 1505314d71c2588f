/**
 * `weir-limiter/worker`: the whole limiter. A worker with it is one line:
 * `export { default, Limiter, LimiterObject, CatalogObject, StatsObject } from "weir-limiter/worker";`
 */
import * as worker from "../worker/index.ts";

/** A class whose instances only the runtime makes. */
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
