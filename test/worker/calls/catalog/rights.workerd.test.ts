/** Who may change what in the catalog, and how much of a call is read before that is known. */
import { describe, expect, test } from "vitest";
import { depth } from "../../../support/depth.ts";
import { call, freshKey } from "../../../support/limiter.ts";

const admin = (method: string, path: string, body?: unknown) =>
  call(path, { method, ...(body !== undefined && { body }) });
const overrideAt = (policy: string, pattern: string) =>
  `/v1/policies/${policy}/overrides/${encodeURIComponent(pattern)}`;

describe("a token with a prefix of keys", () => {
  const issued = async (keyPrefix: string) => {
    const name = `prefixed ${freshKey()}`;
    const { body } = await admin("POST", "/v1/tokens", { name, scopes: ["admin"], keyPrefix });
    return String(body["token"]);
  };

  test.each([
    [
      "10.1.",
      ["10.1.0.0/16", "10.1.7.0/24", "10.1.2.3"],
      ["10.1.0.0/0", "10.1.0.0/15", "10.1.2.3/8", "10.0.0.0/8"],
    ],
    ["10.1", ["10.1.0.0/16", "10.1.2.3"], ["10.1.2.3/0", "10.1.0.0/12", "10.0.0.0/16"]],
    ["2001:db8:", ["2001:db8::/32", "2001:db8:7::/48", "2001:db8:7::1"], ["2001:db8::/31", "2001:db8::/0"]],
  ])(
    "%s: what is compared is what is stored, so it changes, reads and deletes no wider range",
    async (prefix, own, others) => {
      const token = await issued(prefix);
      for (const pattern of own) {
        const path = overrideAt("address", pattern);
        expect((await call(path, { method: "PUT", token, body: { multiply: 2 } })).status, pattern).toBe(200);
        expect((await call(path, { method: "GET", token })).status, pattern).toBe(200);
        expect((await call(path, { method: "DELETE", token })).status, pattern).toBe(204);
      }
      for (const pattern of others) {
        const path = overrideAt("address", pattern);
        for (const [method, body] of [["PUT", { blocked: true }], ["GET"], ["DELETE"]] as const)
          expect((await call(path, { method, token, ...(body && { body }) })).status, pattern).toBe(403);
      }
    },
  );

  test("reads no counts of all keys, and top keys of its own alone", async () => {
    const token = await issued("tenant-a:");
    for (const path of ["/metrics", "/v1/stats?policy=slow"]) {
      const { status, body } = await call(path, { token });
      expect([status, String(body["detail"])]).toEqual([
        403,
        expect.stringContaining("counts are of all keys"),
      ]);
    }
    const { status, body } = await call("/v1/stats/keys?policy=slow", { token });
    expect(status).toBe(200);
    for (const { key } of body["keys"] as { key: string }[]) expect(key.startsWith("tenant-a:")).toBe(true);
  });

  test("takes no more of the bounds that all share than it leaves: others may still add", async () => {
    const [token, other] = [await issued("mine:"), await issued("other:")];
    const put = (from: string, pattern: string) =>
      call(overrideAt("slow", pattern), { method: "PUT", token: from, body: { limit: 7 } });
    const patternsOf = {
      "lengths before": (each: number) => `mine:${"x".repeat(each)}*`,
      "more than one": (each: number) => `mine:*${each}*`,
      "lengths after": (each: number) => `mine:*${"x".repeat(each)}`,
    };
    for (const [words, patternOf] of Object.entries(patternsOf).slice(0, depth(1, 3))) {
      let added = 0;
      let last = await put(token, patternOf(0));
      for (; last.status === 200; last = await put(token, patternOf(added))) added += 1;
      expect([last.status, String(last.body["detail"])]).toEqual([429, expect.stringContaining(words)]);
      expect(added).toBeGreaterThan(10);
      // What is there may be changed, others and the owner add, and room is made by taking away.
      expect((await put(token, patternOf(0))).status).toBe(200);
      const mine = Array.from({ length: added }, (_, each) => patternOf(each));
      const theirs = patternOf(added).replace("mine:", "other:");
      expect((await put(other, theirs)).status).toBe(200);
      expect((await admin("PUT", overrideAt("slow", patternOf(added)), { limit: 7 })).status).toBe(200);
      for (const pattern of [...mine, theirs, patternOf(added)])
        expect((await admin("DELETE", overrideAt("slow", pattern))).status).toBe(204);
    }
  });

  test("is told so before its document, or its token, is read", async () => {
    const token = await issued("tenant-a:");
    for (const [method, path] of [
      ["PUT", "/v1/catalog"],
      ["POST", "/v1/tokens"],
    ] as const)
      expect((await call(path, { method, token, body: "no document at all" })).status).toBe(403);
  });
});

describe("a document", () => {
  const SHA = "ab".repeat(32);
  const document = { policies: {}, overrides: {}, tokens: {} };
  const problems = async (body: object) => {
    const answer = await admin("PUT", "/v1/catalog?dryRun=true", body);
    expect(answer.status).toBe(422);
    return answer.body as { detail: string; errors: { pointer: string; detail: string }[] };
  };

  test("gives no token another name than the one under which it stands", async () => {
    const entry = { name: "full", sha256: SHA, scopes: ["limit"] };
    const { errors } = await problems({ ...document, tokens: { free: entry } });
    expect(errors[0]?.detail).toContain("name is not a field");
  });

  test("names tokens in 128 characters, as every other way to make one does", async () => {
    const name = "n".repeat(129);
    const { errors } = await problems({
      ...document,
      tokens: { [name]: { sha256: SHA, scopes: ["limit"] } },
    });
    expect(errors[0]?.detail).toContain("a name of 1 to 128 characters");
    expect((await admin("POST", "/v1/tokens", { name, scopes: ["limit"] })).status).toBe(422);
  });

  test("with more entries than there may be is refused by their number, and with many problems by 20", async () => {
    const overrides = Object.fromEntries(Array.from({ length: 10_001 }, (_, index) => [`k${index}`, 1]));
    const tables = Object.fromEntries(Object.keys(overrides).map((name) => [name, {}]));
    expect(await problems({ ...document, overrides: { slow: tables } })).toMatchObject({
      errors: [{ pointer: "/overrides", detail: "overrides has 10001 entries: must have at most 10000" }],
    });
    const tokens = Object.fromEntries(Array.from({ length: 900 }, (_, index) => [`t${index}`, {}]));
    expect((await problems({ ...document, tokens })).errors.length).toBeLessThanOrEqual(20);
  });
});

test("patterns of a policy have texts of so many lengths before their first * and after their last", async () => {
  const { body: before } = await admin("GET", "/v1/catalog");
  const limited = (patterns: readonly string[]) => ({
    ...before,
    overrides: { slow: Object.fromEntries(patterns.map((pattern) => [pattern, { limit: 7 }])) },
  });
  const beginnings = Array.from({ length: 129 }, (_, length) => `${"x".repeat(length)}*`);
  const ends = Array.from({ length: 33 }, (_, length) => `*${"x".repeat(length)}`);
  for (const [patterns, where] of [
    [beginnings, "128 lengths before their first *"],
    [ends, "32 lengths after their last *"],
  ] as const) {
    expect((await admin("PUT", "/v1/catalog", limited(patterns.slice(1)))).status).toBe(200);
    const one = await admin("PUT", overrideAt("slow", patterns[0] ?? ""), { limit: 7 });
    expect([one.status, String(one.body["detail"])]).toEqual([429, expect.stringContaining(where)]);
    expect((await admin("PUT", overrideAt("slow", "a key"), { limit: 7 })).status).toBe(200);
    const all = await admin("PUT", "/v1/catalog", limited(patterns));
    expect([all.status, String(all.body["detail"])]).toEqual([429, expect.stringContaining(where)]);
  }
  await admin("PUT", "/v1/catalog", before);
});
