/** Deploys to Cloudflare. When a policy or a region is bad, nothing is uploaded. Arguments are passed to wrangler. */
import { parseDeployment } from "../core/policies/regional-policies.ts";
import { readWranglerToml, run } from "./project.ts";

try {
  parseDeployment(readWranglerToml());
  process.exitCode = run("wrangler", ["deploy", ...process.argv.slice(2)]);
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
