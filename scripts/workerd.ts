/** Runs a bundle with plain workerd: for self-hosting, for tests and for benchmarks. */
import { spawn, type ChildProcess } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { BUNDLE, readWranglerToml, ROOT } from "./project.ts";

export interface ServeOptions {
  readonly host?: string;
  /** Absent: a free one. */
  readonly port?: number;
  /** Where the objects keep their storage. */
  readonly stateDir: string;
  /** Absent: those of wrangler.toml. */
  readonly policies?: unknown;
  /** Absent: no tokens, so everything is closed. */
  readonly apiTokens?: string | undefined;
  /** The module to run; absent: the built bundle. */
  readonly main?: string;
  /** Further modules that it imports, by the name it imports them under. */
  readonly modules?: Readonly<Record<string, string>>;
  /** A worker to run beside it that has the service binding LIMITER; it answers at `callerUrl`. */
  readonly caller?: string;
  /** Pipes what workerd prints to `onOutput` instead of this process's own output. */
  readonly onOutput?: (text: string) => void;
}

export interface Serving {
  readonly url: string;
  /** Where the caller answers; the same as `url` when there is none. */
  readonly callerUrl: string;
  readonly process: ChildProcess;
  /** Resolves when the process has gone, with its exit code; `null` when a signal ended it. */
  readonly exited: Promise<number | null>;
  /** Ends it (SIGTERM unless said otherwise) and waits until it has gone. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

/** So much of what workerd prints goes into the error when it does not start. */
const MOST_PRINTED = 4_000;

/** Starts workerd and waits until it takes connections, or throws with what it printed. */
export async function serve(options: ServeOptions): Promise<Serving> {
  const { host = "127.0.0.1", stateDir, onOutput } = options;
  const port = options.port ?? (await freePort());
  mkdirSync(stateDir, { recursive: true });
  const configDir = mkdtempSync(join(tmpdir(), "weir-"));
  const config = join(configDir, "config.capnp");
  const callerPort = options.caller === undefined ? port : await freePort();
  writeFileSync(config, workerdConfig({ ...options, host, port, callerPort }, configDir));
  const child = spawn(join(ROOT, "node_modules", ".bin", "workerd"), ["serve", config], {
    stdio: onOutput === undefined ? ["ignore", "inherit", "inherit"] : ["ignore", "pipe", "pipe"],
  });
  let printed = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on("data", (data: Buffer) => {
      if (printed.length < MOST_PRINTED) printed += data.toString();
      onOutput?.(data.toString());
    });
  }
  const exited = new Promise<number | null>((done) => {
    // "close" and not "exit": by then all that it printed has been read.
    child.on("close", (code) => {
      rmSync(configDir, { recursive: true, force: true });
      done(code);
    });
  });
  const hostName = host.includes(":") ? `[${host}]` : host;
  const url = `http://${hostName}:${port}`;
  const callerUrl = `http://${hostName}:${callerPort}`;
  const isUp = await Promise.race([answers(url), exited.then(() => false)]);
  if (!isUp)
    throw new Error(`workerd stopped before it served: ${printed === "" ? "it says why above" : printed}`);
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    await exited;
  };
  return { url, callerUrl, process: child, exited, stop };
}

/** A TCP port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = createServer();
  const port = await new Promise<number>((done) => {
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      done(typeof address === "object" && address !== null ? address.port : 0);
    });
  });
  await new Promise((done) => server.close(done));
  return port;
}

type Settled = ServeOptions & { readonly host: string; readonly port: number; readonly callerPort: number };

/** The configuration in Cap'n Proto's text form. The unique key names the objects' folder: it is for ever. */
function workerdConfig(options: Settled, configDir: string): string {
  const { host, port, stateDir, apiTokens } = options;
  const { compatibilityDate, compatibilityFlags, policies } = readWranglerToml();
  const hostName = host.includes(":") ? `[${host}]` : host;
  const modules = { "index.js": options.main ?? BUNDLE, ...options.modules };
  const embedded = Object.entries(modules).map(([name, path], index) => {
    // `embed` reads relative to the configuration.
    copyFileSync(path, join(configDir, `module-${index}`));
    return `(name = ${text(name)}, esModule = embed ${text(`module-${index}`)})`;
  });
  const bindings = [
    `(name = "OBJECTS", durableObjectNamespace = "LimiterObject")`,
    `(name = "POLICIES", json = ${text(JSON.stringify(options.policies ?? policies))})`,
    ...(apiTokens === undefined ? [] : [`(name = "API_TOKENS", text = ${text(apiTokens)})`]),
  ];
  const flags = `compatibilityDate = ${text(compatibilityDate)}, compatibilityFlags = [${compatibilityFlags.map(text).join(", ")}],`;
  const { caller: callerService, callerSocket, worker: caller } = callerConfig(options, configDir, flags);
  return `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "weir", worker = .weir),
${callerService}    (name = "state", disk = (path = ${text(resolve(stateDir))}, writable = true)),
  ],
  sockets = [(name = "http", address = ${text(`${hostName}:${port}`)}, http = (), service = "weir")${callerSocket}],
);
${caller}const weir :Workerd.Worker = (
  modules = [${embedded.join(", ")}],
  ${flags}
  bindings = [${bindings.join(", ")}],
  durableObjectNamespaces = [(className = "LimiterObject", uniqueKey = "weir-LimiterObject", enableSql = true)],
  durableObjectStorage = (localDisk = "state"),
);
`;
}

/** The parts of it that a caller needs; empty when there is none. */
function callerConfig(
  { caller, host, callerPort }: Settled,
  configDir: string,
  flags: string,
): { caller: string; callerSocket: string; worker: string } {
  if (caller === undefined) return { caller: "", callerSocket: "", worker: "" };
  copyFileSync(caller, join(configDir, "caller"));
  return {
    caller: `    (name = "caller", worker = .caller),\n`,
    callerSocket: `, (name = "caller", address = ${text(`${host}:${callerPort}`)}, http = (), service = "caller")`,
    worker: `const caller :Workerd.Worker = (
  modules = [(name = "caller.js", esModule = embed "caller")],
  ${flags}
  bindings = [(name = "LIMITER", service = (name = "weir", entrypoint = "Limiter"))],
);
`,
  };
}

/** A string in Cap'n Proto's text form. */
function text(value: string): string {
  const escaped = value
    .replaceAll(/[\\"]/g, String.raw`\$&`)
    .replaceAll(/\p{Cc}/gu, (control) => `\\x${control.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return `"${escaped}"`;
}

/** Resolves when the worker itself answers anything; workerd takes connections before it has read the worker. */
async function answers(url: string): Promise<true> {
  for (;;) {
    const isUp = await fetch(`${url}/healthz`).then(
      () => true,
      () => false,
    );
    if (isUp) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
}
