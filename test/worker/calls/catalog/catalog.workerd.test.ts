/** Policies, overrides and tokens that change at run time: over HTTP, against the real objects. */
import { describe, expect, test } from "vitest";
import { call, freshKey, limit } from "../../../support/limiter.ts";

const admin = (method: string, path: string, body?: unknown, headers?: Record<string, string>) =>
  call(path, { method, ...(body !== undefined && { body }), ...(headers && { headers }) });
const overrideAt = (policy: string, pattern: string) =>
  `/v1/policies/${policy}/overrides/${encodeURIComponent(pattern)}`;

describe("an override", () => {
  test("gives a key another limit, and what it has used stays used", async () => {
    const key = freshKey();
    await limit("slow", key, { cost: 3 });
    const put = await admin("PUT", overrideAt("slow", key), { limit: 20, note: "asked for more" });
    expect(put.status).toBe(200);
    expect(put.body).toMatchObject({ policy: "slow", pattern: key, limit: 20, note: "asked for more" });
    const { body } = await limit("slow", key, { cost: 1 });
    expect(body).toMatchObject({ success: true, limit: 20, remaining: 16, override: key });
    expect((await limit("slow", freshKey())).body).toMatchObject({ limit: 5, remaining: 4 });
    expect((await admin("DELETE", overrideAt("slow", key))).status).toBe(204);
    const after = await limit("slow", key, { cost: 1 });
    expect(after.body).toMatchObject({ success: true, limit: 5, remaining: 0 });
    expect(after.body).not.toHaveProperty("override");
  });

  test("blocks a key, until it is taken away", async () => {
    const key = freshKey();
    await admin("PUT", overrideAt("slow", key), { blocked: true });
    expect((await limit("slow", key)).body).toMatchObject({
      success: false,
      reason: "blocked",
      retryAfterMs: null,
      override: key,
    });
    await admin("DELETE", overrideAt("slow", key));
    expect((await limit("slow", key)).body).toMatchObject({ success: true, remaining: 4 });
  });

  test("admits everything, and counts nothing", async () => {
    const prefix = freshKey();
    await admin("PUT", overrideAt("slow", `${prefix}*`), { unlimited: true });
    for (let each = 0; each < 10; each += 1)
      expect((await limit("slow", `${prefix}x`)).body).toMatchObject({
        success: true,
        override: `${prefix}*`,
      });
    await admin("DELETE", overrideAt("slow", `${prefix}*`));
    expect((await limit("slow", `${prefix}x`)).body).toMatchObject({ success: true, remaining: 4 });
  });
});

describe("a policy", () => {
  test("is made at run time, changed, and taken away again", async () => {
    const path = "/v1/policies/made";
    const made = await admin("PUT", path, { algorithm: "sliding-log", limit: 3, window: "30d" });
    expect(made.body).toMatchObject({ policy: "made", source: "catalog", limit: 3, overrides: 0 });
    const key = freshKey();
    expect((await limit("made", key, { cost: 2 })).body).toMatchObject({ limit: 3, remaining: 1 });
    await admin("PUT", path, { algorithm: "sliding-log", limit: 10, window: "30d" });
    expect((await limit("made", key)).body).toMatchObject({ limit: 10, remaining: 7 });
    const peeked = await admin("GET", `/v1/policies/made/keys/${encodeURIComponent(freshKey())}`);
    expect(peeked.body).toMatchObject({ success: true, limit: 10, remaining: 10 });
    expect((await admin("DELETE", path)).status).toBe(204);
    expect((await limit("made", key)).status).toBe(404);
  });

  test("of the file is changed, and is the file's again", async () => {
    const path = "/v1/policies/slow";
    const before = await admin("GET", path);
    expect(before.body).toMatchObject({ policy: "slow", source: "file", version: 0, limit: 5 });
    const key = freshKey();
    await limit("slow", key, { cost: 2 });
    const { version: _, policy: __, source: ___, overrides: ____, ...fields } = before.body;
    const put = await admin("PUT", path, { ...fields, limit: 8 });
    expect(put.body).toMatchObject({ source: "catalog", limit: 8 });
    expect((await limit("slow", key)).body).toMatchObject({ limit: 8, remaining: 5 });
    await admin("DELETE", path);
    expect((await limit("slow", key)).body).toMatchObject({ limit: 5, remaining: 1 });
  });
});
