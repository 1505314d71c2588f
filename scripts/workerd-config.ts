import { copyFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { isOwnMachine, parseWebhook } from "../core/policies/parse-notices.ts";
import { BUNDLE, readWranglerToml } from "./project.ts";

export interface ServeOptions {
  readonly host?: string;
  readonly port?: number;
  /** The process has its own group: signals of a terminal do not reach it. */
  readonly isApart?: boolean;
  /** Lets callers announce the process's end: see workerd.ts. Absent: no caller may. */
  readonly stopSecret?: string;
  /** How many objects the process can have: see object-bounds.ts. Absent: no bound. */
  readonly objectBounds?: string;
  /** For tests: milliseconds between background work. Absent: the default. */
  readonly backgroundMs?: number | undefined;
  readonly stateDir: string;
  /** Absent: those of wrangler.toml. */
  readonly policies?: unknown;
  /** Absent: every call but /healthz is answered with 503. */
  readonly apiTokens?: string | undefined;
  /** The address and the token of the Redis with the pools; absent: no policy may have a pool. */
  readonly pool?: { readonly url?: string; readonly token?: string } | undefined;
  /** Where notices go, and the secret that signs them. Absent: NOTICES of wrangler.toml, without a secret. */
  readonly notices?: { readonly target?: unknown; readonly secret?: string | undefined } | undefined;
  /** Absent: those of wrangler.toml; if it has none either, one for each continent but Antarctica. */
  readonly regions?: unknown;
  /** Absent: that of wrangler.toml. Plain workerd is in one place; a bad value is refused there too. */
  readonly home?: string;
  /** For tests: the name of a header that has `request.cf` as JSON, the origin of a request. */
  readonly originHeader?: string;
  /** The path of the module to run; absent: the built bundle. */
  readonly main?: string;
  /** Whether that module also has the classes of the catalog and the statistics. Absent: the bundle has. */
  readonly hasDeploymentObjects?: boolean;
  /** By binding: further classes of objects that the module has. */
  readonly classes?: Readonly<Record<string, string>>;
  /** Further variables, as text. */
  readonly variables?: Readonly<Record<string, string>>;
  /** The paths of further modules, by the names under which the module imports them. */
  readonly modules?: Readonly<Record<string, string>>;
  /** The number of isolates of the worker, with an address each and shared objects. Absent: one. */
  readonly isolates?: number;
  /** For tests: the policies of all isolates but the first, which runs the objects. Absent: `policies`. */
  readonly callersPolicies?: unknown;
  /** For tests: the module of all isolates but the first, which runs the objects. Absent: `main`. */
  readonly callersMain?: string | undefined;
  /** The path of a second worker to run, which has the service binding LIMITER and answers at `callerUrl`. */
  readonly caller?: string;
  /** Whether the second worker binds the objects too, as OBJECTS, and has the policies. */
  readonly callerHasObjects?: boolean;
  /** By name: the `props` of the second worker's further bindings to the limiter. */
  readonly callerProps?: Readonly<Record<string, object>> | undefined;
  /** For tests: LOG, instead of that of wrangler.toml. */
  readonly log?: object | undefined;
  /** For tests: the path of a further worker, which gets the events of the worker's traces as they happen. */
  readonly tail?: string | undefined;
  /** For tests: the host and port of a server that gets each data point of the binding ANALYTICS as a request. */
  readonly analytics?: string | undefined;
  /** Gets workerd's output; absent: workerd prints to this process's own output. */
  readonly onOutput?: (text: string) => void;
}

type Settled = ServeOptions & {
  readonly host: string;
  readonly ports: readonly number[];
  readonly callerPort: number;
};

/** Cap'n Proto's text form. `uniqueKey` names the folder of stored objects: never change it. */
export function workerdConfig(options: Settled, configDir: string): string {
  const { host, ports, stateDir, apiTokens } = options;
  const { compatibilityDate, compatibilityFlags, policies, regions, home, ...toml } = readWranglerToml();
  const { log = toml.log } = options;
  const notices: NonNullable<ServeOptions["notices"]> = { target: toml.notices, ...options.notices };
  const hostName = host.includes(":") ? `[${host}]` : host;
  const { main = BUNDLE, callersMain = main } = options;
  const embedded = embed({ "index.js": main, ...options.modules }, configDir, "module");
  const ofCallersMain =
    callersMain === main ? embedded : embed({ "index.js": callersMain }, configDir, "caller-module");
  const ofObjects = options.policies ?? policies;
  const ofCallers = options.callersPolicies ?? ofObjects;
  const shared = [
    ...textBindings({
      API_TOKENS: apiTokens,
      STOP_SECRET: options.stopSecret,
      OBJECT_BOUNDS: options.objectBounds,
      BACKGROUND_MS: options.backgroundMs,
      // Plain workerd refuses to make an object in a jurisdiction.
      JURISDICTIONS: "ignored",
      // Otherwise it does not report a socket whose caller left before it was opened.
      SOCKETS: "relayed",
      HOME: options.home ?? home,
      UPSTASH_REDIS_REST_URL: options.pool?.url,
      UPSTASH_REDIS_REST_TOKEN: options.pool?.token,
      NOTICES_SECRET: notices.secret,
      ...options.variables,
    }),
    ...jsonBindings({ LOG: log, REGIONS: options.regions ?? regions, NOTICES: notices.target }),
    ...(options.analytics === undefined ? [] : [`(name = "ANALYTICS", analyticsEngine = "analytics")`]),
  ];
  const flags = `compatibilityDate = ${text(compatibilityDate)}, compatibilityFlags = [${compatibilityFlags.map(text).join(", ")}],`;
  const { caller: callerService, callerSocket, worker: caller } = callerConfig(options, configDir, flags);
  const tail = tailConfig(options, configDir, flags);
  // The first worker has the objects. The others are isolates that reach the same objects.
  const isolates = ports.map((port, index) => {
    const name = index === 0 ? "weir" : `weir${index + 1}`;
    const socket = index === 0 ? "http" : `http${index + 1}`;
    const classes = classesOf(options);
    const namespaceOf = (className: string) =>
      index === 0 ? text(className) : `(className = ${text(className)}, serviceName = "weir")`;
    const bindings = [
      ...classes.map(
        ([binding, className]) => `(name = "${binding}", durableObjectNamespace = ${namespaceOf(className)})`,
      ),
      ...jsonBindings({ POLICIES: index === 0 ? ofObjects : ofCallers }),
      ...shared,
    ];
    const http = options.originHeader === undefined ? "" : `cfBlobHeader = ${text(options.originHeader)}`;
    const owned = classes.map(
      ([, className]) => `(className = "${className}", uniqueKey = "weir-${className}", enableSql = true)`,
    );
    const ownsObjects = `durableObjectNamespaces = [${owned.join(", ")}],
  durableObjectStorage = (localDisk = "state"),`;
    return {
      service: `    (name = ${text(name)}, worker = .${name}),\n`,
      socket: `(name = "${socket}", address = ${text(`${hostName}:${port}`)}, http = (${http}), service = "${name}")`,
      worker: `const ${name} :Workerd.Worker = (
  modules = [${index === 0 ? embedded : ofCallersMain}],
  ${flags}
  bindings = [${bindings.join(", ")}],
  ${index === 0 ? ownsObjects : ""}
  ${tail === undefined ? "" : `streamingTails = ["tail"],`}
);
`,
    };
  });
  return `using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
${isolates.map(({ service }) => service).join("")}${callerService}${tail?.service ?? ""}${networkConfig(options, notices.target)}${analyticsService(options)}    (name = "state", disk = (path = ${text(resolve(stateDir))}, writable = true)),
  ],
  sockets = [${isolates.map(({ socket }) => socket).join(", ")}${callerSocket}],
);
${caller}${tail?.worker ?? ""}${isolates.map(({ worker }) => worker).join("")}`;
}

function tailConfig(
  { tail }: Settled,
  configDir: string,
  flags: string,
): { service: string; worker: string } | undefined {
  if (tail === undefined) return undefined;
  copyFileSync(tail, join(configDir, "tail"));
  return {
    service: `    (name = "tail", worker = .tail),\n`,
    worker: `const tail :Workerd.Worker = (
  modules = [(name = "tail.js", esModule = embed "tail")],
  ${flags}
);
`,
  };
}

function analyticsService({ analytics }: Settled): string {
  if (analytics === undefined) return "";
  return `    (name = "analytics", external = (address = ${text(analytics)}, http = ())),\n`;
}

function classesOf({
  main,
  hasDeploymentObjects = main === undefined,
  classes = {},
}: Settled): readonly [string, string][] {
  const limiter: [string, string] = ["OBJECTS", "LimiterObject"];
  const ofDeployment: readonly [string, string][] = [
    ["CATALOG", "CatalogObject"],
    ["STATS", "StatsObject"],
  ];
  return [limiter, ...(hasDeploymentObjects ? ofDeployment : []), ...Object.entries(classes)];
}

/** Modules by their import names. `embed` takes a path relative to the configuration file. */
function embed(modules: Readonly<Record<string, string>>, configDir: string, prefix: string): string {
  const embedded = Object.entries(modules).map(([name, path], index) => {
    copyFileSync(path, join(configDir, `${prefix}-${index}`));
    return `(name = ${text(name)}, esModule = embed ${text(`${prefix}-${index}`)})`;
  });
  return embedded.join(", ");
}

/**
 * A pool may have a private address, and a webhook one of this machine. workerd reaches no others than public ones unless its
 * configuration allows it, whatever a name resolves to.
 */
function networkConfig({ pool }: Settled, target: unknown): string {
  const isLocal = target !== undefined && isOwnMachine(parseWebhook(target, true));
  const allowed = ["public", ...(pool === undefined ? [] : ["private"]), ...(isLocal ? ["local"] : [])];
  if (allowed.length === 1) return "";
  const peers = allowed.map((each) => text(each)).join(", ");
  return `    (name = "internet", network = (allow = [${peers}], tlsOptions = (trustBrowserCas = true))),
`;
}

/** Those with a value. */
function textBindings(values: Readonly<Record<string, unknown>>): string[] {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return given.map(([name, value]) => `(name = ${text(name)}, text = ${text(String(value))})`);
}

function jsonBindings(values: Readonly<Record<string, unknown>>): string[] {
  const given = Object.entries(values).filter(([, value]) => value !== undefined);
  return given.map(([name, value]) => `(name = ${text(name)}, json = ${text(JSON.stringify(value))})`);
}

function callerConfig(
  { caller, callerProps = {}, callerHasObjects, policies, host, callerPort }: Settled,
  configDir: string,
  flags: string,
): { caller: string; callerSocket: string; worker: string } {
  if (caller === undefined) return { caller: "", callerSocket: "", worker: "" };
  copyFileSync(caller, join(configDir, "caller"));
  const bindings = Object.entries({ LIMITER: undefined, ...callerProps }).map(([name, props]) => {
    const given = props === undefined ? "" : `, props = (json = ${text(JSON.stringify(props))})`;
    return `(name = ${text(name)}, service = (name = "weir", entrypoint = "Limiter"${given}))`;
  });
  if (callerHasObjects === true)
    bindings.push(
      `(name = "OBJECTS", durableObjectNamespace = (className = "LimiterObject", serviceName = "weir"))`,
      ...jsonBindings({ POLICIES: policies }),
    );
  return {
    caller: `    (name = "caller", worker = .caller),\n`,
    callerSocket: `, (name = "caller", address = ${text(`${host}:${callerPort}`)}, http = (), service = "caller")`,
    worker: `const caller :Workerd.Worker = (
  modules = [(name = "caller.js", esModule = embed "caller")],
  ${flags}
  bindings = [${bindings.join(", ")}],
);
`,
  };
}

function text(value: string): string {
  const escaped = value
    .replaceAll(/[\\"]/g, String.raw`\$&`)
    .replaceAll(/\p{Cc}/gu, (control) => `\\x${control.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return `"${escaped}"`;
}
