import { hash } from "../../core/protocol/hash.ts";
import { TAGS, withDetails } from "./openapi-details.ts";
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
