/** Runs a bundle with plain workerd: for self-hosting, for tests and for benchmarks. */
import { spawn, type ChildProcess } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, connect } from "node:net";
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
  /** Pipes what workerd prints to `onOutput` instead of this process's own output. */
  readonly onOutput?: (text: string) => void;
}

export interface Serving {
  readonly url: string;
  readonly process: ChildProcess;
  /** Resolves when the process has gone, with its exit code; `null` when a signal ended it. */
  readonly exited: Promise<number | null>;
  /** Ends it (SIGTERM unless said otherwise) and waits until it has gone. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

/** Starts workerd and waits until it takes connections, or throws with what it printed. */
export async function serve(options: ServeOptions): Promise<Serving> {
  const { host = "127.0.0.1", stateDir, onOutput } = options;
  const port = options.port ?? (await freePort());
  mkdirSync(stateDir, { recursive: true });
  const configDir = mkdtempSync(join(tmpdir(), "weir-"));
  const config = join(configDir, "config.capnp");
  writeFileSync(config, workerdConfig({ ...options, host, port }, configDir));
  const child = spawn(join(ROOT, "node_modules", ".bin", "workerd"), ["serve", config], {
    stdio: onOutput === undefined ? ["ignore", "inherit", "inherit"] : ["ignore", "pipe", "pipe"],
  });
  child.stdout?.on("data", (data: Buffer) => onOutput?.(data.toString()));
  child.stderr?.on("data", (data: Buffer) => onOutput?.(data.toString()));
  const exited = new Promise<number | null>((done) => {
    child.on("exit", (code) => {
      rmSync(configDir, { recursive: true, force: true });
      done(code);
    });
  });
  const isUp = await Promise.race([takesConnections(host, port), exited.then(() => false)]);
  if (!isUp) throw new Error("workerd stopped before it served; it says why above");
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    await exited;
  };
  return { url: `http://${host.includes(":") ? `[${host}]` : host}:${port}`, process: child, exited, stop };
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

type Settled = ServeOptions & { readonly host: string; readonly port: number };

/** The configuration in Cap'n Proto's text form. The unique key names the objects' folder: it is for ever. */
function workerdConfig(options: Settled, configDir: string): string {
  const { host, port, stateDir, apiTokens } = options;
  const { compatibilityDate, policies } = readWranglerToml();
  const address = `${host.includes(":") ? `[${host}]` : host}:${port}`;
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
  return `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "weir", worker = .weir),
    (name = "state", disk = (path = ${text(resolve(stateDir))}, writable = true)),
  ],
  sockets = [(name = "http", address = ${text(address)}, http = (), service = "weir")],
);
const weir :Workerd.Worker = (
  modules = [${embedded.join(", ")}],
  compatibilityDate = ${text(compatibilityDate)},
  bindings = [${bindings.join(", ")}],
  durableObjectNamespaces = [(className = "LimiterObject", uniqueKey = "weir-LimiterObject", enableSql = true)],
  durableObjectStorage = (localDisk = "state"),
);
`;
}

/** A string in Cap'n Proto's text form. */
function text(value: string): string {
  const escaped = value
    .replaceAll(/[\\"]/g, String.raw`\$&`)
    .replaceAll(/\p{Cc}/gu, (control) => `\\x${control.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return `"${escaped}"`;
}

async function takesConnections(host: string, port: number): Promise<true> {
  for (;;) {
    const isUp = await new Promise<boolean>((done) => {
      const socket = connect({ host, port });
      socket.on("connect", () => done(true)).on("error", () => done(false));
      socket.on("connect", () => socket.destroy());
    });
    if (isUp) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
}
