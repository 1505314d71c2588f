/** Puts the worker on trial where it is measured: on an account, through wrangler, or on plain workerd of this machine. */
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildDashboard } from "../../dashboard-build.ts";
import { freePort } from "../../free-port.ts";
import { readWranglerToml, ROOT } from "../../project.ts";
import { makeToken } from "../../tokens.ts";
import { serve, type Serving } from "../../workerd.ts";
import { pause } from "../calls.ts";
import { plain } from "./cloudflare.ts";

export interface Trial {
  readonly url: string;
  /** Opens its calls, with all scopes. It is of this run alone. */
  readonly token: string;
  /** The worker's name on the account; absent: it runs on this machine. */
  readonly script?: string;
  /** Replaces it by another version, with its objects. @throws Error when that failed */
  redeploy(version: string): Promise<void>;
}

/** How wrangler is run. */
export interface Wrangler {
  readonly command: readonly string[];
  /** The longest that it may take, in milliseconds: then it is killed. */
  readonly maxMs: number;
  /** What its output must not show. */
  readonly secrets: readonly string[];
  readonly env: NodeJS.Dict<string>;
}

/** All that stays of a worker on trial, and how it is taken away. */
export interface Left {
  readonly script?: string;
  /** Resolves with what is left and why; `undefined`: nothing. */
  remove(): Promise<string | undefined>;
}

const HERE = join(ROOT, "scripts", "verify", "account");
const CLASSES = { TRIAL: "TrialObject", WAITING: "WaitingObject" };
const DEPLOYMENT_CLASSES = { OBJECTS: "LimiterObject", CATALOG: "CatalogObject", STATS: "StatsObject" };
const BUCKET = { algorithm: "token-bucket", limit: 1_000_000, window: "1s" };
/** The policies on trial: overrides are of `changed`, and `hot` is called at a part of its limit. */
const POLICIES = { hot: { ...BUCKET, limit: 2_000 }, changed: { ...BUCKET, objects: 16 } };
/** The longest until a deployed worker answers at its address, in milliseconds. */
const UP_WITHIN_MS = 60_000;
const MAX_OUTPUT = 64 * 1_024;

/** A name that no worker of the user has: 64 random bits. */
export function trialName(): string {
  return `weir-trial-${randomBytes(8).toString("hex")}`;
}

interface Parts {
  readonly name: string;
  readonly folder: string;
  readonly token: string;
  readonly apiTokens: string;
  readonly sha256: string;
}

function partsOf(name: string): Parts {
  const { token, entry } = makeToken({
    name: "trial",
    scopes: ["limit", "admin"],
    maxNewKeysPerSecond: 100_000,
  });
  const folder = mkdtempSync(join(tmpdir(), "weir-trial-"));
  return { name, folder, token, apiTokens: JSON.stringify([entry]), sha256: entry.sha256 };
}

/** Writes the configuration of a version, and returns its path. */
function configure({ name, folder, apiTokens, sha256 }: Parts, version: string): string {
  const { compatibilityDate, compatibilityFlags } = readWranglerToml();
  const classes = Object.entries({ ...DEPLOYMENT_CLASSES, ...CLASSES });
  const config = {
    name,
    main: join(HERE, "trial-worker.ts"),
    minify: true,
    keep_names: false,
    workers_dev: true,
    preview_urls: false,
    compatibility_date: compatibilityDate,
    compatibility_flags: compatibilityFlags,
    observability: { enabled: false },
    durable_objects: {
      bindings: classes.map(([binding, className]) => ({ name: binding, class_name: className })),
      code_update_strategy: { mode: "immediate" },
    },
    migrations: [{ tag: "v1", new_sqlite_classes: classes.map(([, className]) => className) }],
    // A token is deployed as its hash alone.
    vars: { POLICIES, API_TOKENS: apiTokens, TRIAL_SHA256: sha256, TRIAL_VERSION: version },
  };
  const path = join(folder, "wrangler.json");
  writeFileSync(path, JSON.stringify(config), { mode: 0o600 });
  return path;
}

/** Deploys it to the account. `onLeft` learns before that how to remove it. @throws Error when it does not answer */
export async function deployTrial(
  wrangler: Wrangler,
  name: string,
  onLeft: (left: Left) => void,
): Promise<Trial> {
  const parts = partsOf(name);
  const told = join(parts.folder, "told.jsonl");
  // A deployment under way goes on without this process: what it made would be left.
  let underWay: Promise<unknown> = Promise.resolve();
  let isOver = false;
  const remove = async () => {
    isOver = true;
    await underWay;
    mkdirSync(parts.folder, { recursive: true });
    const { problem } = await runWrangler(wrangler, ["delete", name, "--force", "-c", configure(parts, "")]);
    rmSync(parts.folder, { recursive: true, force: true });
    return problem;
  };
  onLeft({ script: name, remove });
  await buildDashboard();
  const deploy = async (version: string) => {
    // A part that is still under way would bring it back.
    if (isOver) throw new Error(`${name} is removed`);
    rmSync(told, { force: true });
    const deployed = runWrangler(wrangler, ["deploy", "-c", configure(parts, version)], {
      WRANGLER_OUTPUT_FILE_PATH: told,
    });
    underWay = deployed;
    const { problem } = await deployed;
    if (problem !== undefined) throw new Error(`the trial was not deployed: ${problem}`);
  };
  await deploy("1");
  const url = addressIn(told);
  if (url === undefined)
    throw new Error("wrangler does not say where it deployed the trial: is there a workers.dev subdomain?");
  await untilUp(url);
  return { url, token: parts.token, script: name, redeploy: deploy };
}

/** The address in wrangler's own record of a deployment. */
function addressIn(told: string): string | undefined {
  try {
    for (const line of readFileSync(told, "utf8").split("\n")) {
      const entry = (line === "" ? {} : JSON.parse(line)) as { type?: unknown; targets?: unknown };
      if (entry.type !== "deploy" || !Array.isArray(entry.targets)) continue;
      const [target] = entry.targets as readonly unknown[];
      if (typeof target === "string") return target.includes("://") ? target : `https://${target}`;
    }
  } catch {
    // It is missing, or was cut off: then nothing is known.
  }
  return undefined;
}

async function untilUp(url: string): Promise<void> {
  const endMs = performance.now() + UP_WITHIN_MS;
  while (performance.now() < endMs) {
    const isUp = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(5_000) }).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isUp) return;
    await pause(500);
  }
  throw new Error(`the trial at ${url} does not answer within ${UP_WITHIN_MS / 1_000} s of its deployment`);
}

/** Runs wrangler apart from this terminal, so Ctrl-C does not stop it half way, and it can ask nothing. */
function runWrangler(
  { command, maxMs, secrets, env: given }: Wrangler,
  args: readonly string[],
  variables: Readonly<Record<string, string>> = {},
): Promise<{ readonly problem?: string }> {
  const [program = "", ...before] = command;
  // It has no use for the limiter's token.
  const { TOKEN: _, ...env } = given;
  const child = spawn(program, [...before, ...args], {
    cwd: ROOT,
    detached: true,
    stdio: ["ignore", "pipe", "pipe"],
    // An environment's name would be added to the worker's.
    env: { ...env, CLOUDFLARE_ENV: "", CI: "1", NO_COLOR: "1", WRANGLER_SEND_METRICS: "false", ...variables },
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (data: Buffer) => (output = (output + data.toString()).slice(-MAX_OUTPUT)));
  let isLate = false;
  const kill = setTimeout(() => {
    isLate = true;
    // With its own children.
    if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
  }, maxMs);
  return new Promise((done) => {
    const end = (how: string | undefined) => {
      clearTimeout(kill);
      const says = plain(output, secrets, 600);
      done(
        how === undefined ? {} : { problem: `wrangler ${args[0]} ${how}: ${says || "it printed nothing"}` },
      );
    };
    child.once("error", (error) => end(`does not run (${error.message})`));
    child.once("close", (code) => {
      if (isLate) end(`was stopped after ${maxMs / 1_000} s`);
      else end(code === 0 ? undefined : `ended with ${code === null ? "a signal" : `code ${code}`}`);
    });
  });
}

/** Bundles it as a deployment does. @throws Error with wrangler's output */
async function bundle(wrangler: Wrangler, parts: Parts): Promise<string> {
  await buildDashboard();
  const folder = join(parts.folder, "built");
  const { problem } = await runWrangler(wrangler, [
    "deploy",
    "--dry-run",
    "--outdir",
    folder,
    "-c",
    configure(parts, "1"),
  ]);
  if (problem !== undefined) throw new Error(`the trial was not built: ${problem}`);
  return join(folder, "trial-worker.js");
}

/** Serves it with plain workerd. A new version is a restart, on the same port and storage. */
export async function serveTrial(wrangler: Wrangler, onLeft: (left: Left) => void): Promise<Trial> {
  const parts = partsOf("weir-trial");
  const port = await freePort();
  const stateDir = join(parts.folder, "state");
  mkdirSync(stateDir);
  const start = (main: string, version: string) =>
    serve({
      stateDir,
      port,
      isApart: true,
      main,
      hasDeploymentObjects: true,
      classes: CLASSES,
      policies: POLICIES,
      apiTokens: parts.apiTokens,
      variables: { TRIAL_SHA256: parts.sha256, TRIAL_VERSION: version },
      onOutput: () => undefined,
    });
  const built = bundle(wrangler, parts);
  let serving: Promise<Serving> = built.then((main) => start(main, "1"));
  let isOver = false;
  onLeft({
    remove: async () => {
      isOver = true;
      const last = await serving.catch(() => undefined);
      await last?.stop("SIGKILL");
      rmSync(parts.folder, { recursive: true, force: true });
      return undefined;
    },
  });
  const redeploy = async (version: string) => {
    const [main, before] = [await built, await serving];
    if (isOver) throw new Error("the trial is removed");
    const restart = async () => {
      await before.rest();
      await before.stop();
      return start(main, version);
    };
    serving = restart();
    await serving;
  };
  const { url } = await serving;
  return { url, token: parts.token, redeploy };
}
