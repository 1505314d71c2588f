/** Deploys to Cloudflare, unless a policy is bad: then nothing is uploaded. Arguments go to wrangler. */
import { parsePolicies } from "../durable-objects/policies.ts";
import { readWranglerToml, run } from "./project.ts";

try {
  parsePolicies(readWranglerToml().policies);
  process.exitCode = run("wrangler", ["deploy", ...process.argv.slice(2)]);
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
