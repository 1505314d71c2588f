/** The calls that read and change the catalog. */
import { MAX_CATALOG_BYTES } from "../../core/catalog/calls.ts";
import { SCOPES } from "../auth/tokens.ts";
import * as admin from "../calls/catalog/admin-calls.ts";
import * as calls from "../calls/catalog/catalog-calls.ts";
import { call, catalogCall, ETAG } from "./call.ts";
import * as examples from "./examples.ts";
import { DOCUMENT, JSON_ANSWER, NOTHING, TAGGED } from "./responses.ts";
const POLICY = "/v1/policies/:policy";
const CANDIDATE = `${POLICY}/candidate`;
const OVERRIDES = `${POLICY}/overrides`;
const OVERRIDE = `${OVERRIDES}/:pattern`;

const CATALOG = { tag: "catalog", scopes: ["admin"] } as const;
const READ = { ...CATALOG, method: "GET", answer: TAGGED, scopes: ["limit", "admin"] } as const;
const PUT = { ...CATALOG, method: "PUT", writes: true, answer: TAGGED } as const;
const DELETE = { ...CATALOG, method: "DELETE", writes: true, answer: NOTHING } as const;
const LIST = { ...CATALOG, method: "GET", answer: JSON_ANSWER, isOfAll: true } as const;
const AS_IT_IS = { says: "As it is", headers: ETAG };
const AS_IT_IS_NOW = { says: "As it is now", headers: ETAG };
const CATALOG_NOW = { says: "The catalog", schema: "Catalog", headers: ETAG } as const;

export const catalogRecords = {
  getPolicy: catalogCall({
    ...READ,
    path: POLICY,
    bound: "policy",
    handle: calls.readPolicy,
    summary: "Look at a policy",
    ok: { ...AS_IT_IS, schema: "PolicyInForce" },
    example: { answers: { policy: examples.CATALOG_POLICY } },
  }),
  putPolicy: catalogCall({
    ...PUT,
    path: POLICY,
    body: { schema: "PolicyFields" },
    bound: "putPolicy",
    handle: calls.writePolicy,
    summary: "Change a policy, or make it; needs the scope admin",
    ok: { ...AS_IT_IS_NOW, schema: "PolicyInForce" },
    example: { request: examples.FIELDS, answers: { policy: examples.CATALOG_POLICY } },
  }),
  deletePolicy: catalogCall({
    ...DELETE,
    path: POLICY,
    bound: "deletePolicy",
    handle: calls.deletePolicy,
    summary: "Take a policy away; needs the scope admin",
  }),
  getCandidate: catalogCall({
    ...READ,
    path: CANDIDATE,
    bound: "candidate",
    handle: calls.readCandidate,
    summary: "Look at a policy that is tried beside one",
    ok: { ...AS_IT_IS, schema: "ComparedCandidate" },
    example: {
      answers: {
        candidate: { ...examples.CANDIDATE, compared: examples.COMPARED, keys: examples.COMPARED_KEYS },
      },
    },
  }),
  putCandidate: catalogCall({
    ...PUT,
    path: CANDIDATE,
    body: { schema: "PolicyFields" },
    bound: "putCandidate",
    handle: calls.writeCandidate,
    summary: "Change a policy that is tried beside one, or make it; needs the scope admin",
    ok: { ...AS_IT_IS_NOW, schema: "Candidate" },
    example: { request: examples.TRIED, answers: { candidate: examples.CANDIDATE } },
  }),
  deleteCandidate: catalogCall({
    ...DELETE,
    path: CANDIDATE,
    bound: "deleteCandidate",
    handle: calls.deleteCandidate,
    summary: "Take a policy that is tried beside one away; needs the scope admin",
  }),
  promoteCandidate: catalogCall({
    ...CATALOG,
    method: "POST",
    path: `${CANDIDATE}/promote`,
    body: { isOptional: true },
    writes: true,
    bound: "promoteCandidate",
    handle: calls.promoteCandidate,
    answer: TAGGED,
    summary: "Make the candidate the policy; needs the scope admin",
    ok: { says: "The policy as it is now", schema: "PolicyInForce", headers: ETAG },
    example: { answers: { policy: { ...examples.CATALOG_POLICY, ...examples.TRIED, version: 6 } } },
  }),
  listOverrides: catalogCall({
    ...READ,
    path: OVERRIDES,
    lists: true,
    bound: "overrides",
    handle: calls.listOverrides,
    answer: JSON_ANSWER,
    summary: "The overrides of a policy, page by page",
    ok: { says: "A page of overrides", schema: "OverrideList" },
    example: { answers: { page: { overrides: [examples.OVERRIDE] } } },
  }),
  getOverride: catalogCall({
    ...READ,
    path: OVERRIDE,
    bound: "override",
    handle: calls.readOverride,
    summary: "Look at an override",
    ok: { ...AS_IT_IS, schema: "Override" },
    example: { answers: { override: examples.OVERRIDE } },
  }),
  putOverride: catalogCall({
    ...PUT,
    path: OVERRIDE,
    body: { schema: "OverrideRequest" },
    bound: "putOverride",
    handle: calls.writeOverride,
    summary: "Change an override, or make it; needs the scope admin",
    ok: { ...AS_IT_IS_NOW, schema: "Override" },
    example: { request: examples.RAISED, answers: { override: examples.OVERRIDE } },
  }),
  deleteOverride: catalogCall({
    ...DELETE,
    path: OVERRIDE,
    bound: "deleteOverride",
    handle: calls.deleteOverride,
    summary: "Take an override away; needs the scope admin",
  }),
  ownToken: call({
    tag: "catalog",
    method: "GET",
    path: "/v1/token",
    scopes: SCOPES,
    handle: ({ principal }) => admin.describeOwnToken(principal),
    answer: JSON_ANSWER,
    summary: "What the token of the caller may do; any token may ask",
    ok: { says: "The token", schema: "OwnToken" },
    neverProblems: [403, 404, 429],
    example: { answers: { token: examples.TOKEN } },
  }),
  listTokens: catalogCall({
    ...LIST,
    path: "/v1/tokens",
    bound: "tokens",
    handle: admin.listTokens,
    summary: "The tokens that were issued at run time; needs the scope admin",
    ok: { says: "The tokens", schema: "TokenList" },
    example: { answers: { tokens: { tokens: [examples.TOKEN] } } },
  }),
  issueToken: catalogCall({
    ...CATALOG,
    method: "POST",
    path: "/v1/tokens",
    body: { schema: "TokenRequest" },
    isOfAll: true,
    bound: "issueToken",
    handle: admin.issueToken,
    answer: JSON_ANSWER,
    summary: "Issue a token; needs the scope admin",
    ok: { says: "The token, shown this once", schema: "IssuedToken" },
    alsoProblems: [409],
    example: {
      request: examples.TOKEN,
      answers: { issued: { ...examples.TOKEN, token: "weir_mT3xQ9vLwK2pZ7rN5sYb1A" } },
    },
  }),
  revokeToken: catalogCall({
    ...CATALOG,
    method: "DELETE",
    path: "/v1/tokens/:name",
    bound: "revokeToken",
    handle: admin.revokeToken,
    answer: NOTHING,
    summary: "Revoke a token; needs the scope admin",
  }),
  getCatalog: catalogCall({
    ...CATALOG,
    method: "GET",
    path: "/v1/catalog",
    isOfAll: true,
    bound: "read",
    handle: admin.readCatalog,
    answer: DOCUMENT,
    summary: "All that was changed at run time, as one document; needs the scope admin",
    ok: CATALOG_NOW,
    example: { answers: { catalog: examples.CATALOG } },
  }),
  putCatalog: catalogCall({
    ...CATALOG,
    method: "PUT",
    path: "/v1/catalog",
    body: { schema: "Catalog" },
    writes: true,
    isOfAll: true,
    maxBytes: MAX_CATALOG_BYTES,
    bound: "write",
    handle: admin.writeCatalog,
    answer: DOCUMENT,
    summary: "Make the catalog what a document says; needs the scope admin",
    ok: CATALOG_NOW,
    example: { request: examples.CATALOG, answers: { catalog: examples.CATALOG } },
  }),
  audit: catalogCall({
    ...LIST,
    path: "/v1/audit",
    lists: true,
    bound: "audit",
    handle: admin.readAudit,
    summary: "Who changed what, the latest first, page by page; needs the scope admin",
    ok: { says: "A page of the audit log", schema: "AuditLog" },
    example: {
      answers: {
        page: {
          entries: [{ id: 12, at: "2027-01-24T09:30:00.000Z", by: 'the token "ops"', ...examples.CHANGE }],
        },
      },
    },
  }),
} as const;
