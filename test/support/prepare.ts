/** Once before all tests: several start a redis-server, and import the worker with the dashboard. */
import { buildDashboard } from "../../scripts/dashboard-build.ts";
import { ensureRedis } from "../../scripts/redis-server.ts";

export default async function prepare(): Promise<void> {
  ensureRedis();
  await buildDashboard();
}
