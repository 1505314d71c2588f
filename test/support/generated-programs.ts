/** Programs over clients that were generated from the OpenAPI document: see generated-clients.test.ts. */

/** The output of each program. */
export const PRINTED = {
  limited: "ok",
  remaining: "number",
  denied: ["quota", 429, "number"],
  held: "string",
  settled: "ok",
  leased: ["string", "number"],
  renewed: true,
  refusedLease: true,
  released: 204,
  lost: 404,
  unauthorized: 401,
};

const PRINTING = `console.log(
  JSON.stringify({
    limited,
    remaining,
    denied,
    held: typeof id,
    settled: settled.data?.reason,
    leased: [typeof lease.id, typeof lease.fencingToken],
    renewed: renewed.fencingToken === lease.fencingToken,
    refusedLease: "decision" in problem && !problem.decision.success,
    released: response?.status,
    lost: lost.status,
    unauthorized: stranger.error?.status,
  }),
);
`;

/** Narrows what both generators make of the document. If it does not compile, the document is wrong. */
const NARROWED = `
function limitedOf(decision: Decision) {
  if (decision.success && decision.reason === "ok") {
    const [remaining, wait]: [number, 0] = [decision.remaining, decision.retryAfterMs];
    // @ts-expect-error an admission has no rules that denied
    void decision.violated;
    return { limited: decision.reason, remaining: typeof remaining, wait };
  }
  if (!decision.success && decision.reason === "degraded") {
    // Only where onFailure has a limit there are figures.
    const remaining: number | undefined = decision.remaining;
    void remaining;
  }
  if (!decision.success && decision.reason === "quota") {
    const [wait, violated]: [number | null, string[]] = [decision.retryAfterMs, decision.violated];
    throw new Error(String([wait, violated]));
  }
  // @ts-expect-error there is no such reason
  if (decision.reason === "kwota") return;
  throw new Error(decision.reason);
}
function deniedOf(problem: LimitProblem) {
  // @ts-expect-error not every problem has a decision
  void problem.decision;
  if (problem.type !== "https://iana.org/assignments/http-problem-types#quota-exceeded") throw new Error(problem.detail);
  const status: 429 = problem.status;
  return [problem.decision.reason, status, typeof problem.decision.retryAfterMs];
}
function leaseOf(decision: LeaseDecision): Lease {
  // @ts-expect-error a denial has no lease
  void decision.lease;
  if (decision.success && decision.reason === "ok") return decision.lease;
  throw new Error(decision.reason);
}
function holdOf(decision: HoldDecision): string {
  if (decision.success && decision.reason === "ok") return decision.hold.id;
  throw new Error(decision.reason);
}
function found<Value>(value: Value | undefined): Value {
  if (value === undefined) throw new Error("no answer");
  return value;
}
const overrides: OverrideRequest[] = [{ limit: 20 }, { blocked: true, expiresAt: "2027-01-31T12:00:00Z" }];
const policies: PolicyFields[] = [
  { algorithm: "token-bucket", limit: 10, window: "1s", burst: 20, shadow: true, objects: 16 },
  { rules: { requests: { algorithm: "fixed-window", limit: 10, window: "1 day", timeZone: "Europe/Berlin" } } },
];
// @ts-expect-error it is startsAt
overrides.push({ limit: 20, startAt: "2027-01-31T12:00:00Z" });
// @ts-expect-error there is no such algorithm
policies.push({ algorithm: "token-buket", limit: 10, window: "1s" });
// @ts-expect-error it has neither an algorithm nor rules
policies.push({ limit: 10 });
const [url = "", token = ""] = process.argv.slice(2);
const key = "key-" + Math.random();
`;

/** The types of openapi-typescript, with openapi-fetch. */
export const OPENAPI_FETCH = `
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Decision = components["schemas"]["Decision"];
type LeaseDecision = components["schemas"]["LeaseDecision"];
type HoldDecision = components["schemas"]["HoldDecision"];
type Lease = components["schemas"]["Lease"];
type OverrideRequest = components["schemas"]["OverrideRequest"];
type PolicyFields = components["schemas"]["PolicyFields"];
type LimitProblem = NonNullable<Awaited<ReturnType<typeof deny>>["error"]>;
${NARROWED}
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: "Bearer " + token } });
const deny = () =>
  client.POST("/v1/limit", { params: { query: { deny: "429" } }, body: { policy: "api", key } });

const { limited, remaining } = limitedOf(found((await client.POST("/v1/limit", { body: { policy: "api", key } })).data)) ?? {};
const denied = deniedOf(found((await deny()).error));
// @ts-expect-error a call names a key
const stray = client.POST("/v1/limit", { body: { policy: "api" } });
await stray;
const id = holdOf(found((await client.POST("/v1/holds", { body: { policy: "llm", key, units: { requests: 1, tokens: 9 } } })).data));
const settled = await client.POST("/v1/holds/{id}/settle", { params: { path: { id } }, body: { used: { tokens: 3 } } });
const lease = leaseOf(found((await client.POST("/v1/leases", { body: { policy: "export", key } })).data));
const path = { id: lease.id };
const renewed = found((await client.POST("/v1/leases/{id}/renew", { params: { path }, body: {} })).data);
const second = await client.POST("/v1/leases", { params: { query: { deny: "429" } }, body: { policy: "export", key } });
const problem = found(second.error);
const { response } = await client.DELETE("/v1/leases/{id}", { params: { path } });
const lost = found((await client.POST("/v1/leases/{id}/renew", { params: { path: { id: "lease_none" } }, headers: { Prefer: "code=404" } })).error);
const stranger = await createClient<paths>({ baseUrl: url }).POST("/v1/limit", { body: { policy: "api", key } });
${PRINTING}`;

/** The client of @hey-api/openapi-ts. */
export const HEY_API = `
import { createClient } from "./hey/client/index.js";
import * as weir from "./hey/index.js";
import type {
  Decision,
  HoldDecision,
  Lease,
  LeaseDecision,
  OverrideRequest,
  PolicyFields,
} from "./hey/index.js";

type LimitProblem = weir.LimitError;
${NARROWED}
const client = createClient({ baseUrl: url, auth: token });
const { limited, remaining } = limitedOf(found((await weir.limit({ client, body: { policy: "api", key } })).data)) ?? {};
const denied = deniedOf(found((await weir.limit({ client, query: { deny: "429" }, body: { policy: "api", key } })).error));
// @ts-expect-error a call names a key
await weir.limit({ client, body: { policy: "api" } });
const id = holdOf(found((await weir.hold({ client, body: { policy: "llm", key, units: { requests: 1, tokens: 9 } } })).data));
const settled = await weir.settle({ client, path: { id }, body: { used: { tokens: 3 } } });
const lease = leaseOf(found((await weir.acquire({ client, body: { policy: "export", key } })).data));
const path = { id: lease.id };
const renewed = found((await weir.renew({ client, path, body: {} })).data);
const problem = found((await weir.acquire({ client, query: { deny: "429" }, body: { policy: "export", key } })).error);
const { response } = await weir.release({ client, path });
const lost = found((await weir.renew({ client, path: { id: "lease_none" }, headers: { Prefer: "code=404" } })).error);
const stranger = await weir.limit({ client: createClient({ baseUrl: url }), body: { policy: "api", key } });
${PRINTING}`;
