import { KeyListRequest, MAX_LISTED } from "../calls/keys.ts";
import { MAX_KEY_BYTES } from "../calls/schemas/request-parts.ts";
import {
  answer,
  body,
  BODY_PROBLEMS,
  DECISION_HEADERS,
  idParameter,
  problems,
  query,
  RETRY_AFTER,
} from "./openapi-parts.ts";
import type { SchemaName } from "./openapi-schemas.ts";

const READING = [400, 401, 403, 404, 422, 429, 503] as const;
const WRITING = [400, 401, 403, 404, 412, 413, 415, 422, 429, 503] as const;
const ETAG = { ETag: { description: "Its version, for `If-Match`.", schema: { type: "string" } } };

const CONDITIONS = [
  query("dryRun", { type: "string", enum: ["true", "false"] }),
  ...["If-Match", "If-None-Match"].map((name) => ({ name, in: "header", schema: { type: "string" } })),
];
const CURSOR = query("cursor", { type: "string" });
const DONE = { 204: { description: "Done" } };

function inPath(name: string, description: string): object {
  return { ...idParameter(""), name, description };
}

const policyParameter = inPath("policy", "The name of the policy.");
const patternParameter = inPath("pattern", "A key, or a pattern of keys, percent-encoded.");

/** Reading, writing and taking away one thing of the catalog. */
function oneOf(
  what: string,
  name: string,
  parameters: readonly object[],
  of: { asked: SchemaName; answered: SchemaName; written?: SchemaName },
): object {
  return {
    get: {
      operationId: `get${name}`,
      summary: `Look at ${what}`,
      parameters,
      responses: { 200: answer("As it is", of.answered, ETAG), ...problems(...READING) },
    },
    put: {
      operationId: `put${name}`,
      summary: `Change ${what}, or make it; needs the scope admin`,
      parameters: [...parameters, ...CONDITIONS],
      requestBody: body(of.asked),
      responses: { 200: answer("As it is now", of.written ?? of.answered, ETAG), ...problems(...WRITING) },
    },
    delete: {
      operationId: `delete${name}`,
      summary: `Take ${what} away; needs the scope admin`,
      parameters: [...parameters, ...CONDITIONS],
      responses: { ...DONE, ...problems(400, 401, 403, 404, 412, 422, 429, 503) },
    },
  };
}

/** The addresses of what changes at run time. */
export function catalogPaths(): object {
  const policy = { asked: "PolicyFields", answered: "PolicyInForce" } as const;
  const override = { asked: "OverrideRequest", answered: "Override" } as const;
  return {
    "/v1/policies/{policy}": oneOf("a policy", "Policy", [policyParameter], policy),
    ...candidatePaths(),
    "/v1/policies/{policy}/overrides": {
      get: {
        operationId: "listOverrides",
        summary: "The overrides of a policy, page by page",
        parameters: [policyParameter, CURSOR],
        responses: { 200: answer("A page of overrides", "OverrideList"), ...problems(...READING) },
      },
    },
    "/v1/policies/{policy}/overrides/{pattern}": oneOf(
      "an override",
      "Override",
      [policyParameter, patternParameter],
      override,
    ),
    ...wholePaths(),
  };
}

function candidatePaths(): object {
  const candidate = { asked: "PolicyFields", answered: "ComparedCandidate", written: "Candidate" } as const;
  return {
    "/v1/policies/{policy}/candidate": oneOf(
      "a policy that is tried beside one",
      "Candidate",
      [policyParameter],
      candidate,
    ),
    "/v1/policies/{policy}/candidate/promote": {
      post: {
        operationId: "promoteCandidate",
        summary: "Make the candidate the policy; needs the scope admin",
        parameters: [policyParameter, ...CONDITIONS],
        responses: { 200: answer("The policy as it is now", "PolicyInForce", ETAG), ...problems(...WRITING) },
      },
    },
  };
}

function wholePaths(): object {
  return {
    "/v1/token": {
      get: {
        operationId: "ownToken",
        summary: "What the token of the caller may do; any token may ask",
        responses: { 200: answer("The token", "OwnToken"), ...problems(401, 503) },
      },
    },
    "/v1/tokens": {
      get: {
        operationId: "listTokens",
        summary: "The tokens that were issued at run time; needs the scope admin",
        responses: { 200: answer("The tokens", "TokenList"), ...problems(...READING) },
      },
      post: {
        operationId: "issueToken",
        summary: "Issue a token; needs the scope admin",
        requestBody: body("TokenRequest"),
        responses: { 200: answer("The token, shown this once", "IssuedToken"), ...problems(...WRITING) },
      },
    },
    "/v1/tokens/{name}": {
      delete: {
        operationId: "revokeToken",
        summary: "Revoke a token; needs the scope admin",
        parameters: [inPath("name", "The name of the token.")],
        responses: { ...DONE, ...problems(...READING) },
      },
    },
    "/v1/catalog": {
      get: {
        operationId: "getCatalog",
        summary: "All that was changed at run time, as one document; needs the scope admin",
        responses: { 200: answer("The catalog", "Catalog", ETAG), ...problems(...READING) },
      },
      put: {
        operationId: "putCatalog",
        summary: "Make the catalog what a document says; needs the scope admin",
        parameters: CONDITIONS,
        requestBody: body("Catalog"),
        responses: { 200: answer("The catalog", "Catalog", ETAG), ...problems(...WRITING) },
      },
    },
    "/v1/audit": {
      get: {
        operationId: "audit",
        summary: "Who changed what, the latest first, page by page; needs the scope admin",
        parameters: [CURSOR],
        responses: { 200: answer("A page of the audit log", "AuditLog"), ...problems(...READING) },
      },
    },
  };
}

/** The addresses of policies and keys. */
export function keyPaths(): object {
  const [ofPolicy] = keyParameters;
  return {
    "/v1/policies": {
      get: {
        operationId: "policies",
        summary: "The policies this token may use",
        responses: { 200: answer("The policies", "PolicyList"), ...problems(401, 403, 503) },
      },
    },
    "/v1/policies/{policy}/keys": {
      get: {
        operationId: "keys",
        summary: "The keys of a policy with a number of objects, page by page; needs the scope admin",
        parameters: [
          ofPolicy,
          ...LIST_PARAMETERS,
          query("limit", {
            type: "integer",
            minimum: 1,
            maximum: MAX_LISTED,
            default: KeyListRequest.entries.limit.default,
          }),
        ],
        responses: { 200: answer("A page of keys", "KeyList"), ...problems(...PROBLEMS) },
      },
    },
    "/v1/policies/{policy}/key-count": {
      get: {
        operationId: "countKeys",
        summary: "How many keys a policy with a number of objects has; needs the scope admin",
        parameters: [ofPolicy, ...LIST_PARAMETERS],
        responses: { 200: answer("How many there are", "KeyCount"), ...problems(...PROBLEMS) },
      },
    },
    ...oneKeyPath(),
  };
}

function oneKeyPath(): object {
  return {
    "/v1/policies/{policy}/keys/{key}": {
      get: {
        operationId: "peek",
        summary: "What a call of cost 1 would be answered, and how many units are held; takes nothing",
        parameters: [
          ...keyParameters,
          query("waitFor", { type: "string", enum: ["idle"] }),
          query("waitMs", { type: "integer", minimum: 0, default: 0 }),
        ],
        responses: {
          200: answer("The key's decision", "KeyReport", { ...DECISION_HEADERS, ...RETRY_AFTER }),
          ...problems(...PROBLEMS),
        },
      },
      put: {
        operationId: "setUsed",
        summary: "Set what the key has used, and look at it; needs the scope admin",
        parameters: keyParameters,
        requestBody: body("SetRequest"),
        responses: {
          200: answer("The key's decision", "KeyReport", { ...DECISION_HEADERS, ...RETRY_AFTER }),
          ...problems(...BODY_PROBLEMS),
        },
      },
      delete: {
        operationId: "reset",
        summary: "Make the key as new; needs the scope admin",
        parameters: keyParameters,
        responses: { 204: { description: "Done" }, ...problems(...PROBLEMS) },
      },
    },
  };
}

const PROBLEMS = [400, 401, 403, 404, 422, 429, 503] as const;

const LIST_PARAMETERS = [
  query("prefix", { type: "string", minLength: 1, maxLength: MAX_KEY_BYTES }),
  query("cursor", { type: "string" }),
];

const keyParameters = [
  { name: "policy", in: "path", required: true, schema: { type: "string" } },
  {
    name: "key",
    in: "path",
    required: true,
    description: "The key, percent-encoded.",
    schema: { type: "string", minLength: 1, maxLength: MAX_KEY_BYTES },
  },
];
