export { default, Limiter, LimiterObject } from "weir/worker";
