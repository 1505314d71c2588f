/** Runs the limiter locally with wrangler, and prints a `curl` line that is ready to be pasted. */
import { setTimeout as sleep } from "node:timers/promises";
import { OF_SERVE, requireNoFlags, runCommand } from "./call.ts";
import { readConfiguration } from "./configuration.ts";
import { startLimiter, type LocalLimiter } from "./local-limiter.ts";
import { readDevVars, WRANGLER_TOML } from "./project.ts";

/** Milliseconds between reads of a file with an error. */
const LOOK_EVERY_MS = 300;

const { POLICIES, REGIONS, NOTICES } = process.env;
let running: LocalLimiter | undefined;
let isStopping = false;

async function main(): Promise<void> {
  requireNoFlags("npm start");
  for (const name of OF_SERVE)
    if (process.env[name] !== undefined)
      throw new Error(`${name} is set, but only npm run serve reads it: unset it, or use npm run serve`);
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
    process.on(signal, () => {
      isStopping = true;
      running?.stop(signal);
    });
  // wrangler ends when a bad policy is saved: prints the error, and starts it again after the fix.
  for (;;) {
    process.exitCode = await runOnce();
    if (isStopping || problem() === undefined) return;
    await untilMended();
  }
}

async function runOnce(): Promise<number> {
  const { policies } = configuration();
  const given = {
    ...(POLICIES !== undefined && { POLICIES }),
    ...(REGIONS !== undefined && { REGIONS }),
    ...(NOTICES !== undefined && { NOTICES }),
  };
  const limiter = await startLimiter(policies, given);
  running = limiter;
  if (await limiter.isUp)
    console.log(
      `\nThe limiter is up. Paste this in another terminal:\n\n${limiter.curl([...policies.keys()][0] ?? "")}\n\n` +
        `The dashboard is ${limiter.dashboard} (sign in with the token in that line).\n`,
    );
  const code = await limiter.exited;
  running = undefined;
  return code;
}

function configuration() {
  const { NOTICES_SECRET: secret } = readDevVars();
  return readConfiguration({ POLICIES, REGIONS, NOTICES }, undefined, WRANGLER_TOML, {
    runsOn: "wrangler",
    secret,
  });
}

function problem(): string | undefined {
  try {
    configuration();
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

async function untilMended(): Promise<void> {
  let printed: string | undefined;
  for (let wrong = problem(); wrong !== undefined && !isStopping; wrong = problem()) {
    if (wrong !== printed)
      console.error(`\n${wrong}\n\nThe limiter is down. It starts again when this is fixed.\n`);
    printed = wrong;
    await sleep(LOOK_EVERY_MS);
  }
}

await runCommand(main);
