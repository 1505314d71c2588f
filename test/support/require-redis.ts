/** Installs redis-server where it is missing, once and before all tests, several of which start one at the same time. */
export { ensureRedis as default } from "../../scripts/redis-server.ts";
