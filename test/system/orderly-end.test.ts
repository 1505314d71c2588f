/** `npm run serve` gives everything back before it ends: restarts cost nothing. */
import { spawn, type ChildProcess } from "node:child_process";
import { join } from "node:path";
import { afterEach, beforeEach, expect } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { ROOT } from "../../scripts/project.ts";
import { inDeepRuns } from "../support/depth.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { makeState, removeState } from "../support/served.ts";

/** It takes long, most of it waiting. */

const DAYS = "30d";
const POLICIES = {
  month: { algorithm: "token-bucket", limit: 1_000, window: DAYS },
  much: { algorithm: "sliding-log", limit: 1_000_000, window: DAYS },
  shared: { algorithm: "sliding-log", limit: 20_000, window: DAYS, objects: 4 },
};
const PATIENT = { timeout: 240_000 };

let state: string;
let served: ChildProcess | undefined;
beforeEach(() => (state = makeState()));
afterEach(async () => {
  await stop("SIGTERM");
  removeState(state);
});

/** Runs scripts/serve.ts as its user does, and returns its address. */
async function serve(): Promise<string> {
  const port = await freePort();
  const child = spawn(process.execPath, [join(ROOT, "scripts", "serve.ts")], {
    cwd: ROOT,
    env: {
      ...process.env,
      PORT: String(port),
      STATE_DIR: state,
      POLICIES: JSON.stringify(POLICIES),
      API_TOKENS: JSON.stringify(TEST_TOKENS),
    },
    stdio: ["ignore", "pipe", "inherit"],
  });
  served = child;
  let printed = "";
  await new Promise<void>((done, failed) => {
    child.stdout.on("data", (data: Buffer) => {
      printed += data.toString();
      if (printed.includes("Weir serves")) done();
    });
    child.on("exit", () => failed(new Error(`it ended: ${printed}`)));
  });
  return `http://127.0.0.1:${port}`;
}

async function stop(signal: NodeJS.Signals): Promise<void> {
  const child = served;
  served = undefined;
  if (child === undefined) return;
  const ended = new Promise((done) => child.on("exit", done));
  child.kill(signal);
  await ended;
}

async function limit(url: string, policy: keyof typeof POLICIES, cost: number): Promise<number> {
  const response = await fetch(`${url}/v1/limit`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    body: JSON.stringify({ policy, key: "key", cost }),
  });
  const { remaining }: { remaining: number } = await response.json();
  return remaining;
}

inDeepRuns("30 calls and three restarts cost 30, of every limit", PATIENT, async () => {
  const names = Object.keys(POLICIES) as (keyof typeof POLICIES)[];
  for (const signal of ["SIGTERM", "SIGINT", "SIGTERM"] as const) {
    const url = await serve();
    for (const name of names) for (let call = 0; call < 10; call += 1) await limit(url, name, 1);
    await stop(signal);
  }
  const url = await serve();
  for (const name of names) expect(await limit(url, name, 0)).toBe(POLICIES[name].limit - 30);
});
