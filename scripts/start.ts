/** Runs the limiter locally with wrangler, and prints a `curl` line that is ready to be pasted. */
import { parseDeployment } from "../core/policies/regional-policies.ts";
import { startLimiter } from "./local-limiter.ts";
import { readWranglerToml } from "./project.ts";

async function main(): Promise<void> {
  const { policies } = parseDeployment(readWranglerToml());
  const limiter = startLimiter();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
    process.on(signal, () => limiter.stop(signal));
  if (await limiter.isUp)
    console.log(
      `\nThe limiter is up. Paste this in another terminal:\n\n${limiter.curl([...policies.keys()][0] ?? "")}\n`,
    );
  process.exitCode = await limiter.exited;
}

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
