/** Builds the dashboard before the worker is bundled: wrangler.toml names this command. */
import { buildDashboard } from "./dashboard-build.ts";

await buildDashboard();
