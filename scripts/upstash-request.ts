/** Reads requests to Upstash's REST API. */

/** The name of a command, and its arguments. */
export type RedisCommand = readonly [string, ...(string | Buffer)[]];

export type Wanted =
  | { readonly kind: "command"; readonly command: RedisCommand }
  | { readonly kind: "pipeline" | "transaction"; readonly commands: readonly RedisCommand[] }
  | Refusal;

/** `status` is the status over HTTP, `error` the text that Upstash would answer. */
export interface Refusal {
  readonly kind: "refused";
  readonly status: number;
  readonly error: string;
}

/** Commands that change the shared connection, or block other callers. Upstash refuses most over HTTP too. */
const NOT_OVER_HTTP = new Set(
  (
    "AUTH HELLO QUIT RESET SELECT CLIENT MONITOR SYNC PSYNC SHUTDOWN MULTI EXEC DISCARD WATCH UNWATCH " +
    "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE " +
    "BLPOP BRPOP BLMOVE BLMPOP BRPOPLPUSH BZPOPMIN BZPOPMAX BZMPOP WAIT WAITAOF"
  ).split(" "),
);

/** Reads a request. `path` comes without the query, which may contain `_token`: it is skipped. */
export function readRequest(method: string, path: string, query: string, body: Buffer): Wanted {
  if (method !== "GET" && method !== "POST" && method !== "PUT" && method !== "HEAD")
    return refused(405, `ERR method ${method} is not allowed`);
  if (path === "/pipeline") return several("pipeline", body);
  if (path === "/multi-exec") return several("transaction", body);
  if (path !== "/") return inPath(path, query, body);
  const given = parse(body);
  const command = commandOf(given);
  return typeof command === "string" ? refused(400, command) : { kind: "command", command };
}

function several(kind: "pipeline" | "transaction", body: Buffer): Wanted {
  const given = parse(body);
  if (!Array.isArray(given)) return refused(400, `ERR failed to parse ${kind} request: ${NOT_ROWS}`);
  if (given.length === 0) return refused(400, `ERR empty ${kind} request`);
  const commands: RedisCommand[] = [];
  for (const row of given as unknown[]) {
    const command = commandOf(row);
    if (typeof command === "string") return refused(400, command);
    commands.push(command);
  }
  return { kind, commands };
}

/** A command like `/set/foo/bar?EX=100`: its arguments are the path's, then the body, then the query's. */
function inPath(path: string, query: string, body: Buffer): Wanted {
  const words: string[] = [];
  for (const part of path.slice(1).split("/")) {
    try {
      words.push(decodeURIComponent(part));
    } catch {
      return refused(400, `ERR failed to parse command: the path is not percent-encoded: ${part}`);
    }
  }
  const [name = "", ...given] = words;
  const args: (string | Buffer)[] = [...given];
  if (body.length > 0) args.push(body);
  for (const [option, value] of new URLSearchParams(query)) {
    if (option === "_token") continue;
    args.push(option);
    if (value !== "") args.push(value);
  }
  const command: RedisCommand = [name, ...args];
  const problem = problemWith(command);
  return problem === undefined ? { kind: "command", command } : refused(400, problem);
}

const NOT_ROWS = "the body must be a JSON array of commands, each an array of a name and arguments";

function parse(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString()) as unknown;
  } catch {
    return undefined;
  }
}

function commandOf(given: unknown): RedisCommand | string {
  if (!Array.isArray(given) || given.length === 0)
    return "ERR failed to parse command: it must be a JSON array of a name and arguments";
  // Most commands have only strings, so the array is changed in place and not copied.
  for (let index = 0; index < given.length; index += 1) {
    const argument: unknown = given[index];
    if (typeof argument === "string") continue;
    if (typeof argument !== "number" && typeof argument !== "boolean")
      return `ERR failed to parse command: argument ${index} is neither a string nor a number nor a boolean`;
    given[index] = String(argument);
  }
  const command = given as unknown as RedisCommand;
  return problemWith(command) ?? command;
}

function problemWith([name]: RedisCommand): string | undefined {
  if (name === "") return "ERR empty command";
  return NOT_OVER_HTTP.has(name.toUpperCase()) ? `ERR Command is not available: '${name}'` : undefined;
}

export function refused(status: number, error: string): Refusal {
  return { kind: "refused", status, error };
}
