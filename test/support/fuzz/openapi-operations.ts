/** The operations of the OpenAPI document: the allowed requests and answers. */
import { getPath } from "hono/utils/url";
import { validatorOf } from "../json-schema.ts";

/** The part of JSON Schema that the document uses. */
export interface Schema {
  readonly $ref?: string;
  readonly type?: string;
  readonly enum?: readonly string[];
  readonly const?: string | number | boolean;
  readonly anyOf?: readonly Schema[];
  readonly oneOf?: readonly Schema[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: Schema | boolean;
  readonly items?: Schema;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly minimum?: number;
  readonly maximum?: number;
}

interface Content {
  readonly content?: Readonly<Record<string, { readonly schema: Schema }>>;
}
interface Parameter {
  readonly name: string;
  readonly in: string;
  readonly required?: boolean;
  readonly schema: Schema;
}
export interface OpenApi {
  readonly paths: Readonly<
    Record<
      string,
      Readonly<
        Record<
          string,
          {
            readonly operationId: string;
            readonly parameters?: readonly Parameter[];
            readonly requestBody?: Content;
            readonly responses: Readonly<Record<string, Content>>;
          }
        >
      >
    >
  >;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
}

/** The faults of a body; empty: none. */
type Check = (body: unknown) => readonly string[];

export interface Operation {
  readonly id: string;
  readonly method: string;
  /** With `{name}` for its parameters. */
  readonly path: string;
  readonly query: readonly Parameter[];
  /** Absent: it takes no body. */
  readonly body?: Schema;
  /** The promised type of an answer with this status; `undefined`: it is not promised. */
  promises(status: number): readonly string[] | undefined;
  check(status: number, contentType: string): Check | undefined;
  isAt(pathname: string): boolean;
}

/** A route that the document does not describe. */
const DOCUMENT_PATH = {
  get: {
    operationId: "openapi",
    responses: { 200: { content: { "application/json": { schema: { type: "object" } } } } },
  },
};

const UNBOUND: ReadonlySet<string> = new Set(["catalog", "stats"]);

/** Whether the operation concerns the catalog or objects of the bundle, which the fuzzed limiter lacks. */
function isUnbound(described: object): boolean {
  const { tags = [] } = described as { readonly tags?: readonly string[] };
  return tags.some((tag) => UNBOUND.has(tag));
}

export class Operations {
  readonly document: OpenApi;
  /** The operations that are called. */
  readonly all: readonly Operation[];
  readonly #known: readonly Operation[];

  /** @param isWhole whether the limiter has a catalog and statistics, so that these are called too */
  constructor(document: OpenApi, { isWhole = false } = {}) {
    this.document = document;
    const paths = Object.entries({ "/openapi.json": DOCUMENT_PATH, ...document.paths });
    const known = paths.flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, described]) => ({
        operation: operationOf(document, path, method.toUpperCase(), described),
        isAsked: isWhole || !isUnbound(described),
      })),
    );
    this.#known = known.map(({ operation }) => operation);
    this.all = known.flatMap(({ operation, isAsked }) => (isAsked ? [operation] : []));
  }

  /** The operation of a request, by method and path without the query, if any. */
  at(method: string, path: string): Operation | undefined {
    // As the router sees it: `%61` is `a`, and `..` is a text like any other.
    const pathname = getPath({ url: `http://weir.test${path}` } as Request);
    const asked = method === "HEAD" ? "GET" : method;
    return this.#known.find((operation) => operation.method === asked && operation.isAt(pathname));
  }

  /** A schema, or the one that it refers to. */
  resolved(schema: Schema): Schema {
    if (schema.$ref === undefined) return schema;
    const name = schema.$ref.replace("#/components/schemas/", "");
    return this.resolved(this.document.components.schemas[name] ?? {});
  }
}

function operationOf(
  document: OpenApi,
  path: string,
  method: string,
  { operationId, parameters = [], requestBody, responses }: OpenApi["paths"][string][string],
): Operation {
  const pattern = new RegExp(`^${path.replaceAll(".", String.raw`\.`).replaceAll(/\{\w+\}/g, "[^/]+")}$`);
  const checks = new Map<string, Check>();
  const body = requestBody?.content?.["application/json"]?.schema;
  return {
    id: operationId,
    method,
    path,
    query: parameters.filter((each) => each.in === "query"),
    ...(body !== undefined && { body }),
    promises: (status) => {
      const promised = responses[String(status)];
      return promised && Object.keys(promised.content ?? {});
    },
    check: (status, contentType) => {
      const schema = responses[String(status)]?.content?.[contentType]?.schema;
      if (schema === undefined) return undefined;
      const known = checks.get(`${status} ${contentType}`) ?? validatorOf(document, schema);
      checks.set(`${status} ${contentType}`, known);
      return known;
    },
    isAt: (pathname) => pattern.test(pathname),
  };
}
