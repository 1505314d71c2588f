export { default, Limiter, LimiterObject, CatalogObject, StatsObject } from "weir-limiter/worker";
