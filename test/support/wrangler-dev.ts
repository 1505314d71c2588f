/** `wrangler dev` as a user starts it, with all its files in a folder of its own. */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort } from "../../scripts/free-port.ts";
import { ROOT } from "../../scripts/project.ts";

export interface WranglerDev {
  readonly url: string;
  stop(): Promise<void>;
}

const MAX_STARTS = 3;

/** Starts `wrangler dev` with these configurations, the first on the port, and waits until it answers. */
export async function startWranglerDev(
  configs: readonly string[],
  vars: Readonly<Record<string, string>> = {},
  starts = 1,
): Promise<WranglerDev> {
  const folder = mkdtempSync(join(tmpdir(), "weir-wrangler-"));
  const port = await freePort();
  const args = [
    "dev",
    "--port",
    String(port),
    "--ip",
    "127.0.0.1",
    "--persist-to",
    folder,
    "--show-interactive-dev-session=false",
  ];
  for (const config of configs) args.push("-c", config);
  for (const [name, value] of Object.entries(vars)) args.push("--var", `${name}:${value}`);
  const child = spawn(join(ROOT, "node_modules", ".bin", "wrangler"), args, {
    cwd: ROOT,
    stdio: ["ignore", "pipe", "pipe"],
    // A process group of its own, so that wrangler's workerd ends with it.
    detached: true,
    env: {
      ...process.env,
      WRANGLER_REGISTRY_PATH: folder,
      WRANGLER_SEND_METRICS: "false",
      WRANGLER_LOG_PATH: folder,
    },
  });
  let printed = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (data: Buffer) => (printed += data.toString()));
  const exited = new Promise<void>((done) => child.on("close", () => done()));
  let isGone = false;
  void exited.then(() => (isGone = true));
  const url = `http://127.0.0.1:${port}`;
  while (!(await answers(url))) {
    // Another process may take one of the ports that it has found to be free.
    const isTaken = printed.includes("Address already in use") && starts < MAX_STARTS;
    if (isGone && isTaken) return await startWranglerDev(configs, vars, starts + 1);
    if (isGone) throw new Error(`wrangler dev stopped: ${printed}`);
    await new Promise((done) => setTimeout(done, 100));
  }
  const stop = async () => {
    if (child.pid !== undefined && !isGone) process.kill(-child.pid, "SIGTERM");
    await exited;
    rmSync(folder, { recursive: true, force: true });
  };
  return { url, stop };
}

async function answers(url: string): Promise<boolean> {
  return fetch(`${url}/healthz`).then(
    () => true,
    () => false,
  );
}
