/** Random requests to all operations of the OpenAPI document: valid ones, and those spoiled in any part. */
import { TOKENS } from "../fixtures.ts";
import { pick, whole } from "../random.ts";
import { bodyBytes } from "./http-bodies.ts";
import { headerLines } from "./http-headers.ts";
import { oddPath, percentEncoded } from "./http-paths.ts";
import { textOf } from "./json-text.ts";
import { oddBytes } from "./odd-http.ts";
import { ODD_FIELDS, ODD_TEXTS } from "./odd-values.ts";
import type { Operation, Operations } from "./openapi-operations.ts";
import { drawField, drawValid, type LiveIds } from "./valid-calls.ts";

type Random = () => number;

export interface FuzzedRequest {
  readonly bytes: Buffer;
  readonly method: string;
  /** As it is sent, with its query. */
  readonly target: string;
  /**
   * `whole`: HTTP with any content, which has to be answered. `left`: the client leaves before it has sent
   * everything. `odd`: may be no HTTP, so the connection ends. `socket`: it requests a WebSocket.
   */
  readonly kind: "whole" | "left" | "odd" | "socket";
  /** Whether the path is an operation's, with nothing changed but its parameters. */
  readonly isExact: boolean;
}

const METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST", "TRACE", "PROPFIND"];

/** A request. The same random numbers make the same one, except for returned ids. */
export function fuzzedRequest(random: Random, operations: Operations, ids: LiveIds): FuzzedRequest {
  const operation = drawOperation(random, operations);
  const isSpoiled = random() < 0.06;
  const isExact = !isSpoiled;
  const method = random() < 0.95 ? operation.method : pick(random, METHODS);
  const path = pathOf(random, operation, ids);
  const target = `${isSpoiled ? oddPath(random, path) : path}${queryOf(random, operations, operation, ids)}`;
  const isSocket = operation.path.endsWith("/socket") && random() < 0.6;
  const hasBody = takesBody(random, operation, method);
  const body = hasBody ? bodyBytes(random, operations, operation, ids) : undefined;
  const lines = [
    `${method} ${target} HTTP/1.1`,
    "Host: weir.test",
    ...headerLines(random, { hasBody: operation.body !== undefined, isSocket, isPlain: random() < 0.75 }),
  ];
  const fate = random();
  if (fate < ODD) {
    const bytes = oddBytes(random, lines, body);
    return { bytes, method, target, kind: "odd", isExact };
  }
  const isLeft = fate < ODD + LEFT && body !== undefined && body.length > 1;
  const bytes = framed(random, lines, body, isLeft);
  const kind = isLeft ? "left" : isSocket ? "socket" : "whole";
  return { bytes, method, target, kind, isExact };
}

/** Equally likely ones, except for the document itself, which is large and constant. */
function drawOperation(random: Random, operations: Operations): Operation {
  const operation = pick(random, operations.all);
  return operation.id === "openapi" && random() < 0.9 ? pick(random, operations.all) : operation;
}

const ODD = 0.01;
const LEFT = 0.005;

function takesBody(random: Random, operation: Operation, method: string): boolean {
  if (method === "GET" || method === "HEAD" || method === "TRACE") return false;
  return operation.body === undefined ? random() < 0.1 : random() < 0.98;
}

function pathOf(random: Random, operation: Operation, ids: LiveIds): string {
  return operation.path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const drawn = random() < 0.9 ? (drawField(random, ids, name) ?? "text") : pick(random, ODD_TEXTS);
    const text = typeof drawn === "string" ? drawn : textOf(drawn);
    // An empty part, or one of dots, would make another path.
    return text === "" || /^\.+$/.test(text) ? "k" : percentEncoded(random, text);
  });
}

function queryOf(random: Random, operations: Operations, operation: Operation, ids: LiveIds): string {
  const given = operation.query.flatMap(({ name, schema, required = false }) => {
    if (random() > (required ? 0.95 : 0.3)) return [];
    const value = drawValid(random, ids, operations, schema, name);
    const text =
      random() < 0.06 ? pick(random, ODD_TEXTS) : typeof value === "string" ? value : textOf(value);
    const field = `${name}=${percentEncoded(random, text)}`;
    return random() < 0.03 ? [field, field] : [field];
  });
  if (random() < 0.04) given.push(pick(random, ODD_QUERIES));
  if (random() < 0.02) given.push(`${percentEncoded(random, pick(random, ODD_FIELDS))}=1`);
  return given.length === 0 ? "" : `?${given.join("&")}`;
}

const ODD_QUERIES = [
  "",
  "&&&",
  "=",
  "deny",
  "deny=",
  "deny=429",
  "deny=430",
  "deny=429&deny=430",
  "deny=__proto__",
  "dney=429",
  "%ff=%ff",
  "%=%",
  "a+b=c+d",
  "waitFor=x",
  "waitFor=idle&waitMs=5",
  "waitMs=-1",
  "waitMs=1e3",
  "waitMs=99999999999999999999",
  "units=%00",
  "units=0",
  "__proto__=1",
  "a=1".repeat(800),
  "a=1&".repeat(800),
  "deny=429#deny=430",
  "?deny=429",
];

/** The bytes of a request, in one piece or in chunks. If it is left, only half of the body. */
function framed(random: Random, lines: readonly string[], body: Buffer | undefined, isLeft: boolean): Buffer {
  const isChunked = body !== undefined && random() < 0.1;
  const framing =
    body === undefined ? [] : [isChunked ? "Transfer-Encoding: chunked" : `Content-Length: ${body.length}`];
  const head = Buffer.from(`${[...lines, ...framing].join("\r\n")}\r\n\r\n`, "latin1");
  if (body === undefined) return head;
  const sent = isChunked ? chunks(random, body) : body;
  return Buffer.concat([head, isLeft ? sent.subarray(0, body.length >> 1) : sent]);
}

function chunks(random: Random, body: Buffer): Buffer {
  const parts: Buffer[] = [];
  for (let at = 0; at < body.length;) {
    const size = 1 + whole(random, Math.max(64, body.length));
    const part = body.subarray(at, at + size);
    parts.push(Buffer.from(`${part.length.toString(16)}\r\n`), part, Buffer.from("\r\n"));
    at += size;
  }
  return Buffer.concat([...parts, Buffer.from("0\r\n\r\n")]);
}

/** A repeatable request that needs a token, as a failure prints it. */
export function printed({ bytes }: FuzzedRequest): string {
  const text = bytes.toString("latin1").replaceAll(TOKENS.full, "TOKEN");
  const most = 3_000;
  return JSON.stringify(text.length <= most ? text : `${text.slice(0, most)}… (${bytes.length} bytes)`);
}
