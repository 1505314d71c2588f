/** Deploys to Cloudflare, unless a policy or region is bad. Arguments go to wrangler. */
import { resolve } from "node:path";
import { parseArgs } from "node:util";
import { takenByNpm } from "./call.ts";
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

try {
  const args = process.argv.slice(2);
  const [lost] = takenByNpm(["env", "config", "dry-run", "check"]);
  if (lost !== undefined)
    throw new Error(`${lost} was taken by npm as its own flag: write npm run deploy -- ${lost}`);
  if (args.includes("--check")) process.exitCode = await checkDeployment(args);
  else {
    const { environment, file } = asked(args);
    readConfiguration({}, environment, file);
    // An empty name is the environment at the top of wrangler.toml.
    process.exitCode = run("wrangler", [
      "deploy",
      ...args,
      ...(environment === undefined ? ["--env", ""] : []),
    ]);
  }
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
