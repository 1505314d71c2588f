/**
 * Deploys to Cloudflare. When a policy or a region is bad, nothing is uploaded. Arguments are passed to wrangler. With
 * `--check` nothing is uploaded at all.
 */
import { parseDeployment } from "../core/policies/regional-policies.ts";
import { checkDeployment } from "./deployment/check.ts";
import { readWranglerToml, run } from "./project.ts";

try {
  const args = process.argv.slice(2);
  if (args.includes("--check")) process.exitCode = await checkDeployment(args);
  else {
    parseDeployment(readWranglerToml());
    const isNamed =
      process.env["CLOUDFLARE_ENV"] !== undefined || args.some((each) => /^(-e|--env)\b/.test(each));
    // An empty name is the environment at the top of wrangler.toml.
    process.exitCode = run("wrangler", ["deploy", ...args, ...(isNamed ? [] : ["--env", ""])]);
  }
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
