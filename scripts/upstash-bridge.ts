/**
 * A bridge that speaks Upstash's REST protocol in front of any Redis, for development and tests only: it has
 * one token with all rights, no TLS and no limits.
 *
 * All requests share one connection to Redis. The commands of one turn of the event loop are sent together,
 * each once. If the connection breaks before the reply, the command may have run, so the caller gets 503.
 * While Redis hangs, the requests hang too.
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { createClient, ErrorReply, RESP_TYPES } from "redis";
import { readRequest, type RedisCommand, refused, type Wanted } from "./upstash-request.ts";

export interface BridgeOptions {
  readonly redisUrl: string;
  readonly token: string;
  readonly port?: number;
  /** Gets one line when the bridge is up; absent: nothing is printed. */
  readonly log?: (line: string) => void;
}

export interface Bridge {
  readonly url: string;
  readonly token: string;
  /** How many commands of callers went to Redis, without the MULTI and EXEC of transactions. */
  commands(): number;
  /** Closes every connection. Requests that wait for Redis get no answer. */
  stop(): Promise<void>;
}

type Client = ReturnType<typeof connectTo>;

const HOST = "127.0.0.1";
const RECONNECT_MS = 50;
/** The largest request that Upstash takes on its common plans, in bytes. */
const MAX_BYTES = 10 * 1024 * 1024;
/** Longer than clients keep an idle connection, so that no client sends while the server closes it. */
const KEEP_ALIVE_MS = 120_000;

/** Starts the bridge. It connects as soon as Redis is up. */
export async function startBridge(options: BridgeOptions): Promise<Bridge> {
  const { token } = options;
  const client = connectTo(options.redisUrl);
  let commands = 0;
  const execute = async (wanted: Wanted, isBase64: boolean): Promise<Answer> => {
    if (wanted.kind === "refused") return answerError(wanted.status, wanted.error);
    if (client.isReady) commands += wanted.kind === "command" ? 1 : wanted.commands.length;
    const typeMapping = isBase64 ? AS_BYTES : AS_TEXT;
    const send = (command: RedisCommand) => replyTo(client.sendCommand(command, { typeMapping }));
    if (wanted.kind === "command") return answerOne(await send(wanted.command));
    if (wanted.kind === "pipeline") return answerSeveral(await Promise.all(wanted.commands.map(send)));
    return await transaction(wanted.commands, send);
  };
  const server = createServer((request, response) => {
    respond(request, response, token, execute).catch((error: unknown) =>
      write(response, answerError(503, `ERR Redis is not available: ${String(error)}`)),
    );
  });
  server.keepAliveTimeout = KEEP_ALIVE_MS;
  const port = await listen(server, options.port ?? 0);
  await firstAttempt(client);
  const url = `http://${HOST}:${port}`;
  options.log?.(`Upstash bridge on ${url} (a development and test tool, not for production)`);
  const stop = async () => {
    client.destroy();
    server.closeAllConnections();
    await new Promise((done) => server.close(done));
  };
  return { url, token, commands: () => commands, stop };
}

function connectTo(url: string) {
  return createClient({
    url,
    // Upstash's answers have the form of RESP 2, the older protocol, in which pairs are flat arrays.
    RESP: 2,
    // A command that cannot be sent now fails at once. No command is sent again after a reconnection.
    disableOfflineQueue: true,
    // 0: no timeout. It would limit only the wait until a command is written, and cost a timer each.
    commandOptions: { timeout: 0 },
    socket: { reconnectStrategy: () => RECONNECT_MS },
  });
}

/** Resolves after the first attempt to connect, whatever its result. The client retries by itself. */
async function firstAttempt(client: Client): Promise<void> {
  const failed = new Promise<void>((done) => client.on("error", () => done()));
  // `connect` rejects when the bridge is stopped while the client still tries.
  const connected = client.connect().then(
    () => undefined,
    () => undefined,
  );
  await Promise.race([connected, failed]);
}

async function listen(server: Server, port: number): Promise<number> {
  server.listen(port, HOST);
  await once(server, "listening");
  const address = server.address();
  return typeof address === "object" && address !== null ? address.port : port;
}

async function respond(
  request: IncomingMessage,
  response: ServerResponse,
  token: string,
  execute: (wanted: Wanted, isBase64: boolean) => Promise<Answer>,
): Promise<void> {
  const { method = "", url = "/", headers } = request;
  const mark = url.indexOf("?");
  const path = mark === -1 ? url : url.slice(0, mark);
  const query = mark === -1 ? "" : url.slice(mark + 1);
  const body = await readBody(request);
  const isAllowed =
    headers.authorization === `Bearer ${token}` ||
    (query !== "" && new URLSearchParams(query).get("_token") === token);
  const wanted = isAllowed ? read(method, path, query, body) : refused(401, WRONG_TOKEN);
  write(response, await execute(wanted, headers["upstash-encoding"] === "base64"));
}

const WRONG_TOKEN = "WRONGPASS invalid or missing auth token";

function read(method: string, path: string, query: string, body: Buffer | number): Wanted {
  if (typeof body !== "number") return readRequest(method, path, query, body);
  return refused(400, `ERR max request size exceeded. Limit: ${MAX_BYTES} bytes, Actual: ${body} bytes`);
}

/** The body, or its size if it is too large. It is read to its end, so the client gets the answer. */
function readBody(request: IncomingMessage): Promise<Buffer | number> {
  return new Promise((done, fail) => {
    const chunks: Buffer[] = [];
    let size = 0;
    request.on("data", (chunk: Buffer) => {
      size += chunk.length;
      if (size <= MAX_BYTES) chunks.push(chunk);
      else chunks.length = 0;
    });
    request.on("end", () => {
      const [only] = chunks;
      if (size > MAX_BYTES) done(size);
      else done(chunks.length === 1 && only !== undefined ? only : Buffer.concat(chunks));
    });
    request.on("error", fail);
  });
}

function write(response: ServerResponse, { status, body }: Answer): void {
  response.writeHead(status, {
    "Content-Type": "application/json",
    "Content-Length": Buffer.byteLength(body),
  });
  response.end(body);
}

/** Redis's reply. An error of Redis is a reply too; the promise rejects only when the connection breaks. */
function replyTo(sent: Promise<unknown>): Promise<unknown> {
  return sent.catch((error: unknown) => {
    if (error instanceof ErrorReply) return error;
    throw error;
  });
}

/** Runs all commands or none. They are sent together, so no command of another caller comes between. */
async function transaction(
  commands: readonly RedisCommand[],
  send: (command: RedisCommand) => Promise<unknown>,
): Promise<Answer> {
  const replies = await Promise.all([send(["MULTI"]), ...commands.map(send), send(["EXEC"])]);
  const executed = replies.at(-1);
  return Array.isArray(executed) ? answerSeveral(executed) : answerOne(executed);
}

export interface Answer {
  readonly status: number;
  readonly body: string;
}

/** The type mapping for node-redis when strings are answered in base64: they are read as bytes. */
const AS_BYTES = { [RESP_TYPES.BLOB_STRING]: Buffer, [RESP_TYPES.SIMPLE_STRING]: Buffer };
const AS_TEXT = {};

const OK = Buffer.from("OK");

export function answerOne(reply: unknown): Answer {
  return { status: reply instanceof ErrorReply ? 400 : 200, body: JSON.stringify(member(reply)) };
}

/** The answer to several commands. A command that failed has its error in its place. */
function answerSeveral(replies: readonly unknown[]): Answer {
  return { status: 200, body: JSON.stringify(replies.map(member)) };
}

function answerError(status: number, error: string): Answer {
  return { status, body: JSON.stringify({ error }) };
}

function member(reply: unknown): { result: unknown } | { error: string } {
  if (reply instanceof ErrorReply) return { error: reply.message };
  // Upstash does not encode a reply that is "OK", except within an array.
  if (isBytes(reply) && reply.equals(OK)) return { result: "OK" };
  return { result: plain(reply) };
}

function plain(reply: unknown): unknown {
  if (isBytes(reply)) return reply.toString("base64");
  if (Array.isArray(reply)) return reply.map(plain);
  if (reply instanceof ErrorReply) return reply.message;
  return reply;
}

/** For the compiler: with the types of Workers it does not know that Node's Buffer is a Uint8Array. */
function isBytes(reply: unknown): reply is Buffer {
  return reply instanceof Uint8Array;
}
