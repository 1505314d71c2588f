/** Runs the limiter with `wrangler dev` on this machine, and makes a token to try it with. */
import { spawn } from "node:child_process";
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Policies, Policy } from "../core/policies/policy.ts";
import { endWithoutTrace } from "./end-without-trace.ts";
import { readPort, requireFree } from "./listening.ts";
import { objectBounds } from "./object-bounds.ts";
import { DEV_VARS, readDevVars, ROOT, WRANGLER_TOML } from "./project.ts";
import { lockState } from "./state-lock.ts";
import { checkTokens, makeToken, sha256Of, type TokenEntry } from "./tokens.ts";

export interface LocalLimiter {
  /** A `curl` line that takes or leases one unit of the policy. */
  curl(policy: string): string;
  readonly dashboard: string;
  /** Resolves with true when the limiter answers, with false when it stops before that. */
  readonly isUp: Promise<boolean>;
  /** Resolves with the exit code when the process has ended. */
  readonly exited: Promise<number>;
  stop(signal: NodeJS.Signals): void;
}

const HOST = "127.0.0.1";

/**
 * Starts the limiter on PORT (8787 by default). `vars` override wrangler.toml and .dev.vars.
 * @throws Error when the port or its state is another server's, or its tokens cannot be used
 */
export async function startLimiter(
  policies: Policies,
  vars: Readonly<Record<string, string>> = {},
): Promise<LocalLimiter> {
  const port = readPort();
  const token = localToken(policies);
  const lock = await lockState(
    join(ROOT, ".wrangler", "state"),
    "run this one with npm run serve and a STATE_DIR",
  );
  await requireFree(HOST, port).catch((error: unknown) => {
    lock.release();
    throw error;
  });
  const args = ["dev", "-c", WRANGLER_TOML, "--env", "", "--ip", HOST, "--port", String(port)];
  // Plain workerd refuses to make an object in a jurisdiction.
  args.push("--var", "JURISDICTIONS:ignored", "--var", `OBJECT_BOUNDS:${objectBounds()}`);
  for (const [name, value] of Object.entries(vars)) args.push("--var", `${name}:${value}`);
  const wrangler = spawn(
    join(ROOT, "node_modules", ".bin", "wrangler"),
    [...args, "--show-interactive-dev-session=false"],
    {
      cwd: ROOT,
      stdio: ["inherit", "inherit", "pipe"],
      env: { ...process.env, ...colours(), WRANGLER_SEND_METRICS: "false" },
    },
  );
  let isStopping = false;
  void endWithoutTrace(
    wrangler.stderr,
    () => isStopping,
    (line) => process.stderr.write(`${line}\n`),
  );
  lock.worksBy(wrangler.pid);
  const exited = new Promise<number>((done) => wrangler.on("exit", (code) => done(code ?? 0)));
  let isGone = false;
  void exited.then(() => {
    isGone = true;
    lock.release();
  });
  const isUp = answers(`http://${HOST}:${port}/healthz`, () => isGone);
  return {
    curl: (name) => curl(port, token, name, policies.get(name)),
    dashboard: `http://${HOST}:${port}/dashboard`,
    isUp,
    exited,
    stop: (signal) => {
      isStopping = true;
      wrangler.kill(signal);
    },
  };
}

/** wrangler's errors go through this process, so it does not detect the terminal. */
function colours(): NodeJS.Dict<string> {
  const isPlain = process.env["NO_COLOR"] !== undefined || process.env["FORCE_COLOR"] !== undefined;
  return !isPlain && process.stdout.isTTY && process.stderr.isTTY ? { FORCE_COLOR: "1" } : {};
}

/** @param policy `undefined`: there is none of this name */
export function curl(port: number, token: string | undefined, name: string, policy?: Policy): string {
  const body = JSON.stringify({
    policy: name,
    key: policy?.keyKind === "ip" ? "192.0.2.42" : "user:42",
    ...(policy?.isFair === true && { group: "team:1" }),
  });
  return [
    `curl -s http://${HOST}:${port}/v1/${policy?.lease === undefined ? "limit" : "leases"}`,
    `-H 'Authorization: Bearer ${token ?? "YOUR_TOKEN"}'`,
    `-H 'Content-Type: application/json'`,
    `-d '${body}'`,
  ].join(" ");
}

/** Whether the worker answered before it ended. wrangler takes connections before the worker runs. */
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

/** The scopes for a client that holds units in its own process, and for trying out calls. */
const SCOPES = ["limit", "refund", "reserve", "admin"];
/** Those of tokens that were made by earlier versions. */
const SCOPES_BEFORE = ["limit", "refund", "admin"];

/**
 * The local token, kept in .dev.vars in plain text, because it opens only the limiter on this machine.
 * `undefined`: .dev.vars has API_TOKENS, but no LOCAL_TOKEN in it. @throws Error when API_TOKENS cannot be
 * used
 */
function localToken(policies: Policies): string | undefined {
  const { API_TOKENS, LOCAL_TOKEN } = readDevVars();
  if (API_TOKENS === undefined) return madeToken();
  for (const note of checkTokens(API_TOKENS, policies)) console.warn(note);
  if (LOCAL_TOKEN === undefined) return undefined;
  const sha256 = sha256Of(LOCAL_TOKEN);
  widen(API_TOKENS, { name: "local", sha256, scopes: SCOPES_BEFORE });
  return (JSON.parse(API_TOKENS) as TokenEntry[]).some((entry) => entry.sha256 === sha256)
    ? LOCAL_TOKEN
    : undefined;
}

function madeToken(): string {
  const { token, entry } = makeToken({ name: "local", scopes: SCOPES });
  const isOpen = existsSync(DEV_VARS) && !readFileSync(DEV_VARS, "utf8").endsWith("\n");
  appendFileSync(
    DEV_VARS,
    `${isOpen ? "\n" : ""}# Made by npm start, for this machine only.\nLOCAL_TOKEN=${token}\nAPI_TOKENS='${JSON.stringify([entry])}'\n`,
    { mode: 0o600 },
  );
  return token;
}

/** Gives an unchanged token of `npm start` the current scopes. */
function widen(apiTokens: string, before: TokenEntry): void {
  const was = JSON.stringify([before]);
  if (apiTokens !== was) return;
  const text = readFileSync(DEV_VARS, "utf8");
  writeFileSync(
    DEV_VARS,
    text.replace(was, () => JSON.stringify([{ ...before, scopes: SCOPES }])),
  );
}
