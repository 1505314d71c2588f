/** Runs the limiter with `wrangler dev` on this machine, with a token for trying it out. */
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DEV_VARS, readDevVars, ROOT, WRANGLER_TOML } from "./project.ts";
import { makeToken } from "./tokens.ts";

export interface LocalLimiter {
  /** A line that asks for one unit of the policy, and works when pasted. */
  curl(policy: string): string;
  /** Resolves when it answers; false when it stopped before it did. */
  readonly isUp: Promise<boolean>;
  /** Resolves when it has gone, with its exit code. */
  readonly exited: Promise<number>;
  stop(signal: NodeJS.Signals): void;
}

const HOST = "127.0.0.1";

/** Starts it on PORT, or 8787. `vars` come before those of wrangler.toml and of .dev.vars, and are kept nowhere. */
export function startLimiter(vars: Readonly<Record<string, string>> = {}): LocalLimiter {
  const port = Number(process.env["PORT"] ?? "8787");
  const token = localToken();
  const args = ["dev", "-c", WRANGLER_TOML, "--ip", HOST, "--port", String(port)];
  for (const [name, value] of Object.entries(vars)) args.push("--var", `${name}:${value}`);
  const wrangler = spawn(
    join(ROOT, "node_modules", ".bin", "wrangler"),
    [...args, "--show-interactive-dev-session=false"],
    { cwd: ROOT, stdio: "inherit", env: { ...process.env, WRANGLER_SEND_METRICS: "false" } },
  );
  const exited = new Promise<number>((done) => wrangler.on("exit", (code) => done(code ?? 0)));
  let isGone = false;
  void exited.then(() => (isGone = true));
  const isUp = answers(`http://${HOST}:${port}/healthz`, () => isGone);
  return {
    curl: (policy) => curl(port, token, policy),
    isUp,
    exited,
    stop: (signal) => void wrangler.kill(signal),
  };
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

/** Whether the worker itself comes to answer, before it is gone; wrangler takes connections well before. */
async function answers(url: string, isGone: () => boolean): Promise<boolean> {
  while (!isGone()) {
    const isUp = await fetch(url).then(
      (response) => response.ok,
      () => false,
    );
    if (isUp) return true;
    await new Promise((done) => setTimeout(done, 100));
  }
  return false;
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
