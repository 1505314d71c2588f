import type { Examples } from "./openapi-examples.ts";

const FIELDS = { algorithm: "token-bucket", limit: 200, window: "1s", burst: 500 };
const POLICY = { policy: "api", version: 3, source: "catalog", overrides: 2, ...FIELDS };
const TRIED = { ...FIELDS, limit: 150 };
const CANDIDATE = { policy: "api", version: 5, candidate: TRIED, since: "2027-01-24T09:30:00.000Z" };
const RAISED = { multiply: 10, expiresAt: "2027-01-31T12:00:00Z", note: "launch week" };
const OVERRIDE = { policy: "api", pattern: "customer:7", version: 4, ...RAISED };
const TOKEN = { name: "billing", scopes: ["limit" as const], policies: ["api"] };
const SHA_256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const CATALOG = {
  policies: { api: FIELDS },
  overrides: { api: { "customer:7": RAISED, "trial:*": { limit: 5, burst: 5 } } },
  tokens: { billing: { sha256: SHA_256, scopes: ["limit"], policies: ["api"] } },
};

/** The examples of what changes at run time, by operation. */
export const CATALOG_EXAMPLES: Readonly<Record<string, Examples>> = {
  getPolicy: { answers: { policy: POLICY } },
  putPolicy: { request: FIELDS, answers: { policy: POLICY } },
  getCandidate: {
    answers: {
      candidate: {
        ...CANDIDATE,
        compared: {
          calls: 48308,
          admittedByBoth: 47900,
          deniedByBoth: 97,
          deniedByPolicyAlone: 0,
          deniedByCandidateAlone: 311,
          undecided: 0,
        },
        keys: [{ key: "customer:9", count: 288, error: 0 }],
      },
    },
  },
  putCandidate: { request: TRIED, answers: { candidate: CANDIDATE } },
  promoteCandidate: { answers: { policy: { ...POLICY, ...TRIED, version: 6 } } },
  listOverrides: { answers: { page: { overrides: [OVERRIDE] } } },
  getOverride: { answers: { override: OVERRIDE } },
  putOverride: { request: RAISED, answers: { override: OVERRIDE } },
  ownToken: { answers: { token: TOKEN } },
  listTokens: { answers: { tokens: { tokens: [TOKEN] } } },
  issueToken: { request: TOKEN, answers: { issued: { ...TOKEN, token: "weir_mT3xQ9vLwK2pZ7rN5sYb1A" } } },
  getCatalog: { answers: { catalog: CATALOG } },
  putCatalog: { request: CATALOG, answers: { catalog: CATALOG } },
  audit: {
    answers: {
      page: {
        entries: [
          {
            id: 12,
            at: "2027-01-24T09:30:00.000Z",
            by: 'the token "ops"',
            target: "override api customer:7",
            before: null,
            after: RAISED,
          },
        ],
      },
    },
  },
};
