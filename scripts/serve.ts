/** Builds the bundle and serves it with plain workerd, to self-host it or to measure it. */
import { parseDeployment } from "../core/policies/regional-policies.ts";
import { build, readDevVars, readWranglerToml } from "./project.ts";
import { serve } from "./workerd.ts";

async function main(): Promise<void> {
  const {
    HOST: host = "127.0.0.1",
    PORT = "8787",
    STATE_DIR: stateDir = ".weir",
    POLICIES,
    REGIONS,
    API_TOKENS,
  } = process.env;
  const port = Number(PORT);
  if (!Number.isInteger(port) || port < 1 || port > 65_535) {
    throw new Error(`PORT is ${JSON.stringify(PORT)}: must be an integer from 1 to 65535`);
  }
  const toml = readWranglerToml();
  const policies = POLICIES ?? toml.policies;
  const regions = REGIONS ?? toml.regions;
  // The worker would refuse bad policies too. Checked here, the error comes before the build and without a stack.
  const names = [...parseDeployment({ policies, regions }).policies.keys()];
  const apiTokens = API_TOKENS ?? readDevVars()["API_TOKENS"];
  build();
  const serving = await serve({
    host,
    port,
    stateDir,
    isApart: true,
    policies: typeof policies === "string" ? JSON.parse(policies) : policies,
    apiTokens,
    regions: typeof regions === "string" ? JSON.parse(regions) : regions,
    pool: poolOf({ ...readDevVars(), ...process.env }),
  });
  let isStopping = false;
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
    process.on(signal, () => {
      // Whoever asks twice does not want to wait.
      void (isStopping ? Promise.resolve() : serving.rest()).then(() => serving.stop());
      isStopping = true;
    });
  console.log(`Weir serves ${names.join(", ")} on ${serving.url}, storage in ${stateDir}`);
  if (apiTokens === undefined)
    console.log("API_TOKENS is not set: every call but /healthz answers 503 and says how to set it.");
  const code = await serving.exited;
  if (!isStopping) throw new Error(`workerd ended by itself (${code === null ? "killed" : `code ${code}`})`);
}

/** The address and the token of the Redis with the pools. The worker reports what is missing. */
function poolOf({ UPSTASH_REDIS_REST_URL: url, UPSTASH_REDIS_REST_TOKEN: token }: NodeJS.Dict<string>) {
  return { ...(url !== undefined && { url }), ...(token !== undefined && { token }) };
}

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
