import { env } from "cloudflare:workers";
import { expect, test, vi } from "vitest";
import { app } from "../../../worker/http/app.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { matches } from "../../support/json-schema.ts";
import { acquire, call, freshKey, idIn, limit, release, type Called } from "../../support/limiter.ts";

const bindings = env as unknown as Parameters<typeof app.request>[2];

interface Document {
  readonly paths: Record<
    string,
    Record<string, { responses: Record<string, { content?: Record<string, { schema: object }> }> }>
  >;
  readonly components: { readonly schemas: Record<string, object> };
}

test("every kind of answer is one that the document promises", async () => {
  const { body } = await call("/openapi.json", { token: "" });
  const document = body as unknown as Document;
  const expectPromised = (path: string, method: string, { status, headers, body: answer }: Called) => {
    const promised = document.paths[path]?.[method]?.responses[String(status)];
    if (status === 204) return expect(promised).toBeDefined();
    const schema = promised?.content?.[headers.get("content-type") ?? ""]?.schema;
    if (schema === undefined) throw new Error(`${method} ${path} ${status} is not in the document`);
    return expect(matches(document, schema, answer)).toEqual([]);
  };
  const key = freshKey();
  const idempotencyKey = "a";
  expectPromised("/v1/limit", "post", await limit("slow", key, { cost: 2, idempotencyKey }));
  expectPromised("/v1/limit", "post", await limit("slow", key, { cost: 1, idempotencyKey }));
  expectPromised("/v1/limit", "post", await limit("slow", key, { cost: 4 }));
  expectPromised("/v1/limit", "post", await limit("slow", key, { cost: 9 }));
  expectPromised("/v1/limit", "post", await limit("shadow", key, { cost: 9 }));
  expectPromised("/v1/limit", "post", await limit("nowhere", key));
  expectPromised("/v1/limit", "post", await limit("slow", ""));
  expectPromised("/v1/limit", "post", await call("/v1/limit", { body: "{" }));
  expectPromised("/v1/limit", "post", await call("/v1/limit", { body: "x".repeat(20_000) }));
  expectPromised(
    "/v1/limit",
    "post",
    await call("/v1/limit", { body: "{}", headers: { "content-type": "text/plain" } }),
  );
  expectPromised("/v1/limit", "post", await call("/v1/limit", { body: {}, token: "weir_guess" }));
  expectPromised("/v1/limit", "post", await call("/v1/limit", { body: {}, token: TOKENS.admin }));
  expectPromised(
    "/v1/limit",
    "post",
    await call("/v1/limit?deny=429", { body: { policy: "slow", key, cost: 4 } }),
  );
  expectPromised(
    "/v1/refund",
    "post",
    await call("/v1/refund", { body: { policy: "slow", key, units: 1, idempotencyKey: "b" } }),
  );
  const charged = await limit("slow", key, { refundable: true });
  expectPromised("/v1/limit", "post", charged);
  const back = { policy: "slow", key, units: 1, idempotencyKey: "c", charge: charged.body["charge"] };
  expectPromised("/v1/refund", "post", await call("/v1/refund", { body: back }));
  expectPromised("/v1/refund", "post", await call("/v1/refund", { body: { ...back, idempotencyKey: "d" } }));
  const body429 = { policy: "export", key, units: 2 };
  const lease = await acquire("export", key, { ttlMs: 9_000 });
  expectPromised("/v1/leases", "post", lease);
  expectPromised("/v1/leases", "post", await acquire("mixed", key, { waitMs: 1, units: { requests: 2 } }));
  expectPromised("/v1/leases", "post", await acquire("export", key, { units: 2, waitMs: 5 }));
  expectPromised("/v1/leases", "post", await call("/v1/leases?deny=429", { body: body429 }));
  expectPromised(
    "/v1/leases/{id}/renew",
    "post",
    await call(`/v1/leases/${idIn(lease)}/renew`, { body: {} }),
  );
  const told = `/v1/leases/${idIn(lease)}/release`;
  expectPromised("/v1/leases/{id}/release", "post", await call(told, { body: { outcome: "" } }));
  expectPromised("/v1/leases/{id}/release", "post", await call(told, { body: { outcome: "ignore" } }));
  expectPromised("/v1/leases/{id}/release", "post", await call(told, { method: "POST" }));
  expectPromised("/v1/leases", "post", await acquire("adaptive", key));
  expectPromised("/v1/leases/{id}", "delete", await release(idIn(await acquire("export", key))));
  expectPromised("/v1/leases/{id}", "delete", await release(idIn(lease)));
  expectPromised("/v1/stats", "get", await call("/v1/stats?policy=slow"));
  expectPromised("/v1/stats", "get", await call("/v1/stats?policy=slow&since=1"));
  expectPromised("/v1/stats/keys", "get", await call("/v1/stats/keys?policy=slow&by=active"));
  expectPromised("/v1/stats/groups", "get", await call("/v1/stats/groups?policy=fair"));
  expectPromised("/v1/leases/socket", "get", await call("/v1/leases/socket?policy=export&key=a"));
  const held = await call("/v1/holds", { body: { policy: "several", key, units: { tokens: 3 } } });
  expectPromised("/v1/holds", "post", held);
  const settled = await call(`/v1/holds/${idIn(held)}/settle`, { body: { used: { tokens: 2 } } });
  expectPromised("/v1/holds/{id}/settle", "post", settled);
  expectPromised("/v1/holds/{id}", "delete", await call(`/v1/holds/${idIn(held)}`, { method: "DELETE" }));
  const all = {
    checks: [
      { policy: "export", key },
      { policy: "several", key, cost: { tokens: 1 } },
    ],
  };
  expectPromised("/v1/limit/all", "post", await call("/v1/limit/all", { body: all }));
  const never = { checks: [...all.checks, { policy: "slow", key, cost: 9 }] };
  expectPromised("/v1/limit/all", "post", await call("/v1/limit/all?deny=429", { body: never }));
  const alone = { atomic: false, checks: [{ policy: "slow", key, cost: 9 }, ...never.checks.slice(1)] };
  expectPromised("/v1/limit/all", "post", await call("/v1/limit/all", { body: alone }));
  expectPromised("/v1/limit/all", "post", await call("/v1/limit/all?deny=429", { body: alone }));
  // The idempotency key was used for another request, so one check is refused.
  const refused = { atomic: false, checks: [{ policy: "slow", key, cost: 1 }], idempotencyKey };
  const answered = await call("/v1/limit/all", { body: refused });
  expect(answered.body).toMatchObject({ decisions: [{ reason: "refused" }] });
  expectPromised("/v1/limit/all", "post", answered);
  expectPromised("/v1/limit/all", "post", await call("/v1/limit/all?deny=429", { body: refused }));
  const chain = { checks: [...never.checks.slice(2), { policy: "several", key, cost: { tokens: 1 } }] };
  expectPromised("/v1/limit/any", "post", await call("/v1/limit/any", { body: chain }));
  const none = { checks: chain.checks.slice(0, 1) };
  expectPromised("/v1/limit/any", "post", await call("/v1/limit/any", { body: none }));
  expectPromised("/v1/limit/any", "post", await call("/v1/limit/any?deny=429", { body: none }));
  await limit("wide", key);
  for (const path of ["keys", "key-count"]) {
    expectPromised(`/v1/policies/{policy}/${path}`, "get", await call(`/v1/policies/wide/${path}`));
    expectPromised(`/v1/policies/{policy}/${path}`, "get", await call(`/v1/policies/shared/${path}`));
    expectPromised(`/v1/policies/{policy}/${path}`, "get", await call(`/v1/policies/slow/${path}`));
  }
  expectPromised("/v1/policies", "get", await call("/v1/policies"));
  const keyPath = "/v1/policies/{policy}/keys/{key}";
  expectPromised(keyPath, "get", await call(`/v1/policies/slow/keys/${key}`));
  expectPromised(keyPath, "get", await call(`/v1/policies/address/keys/${key}`));
  expectPromised(keyPath, "delete", await call(`/v1/policies/slow/keys/${key}`, { method: "DELETE" }));
  expectPromised("/v1/token", "get", await call("/v1/token", { token: TOKENS.tenant }));
  expectPromised("/v1/token", "get", await call("/v1/token", { token: "" }));
  expectPromised("/healthz", "get", await call("/healthz"));
});

test("every route is in the document, but the document's own, and the pages that are no calls", async () => {
  const { body } = await call("/openapi.json", { token: "" });
  const { paths } = body as unknown as Document;
  const described = Object.entries(paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  const routed = app.routes
    .filter(({ method }) => method !== "ALL")
    .map(({ method, path }) => `${method} ${path.replaceAll(/:(\w+)/g, "{$1}")}`);
  expect(new Set(routed)).toEqual(
    new Set([...described, "GET /openapi.json", "GET /dashboard", "GET /dashboard/{file}"]),
  );
});

test("the check itself finds a field too few, and one of another type", () => {
  const schema = { type: "object", required: ["a"], properties: { a: { type: "integer" } } };
  const nothing = { components: { schemas: {} } };
  expect(matches(nothing, schema, { a: 1 })).toEqual([]);
  expect(matches(nothing, schema, {})).not.toEqual([]);
  expect(matches(nothing, schema, { a: "1" })).not.toEqual([]);
});

test("the document is written once, has an entity tag, and is not sent again to whoever has it", async () => {
  const stringify = vi.spyOn(JSON, "stringify");
  const read = (headers: Record<string, string> = {}) => app.request("/openapi.json", { headers }, bindings);
  const first = await read();
  const etag = first.headers.get("etag") ?? "";
  expect([first.status, etag]).toEqual([200, expect.stringMatching(/^"[^"]+"$/)]);
  const { length } = await first.text();
  stringify.mockClear();
  const again = await read();
  expect((await again.text()).length).toBe(length);
  for (const known of [etag, `W/${etag}`, `"other", ${etag}`]) {
    const answer = await read({ "if-none-match": known });
    expect([answer.status, await answer.text(), answer.headers.get("etag")]).toEqual([304, "", etag]);
  }
  expect((await read({ "if-none-match": '"other"' })).status).toBe(200);
  expect(stringify).not.toHaveBeenCalled();
  vi.restoreAllMocks();
});
