import { hash } from "../../core/protocol/object-names.ts";
import { CATALOG_EXAMPLES, EXAMPLES } from "./openapi-examples.ts";
import { problems } from "./openapi-parts.ts";
import { openApiPaths } from "./openapi-paths.ts";
import { namedSchemas } from "./openapi-schemas.ts";

let document: object | undefined;

let written: { readonly text: string; readonly etag: string } | undefined;

/** The document as JSON text, and its entity tag: made once, since anybody may ask for it. */
export function openApiText(): { readonly text: string; readonly etag: string } {
  if (written === undefined) {
    const text = JSON.stringify(openApiDocument());
    written = { text, etag: `"${hash(text).toString(36)}-${text.length.toString(36)}"` };
  }
  return written;
}

/** The OpenAPI 3.1 document. It is made of the schemas that the parser uses, when it is first asked for. */
export function openApiDocument(): object {
  document ??= {
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
    paths: withDetails(openApiPaths()),
    components: {
      securitySchemes: {
        token: { type: "http", scheme: "bearer", description: "A token of `npm run token`." },
      },
      schemas: namedSchemas(),
    },
  };
  return document;
}

/* What is said of every operation of the OpenAPI document beside its schemas: its tag, its examples, other methods. */

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

interface Operation {
  readonly operationId: string;
  readonly security?: readonly object[];
  readonly requestBody?: Content;
  readonly responses: Readonly<Record<string, Content>>;
}
interface Content {
  readonly content?: Readonly<Record<string, object>>;
}
type Paths = Readonly<Record<string, Readonly<Record<string, Operation>>>>;

/** The same paths, and each operation with its details. */
function withDetails(paths: object): object {
  return Object.fromEntries(
    Object.entries(paths as Paths).map(([path, methods]) => [
      path,
      Object.fromEntries(
        Object.entries(methods).map(([method, operation]) => [method, detailed(path, operation)]),
      ),
    ]),
  );
}

function detailed(path: string, operation: Operation): object {
  const { requestBody, responses } = operation;
  const { request, answers, denied } =
    EXAMPLES[operation.operationId] ?? CATALOG_EXAMPLES[operation.operationId] ?? {};
  // A query that nothing reads, or that nobody could, is refused, but where no token is needed.
  const stray = operation.security?.length === 0 ? {} : problems(400, 422);
  const told = { ...stray, ...responses, ...problems(405) };
  return {
    tags: [tagOf(path)],
    ...operation,
    ...(requestBody && { requestBody: withExamples(requestBody, request && { request }) }),
    responses: Object.fromEntries(
      Object.entries(told).map(([status, response]) => [
        status,
        withExamples(response, { 200: answers, 429: denied && { denied } }[status]),
      ]),
    ),
  };
}

const CATALOG: ReadonlySet<string> = new Set(["token", "tokens", "catalog", "audit"]);

function tagOf(path: string): string {
  const [, , room = "", , part = ""] = path.split("/");
  const isOfCatalog =
    room === "policies" ? path.includes("{policy}") && !part.startsWith("key") : CATALOG.has(room);
  if (isOfCatalog) return "catalog";
  const place = {
    holds: "holds",
    leases: "leases",
    reservations: "reservations",
    policies: "keys",
    stats: "stats",
  }[room];
  if (path === "/metrics") return "stats";
  return place ?? (path === "/healthz" ? "service" : "limits");
}

/** A request or an answer, and what it may look like. Those of problems stay, beside a denial. */
function withExamples<Told extends Content>(told: Told, given: Readonly<Record<string, object>> = {}): Told {
  const { content } = told;
  if (content === undefined || Object.keys(given).length === 0) return told;
  const examples = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, { value }]));
  const types = Object.entries(content).map(([type, each]) => {
    const before = "examples" in each ? (each.examples as object) : {};
    return [type, { ...each, examples: { ...examples, ...before } }];
  });
  return { ...told, content: Object.fromEntries(types) as Readonly<Record<string, object>> };
}
