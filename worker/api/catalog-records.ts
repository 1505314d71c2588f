/** The calls that read and change the catalog. */
import { SCOPES } from "../auth/tokens.ts";
import * as calls from "../calls/catalog/catalog-calls.ts";
import { notAllowed } from "../calls/validate.ts";
import { call, catalogCall, type CatalogInput, ETAG } from "./call.ts";
import * as examples from "./examples.ts";
import { DOCUMENT, JSON_ANSWER, NOTHING, TAGGED } from "./responses.ts";

/** The largest document, in bytes: 10,000 overrides of 800 bytes. */
const MAX_DOCUMENT_BYTES = 8 * 2 ** 20;
const POLICY = "/v1/policies/:policy";
const CANDIDATE = `${POLICY}/candidate`;
const OVERRIDES = `${POLICY}/overrides`;
const OVERRIDE = `${OVERRIDES}/:pattern`;

const READING = { tag: "catalog", scopes: ["limit", "admin"] } as const;
const CHANGING = { tag: "catalog", scopes: ["admin"] } as const;
const AS_IT_IS = { says: "As it is", headers: ETAG };
const AS_IT_IS_NOW = { says: "As it is now", headers: ETAG };
const nameOf = ({ place }: CatalogInput) => place["policy"] ?? "";
const patternOf = ({ place }: CatalogInput) => place["pattern"] ?? "";

export const catalogRecords = {
  getPolicy: catalogCall({
    ...READING,
    method: "GET",
    path: POLICY,
    bound: "policy",
    handle: (caller, input) => calls.readPolicy(caller, nameOf(input)),
    answer: TAGGED,
    summary: "Look at a policy",
    ok: { ...AS_IT_IS, schema: "PolicyInForce" },
    example: { answers: examples.policy.answers },
  }),
  putPolicy: catalogCall({
    ...CHANGING,
    method: "PUT",
    path: POLICY,
    body: { schema: "PolicyFields" },
    writes: true,
    bound: "putPolicy",
    handle: (caller, input) => calls.writePolicy(caller, nameOf(input), input.body, input.conditions),
    answer: TAGGED,
    summary: "Change a policy, or make it; needs the scope admin",
    ok: { ...AS_IT_IS_NOW, schema: "PolicyInForce" },
    example: examples.policy,
  }),
  deletePolicy: catalogCall({
    ...CHANGING,
    method: "DELETE",
    path: POLICY,
    writes: true,
    bound: "deletePolicy",
    handle: (caller, input) => calls.deletePolicy(caller, nameOf(input), input.conditions),
    answer: NOTHING,
    summary: "Take a policy away; needs the scope admin",
  }),
  getCandidate: catalogCall({
    ...READING,
    method: "GET",
    path: CANDIDATE,
    bound: "candidate",
    handle: (caller, input) => calls.readCandidate(caller, nameOf(input)),
    answer: TAGGED,
    summary: "Look at a policy that is tried beside one",
    ok: { ...AS_IT_IS, schema: "ComparedCandidate" },
    example: examples.comparedCandidate,
  }),
  putCandidate: catalogCall({
    ...CHANGING,
    method: "PUT",
    path: CANDIDATE,
    body: { schema: "PolicyFields" },
    writes: true,
    bound: "putCandidate",
    handle: (caller, input) => calls.writeCandidate(caller, nameOf(input), input.body, input.conditions),
    answer: TAGGED,
    summary: "Change a policy that is tried beside one, or make it; needs the scope admin",
    ok: { ...AS_IT_IS_NOW, schema: "Candidate" },
    example: examples.candidate,
  }),
  deleteCandidate: catalogCall({
    ...CHANGING,
    method: "DELETE",
    path: CANDIDATE,
    writes: true,
    bound: "deleteCandidate",
    handle: (caller, input) => calls.deleteCandidate(caller, nameOf(input), input.conditions),
    answer: NOTHING,
    summary: "Take a policy that is tried beside one away; needs the scope admin",
  }),
  promoteCandidate: catalogCall({
    ...CHANGING,
    method: "POST",
    path: `${CANDIDATE}/promote`,
    body: { isOptional: true },
    writes: true,
    bound: "promoteCandidate",
    handle: async (caller, input) => {
      if (JSON.stringify(input.body) === "{}")
        return await calls.promoteCandidate(caller, nameOf(input), input.conditions);
      return notAllowed([
        { path: [], detail: "the body must be left out: the candidate is promoted as it is" },
      ]);
    },
    answer: TAGGED,
    summary: "Make the candidate the policy; needs the scope admin",
    ok: { says: "The policy as it is now", schema: "PolicyInForce", headers: ETAG },
    example: examples.promoted,
  }),
  listOverrides: catalogCall({
    ...READING,
    method: "GET",
    path: OVERRIDES,
    lists: true,
    bound: "overrides",
    handle: (caller, input) => calls.listOverrides(caller, nameOf(input), input.cursor),
    answer: JSON_ANSWER,
    summary: "The overrides of a policy, page by page",
    ok: { says: "A page of overrides", schema: "OverrideList" },
    example: examples.overrideList,
  }),
  getOverride: catalogCall({
    ...READING,
    method: "GET",
    path: OVERRIDE,
    bound: "override",
    handle: (caller, input) => calls.readOverride(caller, nameOf(input), patternOf(input)),
    answer: TAGGED,
    summary: "Look at an override",
    ok: { ...AS_IT_IS, schema: "Override" },
    example: { answers: examples.override.answers },
  }),
  putOverride: catalogCall({
    ...CHANGING,
    method: "PUT",
    path: OVERRIDE,
    body: { schema: "OverrideRequest" },
    writes: true,
    bound: "putOverride",
    handle: (caller, input) =>
      calls.writeOverride(caller, nameOf(input), patternOf(input), input.body, input.conditions),
    answer: TAGGED,
    summary: "Change an override, or make it; needs the scope admin",
    ok: { ...AS_IT_IS_NOW, schema: "Override" },
    example: examples.override,
  }),
  deleteOverride: catalogCall({
    ...CHANGING,
    method: "DELETE",
    path: OVERRIDE,
    writes: true,
    bound: "deleteOverride",
    handle: (caller, input) =>
      calls.deleteOverride(caller, nameOf(input), patternOf(input), input.conditions),
    answer: NOTHING,
    summary: "Take an override away; needs the scope admin",
  }),
  ownToken: call({
    tag: "catalog",
    method: "GET",
    path: "/v1/token",
    scopes: SCOPES,
    handle: ({ principal }) => calls.describeToken(principal),
    answer: JSON_ANSWER,
    summary: "What the token of the caller may do; any token may ask",
    ok: { says: "The token", schema: "OwnToken" },
    neverProblems: [403, 404, 429],
    example: { answers: { token: examples.token } },
  }),
  listTokens: catalogCall({
    ...CHANGING,
    method: "GET",
    path: "/v1/tokens",
    bound: "tokens",
    handle: (caller) => calls.listTokens(caller),
    answer: JSON_ANSWER,
    summary: "The tokens that were issued at run time; needs the scope admin",
    ok: { says: "The tokens", schema: "TokenList" },
    example: { answers: { tokens: { tokens: [examples.token] } } },
  }),
  issueToken: catalogCall({
    ...CHANGING,
    method: "POST",
    path: "/v1/tokens",
    body: { schema: "TokenRequest" },
    isOfAll: true,
    bound: "issueToken",
    handle: (caller, { body }) => calls.issueToken(caller, body),
    answer: JSON_ANSWER,
    summary: "Issue a token; needs the scope admin",
    ok: { says: "The token, shown this once", schema: "IssuedToken" },
    alsoProblems: [412],
    example: examples.issuedToken,
  }),
  revokeToken: catalogCall({
    ...CHANGING,
    method: "DELETE",
    path: "/v1/tokens/:name",
    bound: "revokeToken",
    handle: (caller, { place }) => calls.revokeToken(caller, place["name"] ?? ""),
    answer: NOTHING,
    summary: "Revoke a token; needs the scope admin",
  }),
  getCatalog: catalogCall({
    ...CHANGING,
    method: "GET",
    path: "/v1/catalog",
    bound: "read",
    handle: (caller) => calls.readCatalog(caller),
    answer: DOCUMENT,
    summary: "All that was changed at run time, as one document; needs the scope admin",
    ok: { says: "The catalog", schema: "Catalog", headers: ETAG },
    example: { answers: examples.catalog.answers },
  }),
  putCatalog: catalogCall({
    ...CHANGING,
    method: "PUT",
    path: "/v1/catalog",
    body: { schema: "Catalog" },
    writes: true,
    isOfAll: true,
    mostBytes: MAX_DOCUMENT_BYTES,
    bound: "write",
    handle: (caller, { body, conditions }) => calls.writeCatalog(caller, body, conditions),
    answer: DOCUMENT,
    summary: "Make the catalog what a document says; needs the scope admin",
    ok: { says: "The catalog", schema: "Catalog", headers: ETAG },
    example: examples.catalog,
  }),
  audit: catalogCall({
    ...CHANGING,
    method: "GET",
    path: "/v1/audit",
    lists: true,
    bound: "audit",
    handle: (caller, { cursor }) => calls.readAudit(caller, cursor),
    answer: JSON_ANSWER,
    summary: "Who changed what, the latest first, page by page; needs the scope admin",
    ok: { says: "A page of the audit log", schema: "AuditLog" },
    example: examples.audit,
  }),
} as const;
