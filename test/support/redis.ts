/** A Redis server of a test's own, without persistence, on a free port. */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface RunningRedis {
  readonly port: number;
  stop(): Promise<void>;
}

/** @param options further options of the command line */
export async function startRedis(options: readonly string[] = []): Promise<RunningRedis> {
  const port = await freePort();
  const folder = mkdtempSync(join(tmpdir(), "weir-redis-"));
  const quiet = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", folder];
  const server = spawn("redis-server", ["--port", String(port), ...quiet, ...options]);
  const ended = new Promise<void>((resolve) => server.once("exit", () => resolve()));
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.once("exit", () => reject(new Error("redis-server ended before it was ready")));
    server.stdout.on("data", (text: Buffer) => {
      if (text.includes("Ready to accept connections")) resolve();
    });
  });
  return {
    port,
    async stop() {
      server.kill();
      await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === "object" && address !== null ? address.port : 0));
    });
  });
}
