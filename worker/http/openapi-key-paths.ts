import { KeyListRequest, MOST_LISTED } from "../calls/key-requests.ts";
import { MOST_KEY_BYTES } from "../calls/request-parts.ts";
import {
  answer,
  body,
  BODY_PROBLEMS,
  DECISION_HEADERS,
  problems,
  query,
  RETRY_AFTER,
} from "./openapi-parts.ts";

/** The addresses of policies and keys. */
export function keyPaths(): object {
  const [policyParameter] = keyParameters;
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
          policyParameter,
          ...LIST_PARAMETERS,
          query("limit", {
            type: "integer",
            minimum: 1,
            maximum: MOST_LISTED,
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
        parameters: [policyParameter, ...LIST_PARAMETERS],
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
  query("prefix", { type: "string", minLength: 1, maxLength: MOST_KEY_BYTES }),
  query("cursor", { type: "string" }),
];

const keyParameters = [
  { name: "policy", in: "path", required: true, schema: { type: "string" } },
  {
    name: "key",
    in: "path",
    required: true,
    description: "The key, percent-encoded.",
    schema: { type: "string", minLength: 1, maxLength: MOST_KEY_BYTES },
  },
];
