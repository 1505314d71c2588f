/** Policies, overrides and tokens that change at run time: over HTTP, against the real objects. */
import { exports } from "cloudflare:workers";
import { describe, expect, test } from "vitest";
import type { CatalogTarget, Limiter } from "../../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../../support/fixtures.ts";
import { call, freshKey, limit } from "../../../support/limiter.ts";

const admin = (method: string, path: string, body?: unknown, headers?: Record<string, string>) =>
  call(path, { method, ...(body !== undefined && { body }), ...(headers && { headers }) });
const overrideAt = (policy: string, pattern: string) =>
  `/v1/policies/${policy}/overrides/${encodeURIComponent(pattern)}`;

describe("an override", () => {
  test("may have a policy or a pattern of a name that objects have already, and an end that is far away", async () => {
    const far = { multiply: 2, expiresAt: "9999-01-31T12:00:00Z" };
    for (const [policy, pattern] of [
      ["constructor", "a"],
      ["slow", "__proto__"],
      ["slow", "toString"],
    ] as const)
      expect((await admin("PUT", overrideAt(policy, pattern), far)).status).toBe(200);
    const { body } = await admin("GET", "/v1/catalog");
    const { constructor, slow } = (body as { overrides: Record<string, object> }).overrides as Record<
      string,
      Record<string, object>
    >;
    expect(Object.entries(constructor ?? {})).toEqual([["a", far]]);
    expect(Object.entries(slow ?? {})).toEqual(
      expect.arrayContaining([
        ["__proto__", far],
        ["toString", far],
      ]),
    );
    expect((await admin("PUT", "/v1/catalog?dryRun=true", body)).status).toBe(200);
    for (const [policy, pattern] of [
      ["constructor", "a"],
      ["slow", "__proto__"],
      ["slow", "toString"],
    ] as const)
      expect((await admin("DELETE", overrideAt(policy, pattern))).status).toBe(204);
  });

  test("that is nested too deep, or has very many fields, is refused in few words", async () => {
    let deep: object = {};
    for (let level = 0; level < 1_000; level += 1) deep = { a: deep };
    const many = Object.fromEntries(Array.from({ length: 900 }, (_, each) => [`field${each}`, 1]));
    for (const fields of [
      { limit: 1, expiresAt: deep },
      { ...many, blocked: true },
    ]) {
      const { status, body } = await admin("PUT", overrideAt("slow", "odd"), fields);
      expect(status).toBe(422);
      expect(JSON.stringify(body).length).toBeLessThan(4_000);
    }
  });

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
    const { body } = await limit("slow", key);
    expect(body).toMatchObject({ success: false, reason: "blocked", retryAfterMs: null, override: key });
    expect(body["resetAfterMs"]).toBeGreaterThan(2 ** 51);
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

  test("that is not there is told with the nearest name, to a caller who may use all policies", async () => {
    const { status, body } = await admin("GET", "/v1/policies/slwo");
    expect([status, body["detail"]]).toEqual([404, 'there is no policy "slwo" (did you mean slow?)']);
    const named = { name: `named ${freshKey()}`, scopes: ["admin"], policies: ["slow"] };
    const { body: issued } = await admin("POST", "/v1/tokens", named);
    const limited = await call("/v1/policies/slwo", { method: "GET", token: String(issued["token"]) });
    expect(JSON.stringify(limited.body)).not.toContain("did you mean");
  });

  test.each([{}, { objects: 4 }])(
    "that was made at run time has keys that can be reset (%j)",
    async (layout) => {
      const path = `/v1/policies/reset-${"objects" in layout ? "shared" : "alone"}`;
      const name = path.split("/").at(-1) ?? "";
      await admin("PUT", path, { algorithm: "token-bucket", limit: 10, window: "30d", ...layout });
      const key = freshKey();
      for (const cost of [0, 4, 1]) {
        await limit(name, key, { cost });
        expect((await admin("DELETE", `${path}/keys/${encodeURIComponent(key)}`)).status).toBe(204);
        expect((await limit(name, key, { cost: 0 })).body).toMatchObject({ remaining: 10 });
      }
      const { body } = await admin("POST", "/v1/holds", { policy: name, key, units: 6 });
      expect(body).toMatchObject({ remaining: 4 });
      expect((await admin("DELETE", `${path}/keys/${encodeURIComponent(key)}`)).status).toBe(204);
      expect((await limit(name, key, { cost: 0 })).body).toMatchObject({ remaining: 10 });
      await admin("DELETE", path);
    },
  );

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

describe("a write", () => {
  test("that is only tried changes nothing", async () => {
    const key = freshKey();
    const tried = await admin("PUT", `${overrideAt("slow", key)}?dryRun=true`, { limit: 50 });
    expect(tried).toMatchObject({ status: 200, body: { limit: 50 } });
    expect((await admin("GET", overrideAt("slow", key))).status).toBe(404);
    expect((await limit("slow", key)).body).toMatchObject({ limit: 5 });
  });

  test("by somebody who does not know the latest version is refused, and changes nothing", async () => {
    const key = freshKey();
    const first = await admin("PUT", overrideAt("slow", key), { limit: 50 }, { "if-match": '"0"' });
    const etag = first.headers.get("etag") ?? "";
    expect(etag).toBe(`"${String(first.body["version"])}"`);
    const second = await admin("PUT", overrideAt("slow", key), { limit: 60 }, { "if-match": etag });
    expect(second).toMatchObject({ status: 200, body: { limit: 60 } });
    const late = await admin("PUT", overrideAt("slow", key), { limit: 70 }, { "if-match": etag });
    expect(late).toMatchObject({ status: 412, body: { type: "urn:weir:problem:precondition-failed" } });
    const there = await admin("PUT", overrideAt("slow", key), { limit: 70 }, { "if-none-match": "*" });
    expect(there.status).toBe(412);
    expect((await admin("GET", overrideAt("slow", key))).body).toMatchObject({ limit: 60 });
  });

  test.each<[string, unknown, RegExp]>([
    ["figures that there are not", { limt: 3 }, /limt .*did you mean limit/],
    ["a limit that is none", { limit: -1 }, /limit is -1: must be an integer/],
    ["nothing", {}, /says nothing: must be figures/],
    ["two things", { multiply: 2, blocked: true }, /says multiply and blocked: must be/],
    [
      "an end in the past",
      { blocked: true, expiresAt: "2020-01-01T00:00:00Z" },
      /expiresAt is .*in the future/,
    ],
    [
      "an end that is no instant",
      { blocked: true, expiresAt: "tomorrow" },
      /expiresAt is .*tomorrow.*: must be an instant/,
    ],
    [
      "an end on a day that there is not",
      { blocked: true, expiresAt: "2027-02-30T00:00:00Z" },
      /expiresAt is .*2027-02-30.*: must be an instant/,
    ],
    [
      "a start that is no instant",
      { blocked: true, startsAt: "tomorrow" },
      /startsAt is .*tomorrow.*: must be an instant/,
    ],
    [
      "a start at its end",
      { limit: 1, startsAt: "2999-01-31T13:00:00+01:00", expiresAt: "2999-01-31T12:00:00Z" },
      /startsAt is .*: must be before expiresAt/,
    ],
    ["another algorithm", { algorithm: "sliding-log" }, /algorithm is the same for all keys/],
  ])("of an override with %s says so", async (_, body, words) => {
    const { status, body: problem } = await admin("PUT", overrideAt("slow", freshKey()), body);
    expect(status).toBe(422);
    expect(JSON.stringify(problem["errors"])).toMatch(words);
  });

  test("of a policy whose keys would have to move is refused, and one that overrides do not fit", async () => {
    const moved = await admin("PUT", "/v1/policies/slow", {
      algorithm: "token-bucket",
      limit: 5,
      window: "30d",
      objects: 7,
    });
    expect(JSON.stringify(moved.body["errors"])).toMatch(
      /objects is 7: must be .*per-key.* since only a deployment/,
    );
    const key = freshKey();
    await admin("PUT", overrideAt("slow", key), { burst: 9 });
    const misfit = await admin("PUT", "/v1/policies/slow", {
      algorithm: "sliding-log",
      limit: 5,
      window: "30d",
      deadlineMs: 20_000,
    });
    expect(JSON.stringify(misfit.body["errors"])).toContain(key);
    await admin("DELETE", overrideAt("slow", key));
  });

  test("of one more pattern with several * than a policy may have says how many that are", async () => {
    const [first, ...others] = Array.from({ length: 65 }, (_, each) => `${each}*of*many`);
    const { body: before } = await admin("GET", "/v1/catalog");
    const slow = Object.fromEntries(others.map((pattern) => [pattern, { limit: 7 }]));
    await admin("PUT", "/v1/catalog", { ...before, overrides: { slow } });
    const { status, body } = await admin("PUT", overrideAt("slow", first ?? ""), { limit: 7 });
    expect([status, body["detail"]]).toEqual([
      429,
      "the policy has 64 patterns with more than one *, which are all that it may have",
    ]);
    await admin("PUT", "/v1/catalog", before);
  });

  test("is in the audit log: who, what, before and after", async () => {
    const key = freshKey();
    await admin("PUT", overrideAt("slow", key), { limit: 50 });
    await admin("DELETE", overrideAt("slow", key));
    const { body } = await admin("GET", "/v1/audit");
    expect((body["entries"] as unknown[]).slice(0, 2)).toMatchObject([
      { by: 'the token "full"', target: `override slow ${key}`, before: { limit: 50 }, after: null },
      { by: 'the token "full"', target: `override slow ${key}`, before: null, after: { limit: 50 } },
    ]);
  });

  test("needs the scope admin, and the policy and the prefix of the token", async () => {
    const put = (token: string, policy: string, pattern: string) =>
      call(overrideAt(policy, pattern), { method: "PUT", token, body: { limit: 50 } });
    expect((await put(TOKENS.limit, "slow", "a")).status).toBe(403);
    expect((await put(TOKENS.tenant, "slow", "tenant-a:1")).status).toBe(403);
    for (const path of ["/v1/catalog", "/v1/tokens", "/v1/audit"])
      expect((await call(path, { token: TOKENS.limit })).status).toBe(403);
    for (const path of ["/v1/policies/slow", "/v1/policies/slow/overrides"])
      expect((await call(path, { token: TOKENS.limit })).status).toBe(200);
    expect((await call(overrideAt("slow", "nobody"), { token: TOKENS.limit })).status).toBe(404);
    // Who may use keys with a prefix only does not see what is for keys of others.
    const read = (path: string) => call(path, { token: TOKENS.tenant });
    expect((await read(overrideAt("api", "tenant-b:1"))).status).toBe(403);
    expect((await read(overrideAt("api", "*"))).status).toBe(403);
    expect((await read(overrideAt("api", "tenant-a:*"))).status).toBe(404);
    expect((await read("/v1/policies/api/overrides")).status).toBe(403);
  });
});

describe("a token", () => {
  test("is issued, used and revoked, and its name is its own", async () => {
    const name = freshKey("token");
    const issued = await admin("POST", "/v1/tokens", { name, scopes: ["limit"], policies: ["slow"] });
    expect(issued.body).toMatchObject({
      name,
      scopes: ["limit"],
      token: expect.stringMatching(/^weir_/) as string,
    });
    const token = String(issued.body["token"]);
    const use = (policy: string) => call("/v1/limit", { token, body: { policy, key: freshKey() } });
    expect((await use("slow")).body).toMatchObject({ success: true });
    expect((await use("api")).status).toBe(403);
    expect(await admin("POST", "/v1/tokens", { name, scopes: ["limit"] })).toMatchObject({
      status: 409,
      body: {
        type: "urn:weir:problem:token-exists",
        detail: `there is a token "${name}": give another name, or revoke it first`,
      },
    });
    expect((await admin("POST", "/v1/tokens", { name: "full", scopes: ["limit"] })).status).toBe(422);
    const listed = await admin("GET", "/v1/tokens");
    expect(JSON.stringify(listed.body)).toContain(name);
    expect(JSON.stringify(listed.body)).not.toMatch(/sha256|weir_/);
    expect((await admin("DELETE", `/v1/tokens/${name}`)).status).toBe(204);
    expect((await use("slow")).status).toBe(401);
  });

  test("names policies that there are, in the file or in the catalog", async () => {
    const [name, policy] = [freshKey("token"), freshKey("policy")];
    const ask = { name, scopes: ["limit"], policies: ["slow", "slwo", policy] };
    const errors = [
      {
        pointer: "/policies/1",
        detail: 'policies.1 is "slwo": must be the name of a policy that there is (did you mean slow?)',
      },
      {
        pointer: "/policies/2",
        detail: `policies.2 is "${policy}": must be the name of a policy that there is`,
      },
    ];
    expect(await admin("POST", "/v1/tokens", ask)).toMatchObject({ status: 422, body: { errors } });
    expect(JSON.stringify((await admin("GET", "/v1/tokens")).body)).not.toContain(name);
    await admin("PUT", `/v1/policies/${policy}`, { algorithm: "token-bucket", limit: 1, window: "1s" });
    const { status } = await admin("POST", "/v1/tokens", { ...ask, policies: [policy] });
    expect(status).toBe(200);
    // What names a policy that has gone stays, and comes back with the document that has it.
    await admin("DELETE", `/v1/policies/${policy}`);
    const { body } = await admin("GET", "/v1/catalog");
    expect(JSON.stringify(body["tokens"])).toContain(policy);
    expect((await admin("PUT", "/v1/catalog", body)).status).toBe(200);
    const tokens = {
      ...(body["tokens"] as object),
      other: { sha256: "0".repeat(64), ...ask, name: undefined },
    };
    expect(await admin("PUT", "/v1/catalog", { ...body, tokens })).toMatchObject({
      status: 422,
      body: { errors: errors.map(({ pointer }) => ({ pointer: `/tokens/other${pointer}` })) },
    });
    expect((await admin("GET", "/v1/catalog")).body).toEqual(body);
    await admin("DELETE", `/v1/tokens/${name}`);
  });
});

test("a token of the secret shares its name with none that a document has, over HTTP and the binding", async () => {
  const loopback = exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> };
  using bound = await loopback.Limiter({}).catalog();
  const catalog = bound as unknown as CatalogTarget;
  const { body: before } = await admin("GET", "/v1/catalog");
  const tokens = { full: { sha256: "0".repeat(64), scopes: ["limit", "admin"] } };
  const detail = 'tokens.full has the name "full": must be a name that no token of the secret API_TOKENS has';
  for (const query of ["", "?dryRun=true"])
    expect(await admin("PUT", `/v1/catalog${query}`, { ...before, tokens })).toMatchObject({
      status: 422,
      body: { errors: [{ pointer: "/tokens/full", detail }] },
    });
  const { version, value } = await catalog.read();
  for (const conditions of [{ ifMatch: version }, { dryRun: true }]) {
    const thrown = await catalog.write({ ...value, tokens }, conditions).then(
      () => undefined,
      (error: Error) => error,
    );
    expect(thrown?.message).toContain(detail);
  }
  expect((await admin("GET", "/v1/catalog")).body).toEqual(before);
});

describe("the whole catalog", () => {
  test("is written back as it was read, and what is not in it is gone", async () => {
    const [kept, gone] = [freshKey(), freshKey()];
    await admin("PUT", overrideAt("slow", kept), { limit: 50 });
    const read = await admin("GET", "/v1/catalog");
    await admin("PUT", overrideAt("slow", gone), { limit: 60 });
    const stale = await admin("PUT", "/v1/catalog", read.body, {
      "if-match": read.headers.get("etag") ?? "",
    });
    expect(stale.status).toBe(412);
    expect((await admin("PUT", "/v1/catalog", read.body)).status).toBe(200);
    expect((await admin("GET", overrideAt("slow", gone))).status).toBe(404);
    expect((await admin("GET", overrideAt("slow", kept))).body).toMatchObject({ limit: 50 });
  });

  test("is refused as a whole when one thing in it is", async () => {
    const key = freshKey();
    const { body: before } = await admin("GET", "/v1/catalog");
    const bad = {
      policies: {},
      overrides: { slow: { [key]: { limit: 7 }, other: { limit: "many" } } },
      tokens: {},
    };
    const { status, body } = await admin("PUT", "/v1/catalog", bad);
    expect({ status, text: JSON.stringify(body) }).toMatchObject({
      status: 422,
      text: expect.stringMatching(/limit is/) as string,
    });
    expect((await admin("GET", "/v1/catalog")).body).toEqual(before);
  });
});

test("the service binding has the same calls", async () => {
  const key = freshKey();
  const loopback = exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> };
  using bound = await loopback.Limiter({}).catalog();
  // The runtime's own types lose what is in tables.
  const catalog = bound as unknown as CatalogTarget;
  expect(await catalog.putOverride("slow", key, { limit: 12 })).toMatchObject({ limit: 12, pattern: key });
  expect((await limit("slow", key)).body).toMatchObject({ limit: 12, override: key });
  const thrown = await catalog.putOverride("slow", key, { limt: 12 }).then(
    () => undefined,
    (error: Error) => error,
  );
  expect(thrown?.message).toMatch(/did you mean limit/);
  await catalog.deleteOverride("slow", key);
});

test("a binding without the scope admin reads policies over RPC, and nothing that concerns all", async () => {
  const loopback = exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> };
  using bound = await loopback.Limiter({ props: { scopes: ["limit"] } }).catalog();
  const catalog = bound as unknown as CatalogTarget;
  expect(await catalog.policy("slow")).toMatchObject({ policy: "slow", limit: 5 });
  const refused = [
    () => catalog.tokens(),
    () => catalog.read(),
    () => catalog.audit(),
    () => catalog.putOverride("slow", "a", { limit: 9 }),
    () => catalog.issueToken({ name: "a", scopes: ["admin"] }),
  ];
  for (const ask of refused) {
    const thrown = await ask().then(
      () => undefined,
      (error: Error) => error,
    );
    expect(thrown?.message).toMatch(/has no scope admin/);
  }
});
