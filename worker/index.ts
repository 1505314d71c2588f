/** The deployed module: the HTTP worker, the entrypoint for service bindings, and the object's class. */
export { app as default } from "./app.ts";
export { Limiter } from "./limiter.ts";
export { LimiterObject } from "../durable-objects/limiter-object.ts";
