/** Deploys to Cloudflare, unless a policy or region is bad. Arguments go to wrangler. */
import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { requireNotTaken, runCommand } from "./call.ts";
import { readConfiguration } from "./configuration.ts";
import { checkDeployment } from "./deployment/check.ts";
import { ROOT, run, WRANGLER_TOML } from "./project.ts";

/** The arguments that select the configuration to check; the others are for wrangler alone. */
function asked(args: readonly string[]): { environment: string | undefined; file: string } {
  const { values } = parseArgs({
    args: [...args],
    options: { env: { type: "string", short: "e" }, config: { type: "string", short: "c" } },
    strict: false,
  });
  const { env = process.env["CLOUDFLARE_ENV"], config } = values;
  const isNamed = typeof env === "string" && env !== "";
  const file = typeof config === "string" ? resolve(ROOT, config) : WRANGLER_TOML;
  return { environment: isNamed ? env : undefined, file };
}

await runCommand(async () => {
  const args = process.argv.slice(2);
  requireNotTaken(["env", "config", "dry-run", "check"], "npm run deploy --");
  if (args.includes("--check")) return await checkDeployment(args);
  const { environment, file } = asked(args);
  readConfiguration({}, environment, file);
  // An empty name is the environment at the top of wrangler.toml.
  return run("wrangler", ["deploy", ...args, ...(environment === undefined ? ["--env", ""] : [])]);
});
