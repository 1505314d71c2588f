/**
 * Installs redis-server where it is missing. This happens once, before all tests, since several of them start one at
 * the same time.
 */
export { ensureRedis as default } from "../../scripts/redis-server.ts";
