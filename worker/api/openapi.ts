import { hash, MAX_KEY_BYTES } from "../../core/protocol/names.ts";
import { LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import { kindsOf, type Status, STATUSES } from "../calls/schemas/problem-schemas.ts";
import { type Call, type CallExample, type CatalogCall, header } from "./call.ts";
import { type Component, namedSchemas, reference, type SchemaName } from "./openapi-schemas.ts";
import { RECORDS } from "./records.ts";

let written: { readonly body: Uint8Array; readonly etag: string } | undefined;

/** The document as JSON in UTF-8, and its entity tag: made once, since the document needs no token. */
export function openApiBytes(): { readonly body: Uint8Array; readonly etag: string } {
  if (written === undefined) {
    const text = JSON.stringify(openApiDocument());
    const etag = `"${hash(text).toString(36)}-${text.length.toString(36)}"`;
    written = { body: new TextEncoder().encode(text), etag };
  }
  return written;
}

/** The OpenAPI 3.1 document, made of the schemas that the parser uses. */
export function openApiDocument(): object {
  return {
    openapi: "3.1.0",
    info: {
      title: "Weir",
      version: "0.1.0",
      summary: "An exact rate and concurrency limiter for the edge",
      description:
        "Decisions are answered with 200 whether they admit or not: the call worked. Durations are integers of " +
        "milliseconds and end in `Ms`. Errors are RFC 9457 problem details: `type` says which one, and a status has " +
        "the schema of its own. Beside `success`, look at `reason`: both say which fields a decision has.",
      license: { name: "MIT", identifier: "MIT" },
    },
    servers: [{ url: "/", description: "Where this document is from" }],
    security: [{ token: [] }],
    tags: TAGS,
    paths: paths(),
    components: {
      securitySchemes: {
        token: { type: "http", scheme: "bearer", description: "A token of `npm run token`." },
      },
      schemas: namedSchemas(schemasIn("body"), schemasIn("ok")),
    },
  };
}

/** The groups of operations, in the order in which one needs them. */
const TAGS = [
  { name: "limits", description: "Take units of a key's quota, and give them back." },
  { name: "holds", description: "Set units apart, and settle them when it is known how many were used." },
  { name: "leases", description: "So many at a time: units that are free again when the lease ends." },
  { name: "keys", description: "Policies and their keys: look, list, set, reset." },
  { name: "catalog", description: "Policies, overrides and tokens that change at run time." },
  { name: "reservations", description: "Decide in the caller's own process." },
  { name: "stats", description: "What the limiter did: metrics, history, top keys." },
  { name: "service", description: "Whether the limiter runs." },
];

function paths(): object {
  const table: Record<string, Record<string, object>> = {};
  for (const [id, record] of Object.entries(RECORDS)) {
    const path = record.path.replaceAll(/:(\w+)/g, "{$1}");
    (table[path] ??= {})[record.method.toLowerCase()] = operation(id, record);
  }
  return table;
}

function operation(operationId: string, record: Call | CatalogCall): object {
  const { tag, summary, description, scopes, body: sent, example = {} } = record;
  const parameters = parametersOf(record);
  return {
    tags: [tag],
    operationId,
    summary,
    ...(description !== undefined && { description }),
    ...(scopes === undefined && { security: [] }),
    ...(parameters.length > 0 && { parameters }),
    ...(sent?.schema !== undefined && {
      requestBody: withExamples(
        { required: sent.isOptional !== true, content: jsonContent(sent.schema) },
        example.request && { request: example.request },
      ),
    }),
    responses: responsesOf(record, example),
  };
}

const DENY = {
  name: "deny",
  in: "query",
  description: "With 429, a denial is answered with that status, for proxies that only read the status.",
  schema: { type: "string", enum: ["429"] },
};
const CURSOR = { name: "cursor", in: "query", required: false, schema: { type: "string" } };
const CONDITIONS = [
  { name: "dryRun", in: "query", required: false, schema: { type: "string", enum: ["true", "false"] } },
  ...["If-Match", "If-None-Match"].map((name) => ({ name, in: "header", schema: { type: "string" } })),
];

function parametersOf(record: Call | CatalogCall): readonly object[] {
  const { path } = record;
  const inPath = [...path.matchAll(/:(\w+)/g)].map(([, name = ""]) => pathParameter(path, name));
  if (record.kind === "catalog")
    return [...inPath, ...(record.lists ? [CURSOR] : []), ...(record.writes ? CONDITIONS : [])];
  return [...inPath, ...(record.denials === undefined ? [] : [DENY]), ...(record.query ?? [])];
}

function pathParameter(path: string, name: string): object {
  const type = { type: "string" };
  const key = { ...type, minLength: 1, maxLength: MAX_KEY_BYTES };
  const description = {
    id: `The id of the ${path.startsWith("/v1/holds/") ? "hold" : "lease"}.`,
    policy: "The name of the policy.",
    key: "The key, percent-encoded.",
    pattern: "A key, or a pattern of keys, percent-encoded.",
    name: "The name of the token.",
  }[name];
  return { name, in: "path", required: true, description, schema: name === "key" ? key : type };
}

/** The responses of an operation: success, denials, and the problems of calls with such an input. */
function responsesOf(record: Call | CatalogCall, { answers, denied }: CallExample): object {
  const { ok, denials } = record;
  const done: Readonly<Record<number, object>> =
    ok === undefined
      ? { 204: { description: "Done" } }
      : { 200: { description: ok.says, headers: ok.headers ?? {}, content: jsonContent(ok.schema) } };
  const responses: Record<number, Content> = {
    ...Object.fromEntries(problemsOf(record).map((status) => [status, problem(status)])),
    ...(record.responses ?? done),
    ...(denials !== undefined && denialsOf(...denials)),
  };
  for (const [status, examples] of [
    [200, answers],
    [429, denied && { denied }],
  ] as const)
    if (responses[status] !== undefined) responses[status] = withExamples(responses[status], examples);
  return responses;
}

function jsonContent(component: Component) {
  return { "application/json": { schema: reference(component) } };
}

/** The named schemas that the records define themselves. */
function schemasIn(part: "body" | "ok"): Exclude<Component, string> {
  const components = Object.values(RECORDS).map((record) => record[part]?.schema ?? "");
  return Object.assign({}, ...components.filter((component) => typeof component !== "string"));
}

function problemsOf(record: Call | CatalogCall): readonly Status[] {
  if (record.scopes === undefined) return [405];
  const statuses = new Set<number>([400, 401, 403, 404, 405, 422, 429, 503]);
  if (record.body !== undefined) for (const status of [413, 415]) statuses.add(status);
  if (record.kind === "catalog" && record.writes === true) statuses.add(412);
  if (record.kind === "call" && record.body !== undefined) statuses.add(409);
  for (const status of record.alsoProblems ?? []) statuses.add(status);
  for (const status of record.neverProblems ?? []) statuses.delete(status);
  return [...statuses] as Status[];
}

interface Content {
  readonly content?: Readonly<Record<string, object>>;
}

/** A request or a response with examples. Those of problems stay, beside a denial. */
function withExamples<Part extends Content>(part: Part, given: Readonly<Record<string, object>> = {}): Part {
  const { content } = part;
  if (content === undefined || Object.keys(given).length === 0) return part;
  const examples = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, { value }]));
  const types = Object.entries(content).map(([type, each]) => {
    const before = "examples" in each ? (each.examples as object) : {};
    return [type, { ...each, examples: { ...examples, ...before } }];
  });
  return { ...part, content: Object.fromEntries(types) as Readonly<Record<string, object>> };
}

/* Problems, and denials under `?deny=429`. */

function problem(status: Status): object {
  const [name, description] = STATUSES[status];
  return { description, headers: HEADERS[status] ?? {}, content: problemContent(status, reference(name)) };
}

/** The answers to denials under `?deny=429`, beside the problems of the same status. */
function denialsOf(exceeded: SchemaName, reduced: SchemaName, headers: object): Record<string, object> {
  const either = (status: 429 | 503, name: SchemaName, reason: string) => {
    const [other, description] = STATUSES[status];
    return {
      description: `${reason}, if the call has \`?deny=429\`. Else: ${description}`,
      headers: { ...headers, ...HEADERS[status] },
      content: problemContent(status, { oneOf: [reference(name), reference(other)] }),
    };
  };
  return {
    429: either(429, exceeded, "A denial"),
    503: either(503, reduced, "A denial since machines are too busy, or since the limiter could not decide"),
  };
}

function problemContent(status: Status, schema: object): object {
  const [[, code, title] = LIMITER_PROBLEMS.internal] = kindsOf(status);
  const detail = STATUSES[status][1];
  const value = { type: `urn:weir:problem:${code}`, title, status, detail };
  const errors = [{ pointer: "/cost", detail: "cost is -1: must be an integer from 0 to 1000000000" }];
  const examples = { problem: { value: status === 422 ? { ...value, errors } : value } };
  return { "application/problem+json": { schema, examples } };
}

const HEADERS: Readonly<Partial<Record<Status, object>>> = {
  401: { "WWW-Authenticate": header('`Bearer realm="weir"`') },
  405: { Allow: header("The methods that this address takes.") },
  426: { Upgrade: header("`websocket`") },
  429: { "Retry-After": header("Whole seconds, rounded up. Absent when waiting does not help.") },
};
