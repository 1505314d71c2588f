import { expect, test } from "vitest";
import { call, freshKey, limit, type Called } from "../support/limiter.ts";
import { TOKENS } from "../support/fixtures.ts";
import { matches } from "../support/json-schema.ts";

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
  expectPromised("/v1/policies", "get", await call("/v1/policies"));
  const keyPath = "/v1/policies/{policy}/keys/{key}";
  expectPromised(keyPath, "get", await call(`/v1/policies/slow/keys/${key}`));
  expectPromised(keyPath, "get", await call(`/v1/policies/address/keys/${key}`));
  expectPromised(keyPath, "delete", await call(`/v1/policies/slow/keys/${key}`, { method: "DELETE" }));
  expectPromised("/healthz", "get", await call("/healthz"));
});

test("the check itself finds a field too few, and one of another type", () => {
  const schema = { type: "object", required: ["a"], properties: { a: { type: "integer" } } };
  const nothing = { components: { schemas: {} } };
  expect(matches(nothing, schema, { a: 1 })).toEqual([]);
  expect(matches(nothing, schema, {})).not.toEqual([]);
  expect(matches(nothing, schema, { a: "1" })).not.toEqual([]);
});
