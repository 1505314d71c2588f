export { default, Limiter, LimiterObject, CatalogObject, StatsObject } from "weir/worker";
