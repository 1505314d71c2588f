/** Listing and counting the keys of a policy. */
import { runInDurableObject } from "cloudflare:test";
import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { LimiterObject } from "../../../durable-objects/limiter-object.ts";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { acquire, call, freshKey, limit, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

interface Listed {
  readonly key: string;
  readonly remaining: number;
}

const list = (policy: string, query = "") => call(`/v1/policies/${policy}/keys${query}`);
const count = (policy: string, query = "") => call(`/v1/policies/${policy}/key-count${query}`);
const keysIn = ({ body }: Called) => body["keys"] as readonly Listed[];

/** All keys, page by page. */
async function all(policy: string, fields: Record<string, string> = {}): Promise<readonly Listed[]> {
  const keys: Listed[] = [];
  for (let cursor: string | undefined = ""; cursor !== undefined;) {
    const query = new URLSearchParams({ ...fields, ...(cursor !== "" && { cursor }) });
    const page = await list(policy, `?${query.toString()}`);
    expect(page.status).toBe(200);
    expect(keysIn(page).length).toBeLessThanOrEqual(Number(fields["limit"] ?? 100));
    keys.push(...keysIn(page));
    cursor = page.body["cursor"] as string | undefined;
  }
  return keys;
}
const names = (keys: readonly Listed[]) => keys.map(({ key }) => key);

/** Bytes before which keys are ordered in one way by UTF-16 and in another by UTF-8, and what SQL may stumble over. */
const HARD = ["\uFF5E", "💧", "\u0000", "a\u0000b", "%", "_", "'", '"', "é", "\u{10FFFF}"];

test("every page size lists every key once, and no other, with what a look at it says", async () => {
  const prefix = freshKey("listed");
  const expected = [
    ...Array.from({ length: 40 }, (_, index) => `${prefix}:${index}`),
    ...HARD.map((text) => `${prefix}:${text}`),
    prefix,
  ];
  for (const [index, key] of expected.entries()) await limit("shared", key, { cost: 1 + (index % 5) });
  for (const size of [1, 7, 100, 1_000]) {
    const found = await all("shared", { prefix, limit: String(size) });
    expect(names(found).toSorted()).toEqual(expected.toSorted());
    const remaining = new Map(found.map((each) => [each.key, each.remaining]));
    for (const [index, key] of expected.entries()) expect(remaining.get(key)).toBe(4 - (index % 5));
  }
  expect((await count("shared", `?prefix=${prefix}`)).body).toEqual({ count: expected.length });
  const total = (await count("shared")).body["count"];
  expect(total).toBe((await all("shared")).length);
  expect(Number(total)).toBeGreaterThanOrEqual(expected.length);
});

test("a prefix is compared byte by byte, and is nothing but a prefix", async () => {
  const prefix = freshKey("pre");
  const inside = HARD.map((text) => `${prefix}${text}`);
  const outside = [`${prefix.slice(0, -1)}!`, `${prefix.slice(0, -1)}~`, `x${prefix}`];
  for (const key of [...inside, ...outside]) await limit("shared", key);
  for (const text of [...HARD, ""]) {
    const wanted = inside.filter((key) => key.startsWith(`${prefix}${text}`));
    const found = await all("shared", { prefix: `${prefix}${text}` });
    expect(names(found).toSorted()).toEqual(wanted.toSorted());
    const query = new URLSearchParams({ prefix: `${prefix}${text}` });
    const counted = await count("shared", `?${query.toString()}`);
    expect(counted.body).toEqual({ count: wanted.length });
  }
});

test("in one object keys come in the order of their bytes, and a page goes on after the last one", async () => {
  const prefix = freshKey("ordered");
  for (const text of HARD) await limit("crowd", `${prefix}${text}`);
  const bytes = (key: string) =>
    [...new TextEncoder().encode(key)].map((byte) => byte.toString(16).padStart(2, "0"));
  const found = names(await all("crowd", { prefix, limit: "3" })).map((key) => bytes(key).join(""));
  expect(found).toEqual(HARD.map((text) => bytes(`${prefix}${text}`).join("")).toSorted());
});

test("what is listed is what is stored: a key that was reset, or only looked at, is not", async () => {
  const prefix = freshKey("stored");
  const [taken, gone, seen, leased] = ["taken", "gone", "seen", "leased"].map(
    (name) => `${prefix}:${name}`,
  ) as [string, string, string, string];
  await limit("shared", taken, { cost: 2 });
  await limit("shared", gone);
  await limit("shared", seen, { cost: 0 });
  await call(`/v1/policies/shared/keys/${encodeURIComponent(gone)}`, { method: "DELETE" });
  expect(await all("shared", { prefix })).toEqual([
    {
      key: taken,
      limit: 5,
      remaining: 3,
      resetAfterMs: expect.any(Number),
      outstanding: 0,
      holds: 0,
      leases: 0,
    },
  ]);
  await objectOf("shared", taken).evict();
  expect(names(await all("shared", { prefix }))).toEqual([taken]);
  await acquire("shared-export", leased);
  expect(await all("shared-export", { prefix })).toMatchObject([
    { key: leased, limit: 2, remaining: 1, outstanding: 1, leases: 1 },
  ]);
});

test("units that isolates hold are outstanding in the list", async () => {
  const key = freshKey("hot");
  for (let calls = 0; calls < 6; calls += 1) await limit("crowd", key);
  const [listed] = await all("crowd", { prefix: key });
  expect(listed).toMatchObject({ key, outstanding: expect.any(Number) });
  const { outstanding, remaining } = listed as Listed & { outstanding: number };
  expect(outstanding).toBeGreaterThan(0);
  expect(remaining).toBeLessThan(1_000_000 - outstanding);
});

test("more objects than one answer covers are counted and listed by going on", async () => {
  const keys = Array.from({ length: 12 }, () => freshKey("wide"));
  for (const key of keys) await limit("wide", key);
  const first = await count("wide");
  expect(first.body).toMatchObject({ cursor: expect.any(String) });
  const rest = await count("wide", `?cursor=${String(first.body["cursor"])}`);
  expect(rest.body).not.toHaveProperty("cursor");
  expect(Number(first.body["count"]) + Number(rest.body["count"])).toBe(12);
  // A page that met no key says where to go on.
  const page = await list("wide");
  expect(keysIn(page).length).toBeLessThan(12);
  expect(page.body["cursor"]).toEqual(expect.any(String));
  expect(names(await all("wide")).toSorted()).toEqual(keys.toSorted());
});

test("a token sees the keys with its own prefix, and may narrow but not leave it", async () => {
  const limiter = (exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> }).Limiter;
  const tenant = freshKey("tenant");
  const props = { name: "list", scopes: ["admin"], policies: ["shared"], keyPrefix: `${tenant}:` };
  for (const key of [`${tenant}:a`, `${tenant}:b`, `${tenant}-other`]) await limit("shared", key);
  const bound = limiter({ props });
  expect(names((await bound.keys({ policy: "shared" })).keys).toSorted()).toEqual([
    `${tenant}:a`,
    `${tenant}:b`,
  ]);
  expect(await bound.countKeys({ policy: "shared" })).toEqual({ count: 2 });
  expect(names((await bound.keys({ policy: "shared", prefix: `${tenant}:b` })).keys)).toEqual([
    `${tenant}:b`,
  ]);
  for (const prefix of [tenant, "x"])
    expect(await thrownBy(() => bound.keys({ policy: "shared", prefix }))).toMatchObject({ status: 403 });
  expect(await thrownBy(() => bound.countKeys({ policy: "crowd" }))).toMatchObject({ status: 403 });
});

/** What a call throws. An RPC promise that is only half awaited would count as an unhandled rejection too. */
async function thrownBy(asked: () => Promise<unknown>): Promise<unknown> {
  try {
    return await asked();
  } catch (error) {
    return error;
  }
}

test("over the binding pages go on too, and props name the policy", async () => {
  const limiter = (exports as unknown as { Limiter: (options: object) => Service<typeof Limiter> }).Limiter;
  const prefix = freshKey("bound");
  for (const name of ["a", "b", "c"]) await limit("shared", `${prefix}:${name}`);
  const bound = limiter({ props: { policy: "shared" } });
  const found: string[] = [];
  let cursor: string | undefined;
  do {
    const page = await bound.keys({ prefix, limit: 1, ...(cursor !== undefined && { cursor }) });
    found.push(...names(page.keys));
    ({ cursor } = page);
  } while (cursor !== undefined);
  expect(found.toSorted()).toEqual([`${prefix}:a`, `${prefix}:b`, `${prefix}:c`]);
});

test("only the scope admin lists and counts", async () => {
  for (const token of [TOKENS.limit, TOKENS.refund])
    for (const path of ["keys", "key-count"])
      expect((await call(`/v1/policies/shared/${path}`, { token })).status).toBe(403);
  expect((await call("/v1/policies/shared/keys", { token: TOKENS.admin })).status).toBe(200);
});

test("a policy with an object for each key cannot list them, and says what to do", async () => {
  for (const asked of [list("slow"), count("slow")]) {
    const { status, body } = await asked;
    expect(status).toBe(422);
    expect(body["errors"]).toEqual([
      { pointer: "/policy", detail: expect.stringMatching(/"slow".*object for each key.*set objects/) },
    ]);
  }
});

test("bad input is refused, and names the field", async () => {
  const fields = async (query: string) => {
    const { status, body } = await list("shared", query);
    expect(status).toBe(422);
    return (body["errors"] as { pointer: string }[]).map(({ pointer }) => pointer);
  };
  expect(await fields("?limit=0")).toEqual(["/limit"]);
  expect(await fields("?limit=1001")).toEqual(["/limit"]);
  expect(await fields("?limit=x")).toEqual(["/limit"]);
  expect(await fields("?prefix=")).toEqual(["/prefix"]);
  expect(await fields("?cursor=x")).toEqual(["/cursor"]);
  expect(await fields("?curser=x")).toEqual(["/curser"]);
  const prefix = freshKey("cut");
  for (const name of ["a", "b", "c", "d", "e", "f"]) await limit("crowd", `${prefix}:${name}`);
  const { body } = await list("crowd", `?limit=1&prefix=${prefix}`);
  expect(await fields(`?cursor=${String(body["cursor"])}&prefix=other`)).toEqual(["/cursor"]);
  expect((await list("nowhere")).status).toBe(404);
  expect((await call("/v1/policies/shared/keys", { method: "DELETE" })).headers.get("allow")).toBe(
    "GET, HEAD",
  );
  expect((await call("/v1/policies/shared/key-count", { method: "HEAD" })).status).toBe(200);
});

test("an object that does not answer is said, instead of a list or a count that lacks keys", async () => {
  const key = freshKey("broken");
  await acquire("shared-export", key);
  await runInDurableObject(objectOf("shared-export", key).stub, (_: LimiterObject, state) => {
    state.storage.sql.exec("DROP TABLE journal; CREATE TABLE journal (broken TEXT)");
  });
  for (const asked of [list("shared-export"), count("shared-export")])
    expect((await asked).body).toMatchObject({ status: 503, type: "urn:weir:problem:unavailable" });
});
