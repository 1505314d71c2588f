/** What the catalog says of itself can be written back, whatever was written before. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { depth } from "../../../support/depth.ts";
import { call } from "../../../support/limiter.ts";

const EMPTY = { policies: {}, overrides: {}, tokens: {} };
const LOG = { algorithm: "sliding-log", limit: 10, window: "1m" };
const BUCKET = { algorithm: "token-bucket", limit: 10, window: "1m" };
const SLOTS = { algorithm: "concurrency", limit: 3, ttl: "1m" };
const POLICY = "/v1/policies/written-back";
const CANDIDATE = `${POLICY}/candidate`;
const overrideAt = (pattern: string) => `${POLICY}/overrides/${pattern}`;
const admin = (method: string, path: string, body?: unknown) =>
  call(path, { method, ...(body !== undefined && { body }) });
const errorsOf = ({ body }: { readonly body: Record<string, unknown> }) => JSON.stringify(body["errors"]);

/** A write of any kind. Many of them do not fit each other. */
const CatalogChange = fc.oneof(
  fc.record({ path: fc.constant(POLICY), body: fc.constantFrom(LOG, BUCKET, SLOTS, undefined) }),
  fc.record({ path: fc.constant(CANDIDATE), body: fc.constantFrom(LOG, BUCKET, SLOTS, undefined) }),
  fc.record({
    path: fc.constant(overrideAt("a")),
    body: fc.constantFrom({ minInterval: "1s" }, { burst: 20 }, { multiply: 2 }, undefined),
  }),
  fc.record({ path: fc.constant(`${CANDIDATE}/promote`), body: fc.constant({}) }),
);

async function write({ path, body }: { readonly path: string; readonly body: unknown }): Promise<void> {
  const method = path.endsWith("/promote") ? "POST" : body === undefined ? "DELETE" : "PUT";
  expect([200, 204, 404, 422]).toContain((await admin(method, path, body)).status);
}

test("the document that is read can be written into an empty catalog, after any writes", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(CatalogChange, { minLength: 3, maxLength: 10 }), async (writes) => {
      await admin("PUT", "/v1/catalog", EMPTY);
      await write({ path: POLICY, body: LOG });
      for (const each of writes) await write(each);
      const { body: document } = await admin("GET", "/v1/catalog");
      await admin("PUT", "/v1/catalog", EMPTY);
      expect(await admin("PUT", "/v1/catalog", document)).toMatchObject({ status: 200, body: document });
    }),
    { numRuns: depth(4, 40) },
  );
  await admin("PUT", "/v1/catalog", EMPTY);
});

test("an override that would not fit its policy any more is named briefly, however long its pattern is", async () => {
  const pattern = "%01".repeat(512);
  await admin("PUT", POLICY, BUCKET);
  await admin("PUT", overrideAt(pattern), { burst: 20 });
  for (const path of [POLICY, CANDIDATE]) {
    const refused = await admin("PUT", path, LOG);
    expect(refused.status).toBe(422);
    expect(errorsOf(refused)).toMatch(/the override .{1,999} would not fit it any more: burst is no figure/);
    expect(errorsOf(refused).length).toBeLessThan(1_000);
  }
  await admin("PUT", "/v1/catalog", EMPTY);
});

describe("an override that does not fit the candidate of its policy", () => {
  const detail =
    "the override would not fit the candidate of the policy: minInterval is no figure of this rule";

  test("is refused, and says so", async () => {
    await admin("PUT", POLICY, LOG);
    await admin("PUT", CANDIDATE, BUCKET);
    for (const query of ["", "?dryRun=true"]) {
      const refused = await admin("PUT", `${overrideAt("a")}${query}`, { minInterval: "1s" });
      expect([refused.status, errorsOf(refused)]).toEqual([422, expect.stringContaining(detail)]);
      expect(errorsOf(refused)).toContain('"pointer":"/minInterval"');
    }
    expect((await admin("GET", overrideAt("a"))).status).toBe(404);
    expect((await admin("POST", `${CANDIDATE}/promote`)).status).toBe(200);
    await admin("PUT", "/v1/catalog", EMPTY);
  });

  test("is refused in a document, which says where", async () => {
    const document = {
      policies: { "written-back": LOG },
      overrides: {},
      tokens: {},
      candidates: { "written-back": BUCKET },
    };
    expect((await admin("PUT", "/v1/catalog", document)).status).toBe(200);
    const overrides = { "written-back": { a: { minInterval: "1s" } } };
    const refused = await admin("PUT", "/v1/catalog", { ...document, overrides });
    expect([refused.status, errorsOf(refused)]).toEqual([
      422,
      expect.stringContaining(`overrides.written-back.a: ${detail}`),
    ]);
    await admin("PUT", "/v1/catalog", EMPTY);
  });
});

test("fields that a document does not have are named, with what may be meant", async () => {
  const allowed = "is not a field: there are policies, overrides, tokens, candidates";
  const refused = await admin("PUT", "/v1/catalog", { ...EMPTY, polices: {}, x: 1 });
  expect(refused).toMatchObject({
    status: 422,
    body: {
      errors: [
        { pointer: "/polices", detail: `polices ${allowed} (did you mean policies?)` },
        { pointer: "/x", detail: `x ${allowed}` },
      ],
    },
  });
  const misnamed = await admin("PUT", "/v1/catalog", { policies: {}, override: {}, tokens: {} });
  expect(errorsOf(misnamed)).toContain("did you mean overrides?");
  expect(errorsOf(await admin("PUT", "/v1/catalog", { policies: {} }))).toContain("the body must be {");
});
