import { env } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Env } from "../../../worker/bindings/env.ts";
import { app } from "../../../worker/http/app.ts";
import { TEST_TOKENS, TOKENS } from "../../support/fixtures.ts";

async function get(path: string, secret: string | undefined, authorization = `Bearer ${TOKENS.full}`) {
  const { OBJECTS } = env as unknown as Env;
  const bindings: Env = secret === undefined ? { OBJECTS } : { OBJECTS, API_TOKENS: secret };
  const response = await app.request(path, { headers: { authorization } }, bindings);
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

test.each(["/v1/policies", "/v1/limit", "/v1/policies/slow/keys/a", "/openapi.json", "/nowhere"])(
  "without the secret, %s answers 503 and says how to set it",
  async (path) => {
    const { status, body } = await get(path, undefined);
    expect(status).toBe(503);
    expect(body).toMatchObject({ type: "urn:weir:problem:not-configured" });
    expect(body["detail"]).toContain("npx wrangler secret put API_TOKENS");
  },
);

test("without the secret, health still answers", async () => {
  expect((await get("/healthz", undefined)).status).toBe(200);
});

const entry = TEST_TOKENS[0];
test.each([
  ["empty", ""],
  ["not JSON", "weir_secret"],
  ["no array", JSON.stringify(entry)],
  ["an empty array", "[]"],
  ["a short hash", JSON.stringify([{ ...entry, sha256: "abc123" }])],
  ["no scopes", JSON.stringify([{ ...entry, scopes: [] }])],
  ["an unknown scope", JSON.stringify([{ ...entry, scopes: ["root"] }])],
  ["a field of another name", JSON.stringify([{ ...entry, policy: "api" }])],
])("a secret that is %s closes everything, says what is wrong and quotes none of it", async (_, secret) => {
  const { status, body } = await get("/v1/policies", secret);
  expect(status).toBe(503);
  expect(body["detail"]).toContain("API_TOKENS");
  for (const quoted of ["weir_secret", "abc123", "root", String(entry?.sha256)]) {
    expect(JSON.stringify(body)).not.toContain(quoted);
  }
});

test("a token is known by its hash, whatever the case of hash and scheme", async () => {
  const upper = JSON.stringify([{ ...entry, sha256: entry?.sha256.toUpperCase() }]);
  expect((await get("/v1/policies", upper)).status).toBe(200);
  expect((await get("/v1/policies", upper, `bearer   ${TOKENS.full} `)).status).toBe(200);
});

test("a token that is taken out of the secret stops working at once", async () => {
  const [first, ...others] = TEST_TOKENS;
  expect((await get("/v1/policies", JSON.stringify([first]))).status).toBe(200);
  expect((await get("/v1/policies", JSON.stringify(others))).status).toBe(401);
});

test.each([
  "Bearer",
  "Bearer ",
  "Bearer a b",
  "Basic abc",
  "weir_test_full",
  "Bearer weir_test_ful",
  "Bearer weir_test_fulll",
])("the header %j is refused", async (authorization) => {
  expect((await get("/v1/policies", JSON.stringify(TEST_TOKENS), authorization)).status).toBe(401);
});
