/** Runs the limiter locally with wrangler, and prints a curl line that works when pasted. */
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parsePolicies } from "../durable-objects/policies.ts";
import { DEV_VARS, readDevVars, readWranglerToml, ROOT, WRANGLER_TOML } from "./project.ts";
import { makeToken } from "./tokens.ts";

const HOST = "127.0.0.1";

async function main(): Promise<void> {
  const policies = parsePolicies(readWranglerToml().policies);
  const port = Number(process.env["PORT"] ?? "8787");
  const token = localToken();
  const args = [
    "dev",
    "-c",
    WRANGLER_TOML,
    "--ip",
    HOST,
    "--port",
    String(port),
    "--show-interactive-dev-session=false",
  ];
  const wrangler = spawn(join(ROOT, "node_modules", ".bin", "wrangler"), args, {
    cwd: ROOT,
    stdio: "inherit",
    env: { ...process.env, WRANGLER_SEND_METRICS: "false" },
  });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
    process.on(signal, () => wrangler.kill(signal));
  const exited = new Promise<number>((done) => wrangler.on("exit", (code) => done(code ?? 0)));
  const isUp = await Promise.race([answers(`http://${HOST}:${port}/healthz`), exited.then(() => false)]);
  if (isUp)
    console.log(
      `\nThe limiter is up. Paste this in another terminal:\n\n${curl(port, token, [...policies.keys()][0] ?? "")}\n`,
    );
  process.exitCode = await exited;
}

function curl(port: number, token: string | undefined, policy: string): string {
  const body = JSON.stringify({ policy, key: "user:42" });
  return [
    `curl -s http://${HOST}:${port}/v1/limit`,
    `-H 'Authorization: Bearer ${token ?? "YOUR_TOKEN"}'`,
    `-H 'Content-Type: application/json'`,
    `-d '${body}'`,
  ].join(" ");
}

/** Resolves when the worker itself answers; wrangler takes connections well before. */
async function answers(url: string): Promise<true> {
  for (;;) {
    const isUp = await fetch(url).then(
      (response) => response.ok,
      () => false,
    );
    if (isUp) return true;
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** The token for trying things out. Made on first use and kept in .dev.vars, in the clear: it opens only this machine. */
function localToken(): string | undefined {
  const { API_TOKENS, LOCAL_TOKEN } = readDevVars();
  if (API_TOKENS !== undefined) return LOCAL_TOKEN;
  const { token, entry } = makeToken({ name: "local", scopes: ["limit", "admin"] });
  const isOpen = existsSync(DEV_VARS) && !readFileSync(DEV_VARS, "utf8").endsWith("\n");
  appendFileSync(
    DEV_VARS,
    `${isOpen ? "\n" : ""}# Made by npm start, for this machine only.\nLOCAL_TOKEN=${token}\nAPI_TOKENS='${JSON.stringify([entry])}'\n`,
  );
  return token;
}

try {
  await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
