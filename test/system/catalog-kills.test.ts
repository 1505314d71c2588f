/** The process is killed while two admins write and a large document is imported. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { announcedSeed, seededRandom, whole } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const POLICIES = { plan: { algorithm: "token-bucket", limit: 100, window: "30d", deadlineMs: 10_000 } };
const KILLS = 6;
const IMPORTED = 2_000;
/** An import takes some 200 ms. */
const MAX_MS = 400;

const random = seededRandom(announcedSeed("kills of the catalog"));
const state = makeState();
let serving: Serving;
const serve = async () => (serving = await serveBundle(state, POLICIES, { isolates: 2 }));
beforeAll(serve);
afterAll(async () => {
  await serving.stop("SIGKILL");
  removeState(state);
});

interface Answered {
  readonly status: number;
  readonly version: number;
  readonly body: Record<string, unknown>;
}

async function call(
  isolate: number,
  method: string,
  path: string,
  body?: object,
  headers: Readonly<Record<string, string>> = {},
): Promise<Answered> {
  const response = await fetch(`${serving.urls[isolate] ?? ""}${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json", ...headers },
    ...(body && { body: JSON.stringify(body) }),
  });
  const version = Number(response.headers.get("etag")?.replaceAll('"', ""));
  return { status: response.status, version, body: (await response.json()) as Record<string, unknown> };
}

const overrideAt = (pattern: string) => `/v1/policies/plan/overrides/${encodeURIComponent(pattern)}`;

/** Writes one override after the other until the process is gone. Returns the versions that were acknowledged. */
async function writeUntilKilled(isolate: number, name: string): Promise<Map<string, number>> {
  const acknowledged = new Map<string, number>();
  for (let each = 0; ; each += 1) {
    const pattern = `${name}:${each}`;
    const written = await call(isolate, "PUT", overrideAt(pattern), {
      limit: 1 + each,
      burst: 1 + each,
    }).catch(() => undefined);
    if (written === undefined) return acknowledged;
    expect(written.status).toBe(200);
    acknowledged.set(pattern, written.version);
  }
}

/** The overrides there are, and the catalog's version. */
async function overridesNow(): Promise<{ readonly names: ReadonlySet<string>; readonly version: number }> {
  const { body, version } = await call(0, "GET", "/v1/catalog");
  const { plan = {} } = body["overrides"] as Record<string, Record<string, object>>;
  return { names: new Set(Object.keys(plan)), version };
}

test("an import is there as a whole or not at all, what was acknowledged is there, and versions never go back", async () => {
  let latest = 0;
  const outcomes = new Set<string>();
  for (let kill = 0; kill < KILLS; kill += 1) {
    const imported = Array.from({ length: IMPORTED }, (_, each) => [
      `import-${kill}:${each}`,
      { multiply: 2 },
    ]);
    const document = {
      policies: {},
      overrides: { plan: Object.fromEntries(imported) as object },
      tokens: {},
    };
    const writing = [writeUntilKilled(0, `first-${kill}`), writeUntilKilled(1, `second-${kill}`)];
    await sleep(whole(random, 30));
    const importing = call(1, "PUT", "/v1/catalog", document).catch(() => undefined);
    await sleep(whole(random, MAX_MS));
    await serving.stop("SIGKILL");
    const acknowledged = (await Promise.all(writing)).flatMap((each) => [...each]);
    const answer = await importing;
    await serve();

    const { names, version } = await overridesNow();
    const there = [...names].filter((name) => name.startsWith(`import-${kill}:`));
    expect([0, IMPORTED]).toContain(there.length);
    if (answer !== undefined) expect(there).toHaveLength(IMPORTED);
    outcomes.add(there.length === 0 ? "not at all" : "as a whole");
    // What was there when the import was written has gone with it.
    const last =
      there.length === 0 ? 0 : (await call(0, "GET", overrideAt(`import-${kill}:${IMPORTED - 1}`))).version;
    for (const [pattern, written] of acknowledged)
      expect([pattern, names.has(pattern)]).toEqual([pattern, written > last]);
    latest = Math.max(latest, last, ...acknowledged.map(([, written]) => written));
    expect(version).toBeGreaterThanOrEqual(latest);
    const next = await call(0, "PUT", overrideAt("next"), { multiply: 2 + kill });
    expect(next.version).toBeGreaterThan(latest);
    latest = next.version;
  }
  console.log(`imports that were killed are there ${[...outcomes].join(" and ")}`);
});

test("of two admins who change what both have read, one wins each time", async () => {
  let { version } = await call(0, "PUT", overrideAt("raced"), { limit: 1, burst: 1 });
  for (let round = 0; round < 25; round += 1) {
    const put = (isolate: number) => {
      const figure = 2 + 2 * round + isolate;
      const tag = { "if-match": `"${version}"` };
      return call(isolate, "PUT", overrideAt("raced"), { limit: figure, burst: figure }, tag);
    };
    const answered = await Promise.all(round % 2 === 0 ? [put(0), put(1)] : [put(1), put(0)]);
    const [won, ...others] = answered.filter(({ status }) => status === 200);
    expect(answered.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 412]);
    expect(others).toEqual([]);
    expect(won?.version).toBeGreaterThan(version);
    version = won?.version ?? 0;
    expect((await call(0, "GET", overrideAt("raced"))).body).toMatchObject({
      limit: won?.body["limit"],
      version,
    });
  }
});
