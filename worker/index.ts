/** The deployed module: the HTTP worker, the entrypoint for service bindings, and the classes of objects. */
export { handler as default } from "./http/fast-path.ts";
export { Limiter } from "./rpc/limiter.ts";
export { LimiterObject } from "../durable-objects/limiter-object.ts";
export { CatalogObject } from "../durable-objects/catalog/catalog-object.ts";
export { StatsObject } from "../durable-objects/stats/stats-object.ts";
