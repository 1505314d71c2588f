/** Policies that are tried beside others: what may be one, and who may say so. */
import { exports } from "cloudflare:workers";
import { describe, expect, test } from "vitest";
import type { CatalogTarget, Limiter } from "../../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../../support/fixtures.ts";
import { call, freshKey, limit } from "../../../support/limiter.ts";

const at = (policy: string) => `/v1/policies/${policy}/candidate`;
const admin = (method: string, path: string, body?: unknown, headers?: Record<string, string>) =>
  call(path, { method, ...(body !== undefined && { body }), ...(headers && { headers }) });
const TRIED = { algorithm: "token-bucket", limit: 3, window: "30d", deadlineMs: 20_000 };

describe("a candidate", () => {
  test("is read as it was written, changed by who knows its version, and taken away", async () => {
    expect((await admin("GET", at("slow"))).status).toBe(404);
    const put = await admin("PUT", at("slow"), TRIED, { "if-none-match": "*" });
    expect(put).toMatchObject({ status: 200, body: { policy: "slow", candidate: TRIED } });
    expect(put.headers.get("etag")).toBe(`"${String(put.body["version"])}"`);
    const read = await admin("GET", at("slow"));
    expect(read.body).toMatchObject({ ...put.body, compared: { calls: 0, undecided: 0 }, keys: [] });
    const stale = await admin("PUT", at("slow"), { ...TRIED, limit: 4 }, { "if-match": '"0"' });
    expect(stale.status).toBe(412);
    const tried = await admin("PUT", `${at("slow")}?dryRun=true`, { ...TRIED, limit: 4 });
    expect(tried).toMatchObject({ status: 200, body: { candidate: { limit: 4 } } });
    expect((await admin("GET", at("slow"))).body).toMatchObject({ candidate: TRIED });
    expect((await admin("DELETE", at("slow"))).status).toBe(204);
    expect((await admin("DELETE", at("slow"))).status).toBe(404);
    expect((await admin("POST", `${at("slow")}/promote`)).status).toBe(404);
  });

  test("changes no answer, and no policy before it is promoted", async () => {
    await admin("PUT", at("slow"), { ...TRIED, limit: 1 });
    const key = freshKey();
    for (const remaining of [4, 3, 2, 1, 0])
      expect((await limit("slow", key)).body).toMatchObject({ success: true, limit: 5, remaining });
    expect((await admin("GET", "/v1/policies/slow")).body).toMatchObject({ source: "file", limit: 5 });
    // What is promoted is the candidate as it is: whoever says other figures is not misunderstood.
    expect(await admin("POST", `${at("slow")}/promote`, { limit: 9 })).toMatchObject({
      status: 422,
      body: {
        errors: [{ pointer: "", detail: "the body must be left out: the candidate is promoted as it is" }],
      },
    });
    const promoted = await admin("POST", `${at("slow")}/promote`, {});
    expect(promoted).toMatchObject({ status: 200, body: { policy: "slow", source: "catalog", limit: 1 } });
    expect((await limit("slow", key)).body).toMatchObject({ success: false, limit: 1 });
    expect((await limit("slow", freshKey())).body).toMatchObject({ success: true, limit: 1, remaining: 0 });
    expect((await admin("GET", at("slow"))).status).toBe(404);
    await admin("DELETE", "/v1/policies/slow");
    expect((await limit("slow", freshKey())).body).toMatchObject({ limit: 5 });
  });

  test("that is promoted for a trial is answered as it would be, and stays a candidate", async () => {
    await admin("PUT", at("slow"), { ...TRIED, limit: 1 });
    const before = await admin("GET", "/v1/policies/slow");
    const tried = await admin("POST", `${at("slow")}/promote?dryRun=true`);
    expect(await admin("GET", "/v1/policies/slow")).toMatchObject({ status: 200, body: before.body });
    expect((await admin("GET", at("slow"))).body).toMatchObject({ candidate: { limit: 1 } });
    const promoted = await admin("POST", `${at("slow")}/promote`);
    expect(promoted.body).toMatchObject({ policy: "slow", source: "catalog", limit: 1 });
    expect(tried).toMatchObject({ status: 200, body: promoted.body });
    expect(tried.headers.get("etag")).toBe(promoted.headers.get("etag"));
    await admin("DELETE", "/v1/policies/slow");
  });

  test("of a policy that is taken away goes with it", async () => {
    const path = "/v1/policies/tried-too";
    await admin("PUT", path, TRIED);
    await admin("PUT", at("tried-too"), { ...TRIED, limit: 9 });
    expect((await admin("DELETE", path)).status).toBe(204);
    expect((await admin("GET", at("tried-too"))).status).toBe(404);
    await admin("PUT", path, TRIED);
    expect((await admin("GET", at("tried-too"))).status).toBe(404);
    await admin("DELETE", path);
  });

  test.each<[string, string, object, RegExp]>([
    ["with figures that there are not", "slow", { ...TRIED, limt: 3 }, /limt .*did you mean limit/],
    ["on other objects", "slow", { ...TRIED, objects: 7 }, /objects is 7: must be/],
    [
      "that leases what the policy does not",
      "slow",
      { algorithm: "concurrency", limit: 3, ttl: "1m" },
      /must both have a concurrency rule, or none/,
    ],
    [
      "that does not lease what the policy leases",
      "shadow-export",
      TRIED,
      /must both have a concurrency rule, or none/,
    ],
    ["that is no table", "slow", [], /the body must be an object/],
  ])("%s is refused, and says so", async (_, policy, body, words) => {
    const { status, body: problem } = await admin("PUT", at(policy), body);
    expect([status, JSON.stringify(problem["errors"])]).toEqual([422, expect.stringMatching(words)]);
    expect((await admin("GET", at(policy))).status).toBe(404);
  });

  test("fits its policy, whatever becomes of that", async () => {
    const slots = { algorithm: "concurrency", limit: 3, ttl: "1m", deadlineMs: 20_000 };
    await admin("PUT", at("slow"), TRIED);
    const turned = await admin("PUT", "/v1/policies/slow", slots);
    expect([turned.status, JSON.stringify(turned.body["errors"])]).toEqual([
      422,
      expect.stringMatching(/a policy and its candidate must both have/),
    ]);
    expect((await admin("GET", "/v1/policies/slow")).body).toMatchObject({ source: "file" });
    await admin("DELETE", at("slow"));
    await admin("PUT", "/v1/policies/slow", slots);
    await admin("PUT", at("slow"), { ...slots, limit: 2 });
    expect((await admin("DELETE", "/v1/policies/slow")).status).toBe(422);
    // As a document, with a candidate that fits what the policy becomes.
    const { body: document } = await admin("GET", "/v1/catalog");
    const { slow: _, ...policies } = document["policies"] as Record<string, object>;
    const misfit = await admin("PUT", "/v1/catalog", { ...document, policies });
    expect([misfit.status, JSON.stringify(misfit.body["errors"])]).toEqual([
      422,
      expect.stringMatching(/slow/),
    ]);
    const fits = await admin("PUT", "/v1/catalog", { ...document, policies, candidates: { slow: TRIED } });
    expect(fits.status).toBe(200);
    await admin("DELETE", at("slow"));
  });

  test("is for who may use its policy; keys and changes are for the scope admin", async () => {
    await admin("PUT", at("slow"), TRIED);
    const read = await call(at("slow"), { token: TOKENS.limit });
    expect(read.status).toBe(200);
    expect(read.body).not.toHaveProperty("keys");
    expect((await call(at("slow"), { token: TOKENS.tenant })).status).toBe(403);
    for (const [method, path] of [
      ["PUT", at("slow")],
      ["DELETE", at("slow")],
      ["POST", `${at("slow")}/promote`],
    ] as const)
      expect(
        (await call(path, { method, token: TOKENS.limit, ...(method === "PUT" && { body: TRIED }) })).status,
      ).toBe(403);
    await admin("DELETE", at("slow"));
    expect((await admin("PUT", at("nowhere"), TRIED)).status).toBe(404);
  });

  test("is in the document, and comes back with it; a document without one takes it away", async () => {
    await admin("PUT", at("slow"), TRIED);
    const { body: document } = await admin("GET", "/v1/catalog");
    expect(document["candidates"]).toEqual({ slow: TRIED });
    await admin("DELETE", at("slow"));
    const { body: without } = await admin("GET", "/v1/catalog");
    expect(without).not.toHaveProperty("candidates");
    expect((await admin("PUT", "/v1/catalog", document)).status).toBe(200);
    expect((await admin("GET", at("slow"))).body).toMatchObject({ candidate: TRIED });
    const bad = { ...document, candidates: { slow: { ...TRIED, limit: -1 } } };
    expect((await admin("PUT", "/v1/catalog", bad)).status).toBe(422);
    expect((await admin("PUT", "/v1/catalog", without)).status).toBe(200);
    expect((await admin("GET", at("slow"))).status).toBe(404);
  });

  test("has the same calls over the service binding", async () => {
    const loopback = exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> };
    using bound = await loopback.Limiter({}).catalog();
    const catalog = bound as unknown as CatalogTarget;
    const { version } = await catalog.putCandidate("slow", TRIED);
    expect(await catalog.candidate("slow")).toMatchObject({
      version,
      candidate: TRIED,
      compared: { calls: 0 },
    });
    await catalog.deleteCandidate("slow", { ifMatch: version });
    await catalog.putCandidate("slow", TRIED);
    expect(await catalog.promoteCandidate("slow")).toMatchObject({ limit: 3, source: "catalog" });
    await catalog.deletePolicy("slow");
  });
});

test("overrides and candidates of a policy with a jurisdiction work where there is none", async () => {
  const key = freshKey();
  await admin("PUT", `/v1/policies/european/overrides/${encodeURIComponent(key)}`, { multiply: 2 });
  expect((await limit("european", key)).body).toMatchObject({ success: true, limit: 10, override: key });
  await admin("DELETE", `/v1/policies/european/overrides/${encodeURIComponent(key)}`);
});
