/** How isolates read a large catalog, by the real objects and the real Workers KV; and how large it may become. */
import { evictDurableObject } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import {
  ANY_SNAPSHOT,
  type CatalogChanges,
  type CatalogMethods,
  type SnapshotPage,
  type WantedPage,
} from "../../../../core/catalog/calls.ts";
import { PoliciesInForce } from "../../../../core/catalog/policies-in-force.ts";
import { SYSTEM_TIME } from "../../../../core/clock.ts";
import { deployed } from "../../../../durable-objects/deployment.ts";
import { CatalogReader } from "../../../../worker/bindings/catalog-reader.ts";
import type { SnapshotNamespace } from "../../../../worker/bindings/env.ts";
import { depth, inDeepRuns } from "../../../support/depth.ts";
import { call } from "../../../support/limiter.ts";
import { announcedSeed, seededRandom } from "../../../support/random.ts";

const { CATALOG, SNAPSHOTS: kv } = env as unknown as {
  readonly CATALOG: { getByName(name: string): CatalogMethods };
  readonly SNAPSHOTS: KVNamespace;
};
const stub = () => CATALOG.getByName("catalog");
const admin = (method: string, path: string, body?: unknown) =>
  call(path, { method, ...(body !== undefined && { body }) });
const put = async (pattern: string, fields: object) => {
  const path = `/v1/policies/slow/overrides/${encodeURIComponent(pattern)}`;
  return await admin("PUT", path, fields);
};
/** Characters of one, two and four bytes of UTF-8, which a page may cut in two. */
const patternOf = (each: number) => `${each % 2 === 0 ? "é" : "🚰"}${each}`;
const NOTE = "水".repeat(500);
const importOf = (overrides: number) => {
  const patterns = Array.from({ length: overrides }, (_, each) => [
    patternOf(each),
    { limit: 10 + each, burst: 10 + each, note: NOTE },
  ]);
  const slow = Object.fromEntries(patterns) as Record<string, object>;
  return admin("PUT", "/v1/catalog", { policies: {}, overrides: { slow }, tokens: {} });
};
const OVERRIDES = 1_500;

/** More changes than are sent with a snapshot, so that another one is made. */
async function changeMany(): Promise<void> {
  for (let each = 0; each < 300; each += 1) {
    const fields = { limit: 8 + each, burst: 8 + each };
    const write = { kind: "override", policy: "slow", pattern: "many", fields } as const;
    await stub().write({ by: "test", write });
  }
}

beforeEach(async () => {
  for (const { name } of (await kv.list()).keys) await kv.delete(name);
  await admin("PUT", "/v1/catalog", { policies: {}, overrides: {}, tokens: {} });
  expect((await importOf(OVERRIDES)).status).toBe(200);
});
afterEach(() => void vi.restoreAllMocks());

interface Reading {
  readonly snapshots?: SnapshotNamespace | undefined;
  /** Happens before each message to the object. */
  readonly before?: (message: number) => Promise<unknown>;
  readonly changes?: CatalogMethods["changes"];
}

/** A new isolate, which has read the catalog, and what it has asked the object for. */
async function isolate({ snapshots, before, changes }: Reading = {}) {
  const inForce = new PoliciesInForce(deployed);
  const asked: (WantedPage | undefined)[] = [];
  const seen: (number | undefined)[] = [];
  const limitOf = (key: string) => inForce.named.get("slow")?.overrides?.find(key, 0)?.rules[0].capacity;
  const reader = new CatalogReader({
    policies: inForce,
    time: SYSTEM_TIME,
    catalog: () => ({
      changes: async (since, wanted) => {
        asked.push(wanted);
        // Nothing that is half read is in force.
        seen.push(limitOf(patternOf(0)));
        await before?.(asked.length);
        return await (changes ?? ((...all) => stub().changes(...all)))(since, wanted);
      },
    }),
    snapshots,
    inBackground: () => undefined,
    onTokens: () => undefined,
  });
  await reader.ask();
  await vi.waitUntil(() => inForce.isComplete, { timeout: 30_000 });
  expect(new Set(seen)).toEqual(new Set([undefined]));
  const expectAll = () => {
    const limits = Array.from({ length: OVERRIDES }, (_, each) => limitOf(patternOf(each)));
    expect(limits).toEqual(limits.map((_, each) => 10 + each));
  };
  return { asked, limitOf, expectAll, inForce };
}

const isPage = (changes: CatalogChanges): boolean =>
  changes.snapshot !== undefined && "text" in changes.snapshot;
const anySnapshot = async () => await stub().changes(0, ANY_SNAPSHOT);
/** Lets an entry be written. Returns its key. */
async function written(): Promise<string> {
  let changes = await anySnapshot();
  await vi.waitUntil(async () => !isPage((changes = await anySnapshot())), { timeout: 30_000 });
  return changes.snapshot?.id ?? "";
}

test("a new isolate reads page after page, and has all of it", async () => {
  const { asked, expectAll } = await isolate();
  const { pages } = (await stub().changes(0, { id: "gone", page: 3 })).snapshot as SnapshotPage;
  expect(pages).toBeGreaterThan(3);
  // It may be sent to Workers KV first, which it has not.
  const wanted = asked.map((each) => each?.page).slice(-pages);
  expect(wanted).toEqual(Array.from({ length: pages }, (_, page) => page));
  expectAll();
});

test("it is read from storage once, however many isolates ask at once, and again after many changes", async () => {
  const ask = async () => {
    const asked = Array.from({ length: depth(20, 200) }, () => stub().changes(0, { id: "gone", page: 0 }));
    return [...new Set((await Promise.all(asked)).map(({ snapshot }) => snapshot?.id))];
  };
  const [first, ...others] = await ask();
  await put("changed", { limit: 1 });
  expect([others, await ask()]).toEqual([[], [first]]);
  await changeMany();
  const [then, ...more] = await ask();
  expect([more, then === first]).toEqual([[], false]);
});

test("whatever happens between its pages, it has all of one revision, and what came before its last message", async () => {
  const random = seededRandom(announcedSeed("changes between pages"));
  for (let each = 0; each < depth(1, 30); each += 1) {
    let last = 0;
    const change = async () => {
      last += 1;
      await put("changed", { limit: last, burst: last });
    };
    const before = async (message: number) => {
      if (message === 1) await change();
      const fate = random();
      if (fate < 0.25) await change();
      else if (fate < 0.4) await evictDurableObject(stub() as unknown as DurableObjectStub);
      else if (fate < 0.5 && message < 4) await changeMany();
    };
    const { limitOf, expectAll } = await isolate({ before });
    expectAll();
    expect(limitOf("changed")).toBe(last);
    await admin("DELETE", "/v1/policies/slow/overrides/changed");
  }
});

test("a snapshot is written to Workers KV once, and new isolates ask the object for its key and later changes", async () => {
  const id = await written();
  expect((await kv.list()).keys.map(({ name }) => name)).toEqual([id]);
  await put("later", { limit: 7, burst: 7 });
  await admin("DELETE", `/v1/policies/slow/overrides/${encodeURIComponent(patternOf(0))}`);
  await evictDurableObject(stub() as unknown as DurableObjectStub);
  const { asked, limitOf } = await isolate({ snapshots: kv });
  expect(asked).toEqual([ANY_SNAPSHOT]);
  expect([limitOf("later"), limitOf(patternOf(0)), limitOf(patternOf(1))]).toEqual([7, undefined, 11]);
  await changeMany();
  expect(await written()).not.toBe(id);
  const { limitOf: then } = await isolate({ snapshots: kv });
  expect([then("later"), then("many"), then(patternOf(1))]).toEqual([7, 307, 11]);
});

test("an entry that is missing, fails or does not come is read from the object", async () => {
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
  await kv.delete(await written());
  for (const snapshots of [
    undefined,
    kv,
    { get: () => Promise.reject(new Error("KV fails")) },
    { get: () => Promise.resolve("{ half") },
    { get: () => new Promise<never>(() => undefined) },
  ]) {
    const { asked, expectAll } = await isolate({ snapshots });
    expect(asked.length).toBeGreaterThan(3);
    expectAll();
  }
});

test("an isolate of the version before gets all of it at once, and an object of that version is understood", async () => {
  const everything = await stub().changes(0);
  expect(everything).not.toHaveProperty("snapshot");
  const texts: string[] = [];
  let wanted: WantedPage = { id: "gone", page: 0 };
  for (let pages = 1; texts.length < pages;) {
    const { snapshot } = await stub().changes(0, wanted);
    const { id, page, text, ...others } = snapshot as SnapshotPage;
    texts.push(text);
    pages = others.pages;
    wanted = { id, page: page + 1 };
  }
  expect(JSON.parse(texts.join(""))).toEqual(everything);
  const { asked, expectAll } = await isolate({ changes: (since) => stub().changes(since) });
  expect(asked).toEqual([ANY_SNAPSHOT]);
  expectAll();
});

inDeepRuns("the catalog grows until its document is as large as one that may be written", async () => {
  const MAX_BYTES = 8 * 2 ** 20;
  expect((await importOf(5_340)).status).toBe(200);
  let refused: Awaited<ReturnType<typeof put>> | undefined;
  for (let each = 0; refused === undefined; each += 1) {
    const answer = await put(`single:${each}`, { multiply: 2, note: NOTE });
    if (answer.status !== 200) refused = answer;
  }
  expect(refused.status).toBe(422);
  const size = /the catalog has (\d+) bytes as JSON with it: must have at most 8388608/.exec(
    JSON.stringify(refused.body),
  );
  const { body } = await admin("GET", "/v1/catalog");
  const { length } = new TextEncoder().encode(JSON.stringify(body));
  expect(length).toBeLessThanOrEqual(MAX_BYTES);
  // It counts the bytes that there are: the refused override has some 1,600.
  expect(Number(size?.[1]) - length).toBeGreaterThan(1_500);
  expect(Number(size?.[1]) - length).toBeLessThan(1_700);
  expect((await admin("PUT", "/v1/catalog?dryRun=true", body)).status).toBe(200);
  expect((await admin("DELETE", "/v1/policies/slow/overrides/single:0")).status).toBe(204);
  expect((await put("single:again", { multiply: 2, note: NOTE })).status).toBe(200);
});
