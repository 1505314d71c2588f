/** Many keys at once that nobody has asked for before, each with an object of its own, all in one process. */
import { randomBytes } from "node:crypto";
import { mkdirSync, readdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { giveAllBack, serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { makeState, removeState } from "../support/served.ts";

const LIMIT = 5;
const STARTS = 16;
const policies = {
  api: { algorithm: "token-bucket", limit: LIMIT, window: "1h" },
  slots: { algorithm: "concurrency", limit: LIMIT, ttl: "10m" },
};
const state = makeState();
let serving: Serving;
/** Leased before all tests, and released by the last one: then their objects have left memory. */
let kept: { readonly ids: readonly string[]; readonly atMs: number };
beforeAll(async () => {
  serving = await serve({
    stateDir: state,
    policies,
    apiTokens: JSON.stringify(TEST_TOKENS),
    objectBounds: JSON.stringify({ startsAtOnce: STARTS, inMemory: 2_000 }),
    onOutput: () => undefined,
  });
  const ids = await Promise.all([0, 1, 2, 3].map((index) => acquire(`kept ${index}`)));
  kept = { ids, atMs: Date.now() };
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

const send = async (method: string, path: string, body?: object) => {
  const response = await fetch(`${serving.url}/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(body && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return {
    status: response.status,
    body: (text === "" ? {} : JSON.parse(text)) as { lease?: { id: string } },
  };
};
const acquire = async (key: string): Promise<string> => {
  const { status, body } = await send("POST", "leases", { policy: "slots", key });
  return status === 429 ? await acquire(key) : (body.lease?.id ?? `no lease: ${status}`);
};

interface Answered {
  readonly status: number;
  readonly body: { readonly remaining?: number; readonly reason?: string; readonly detail?: string };
}

async function limit(key: string): Promise<Answered> {
  const response = await fetch(`${serving.url}/v1/limit`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "api", key }),
  });
  return { status: response.status, body: (await response.json()) as Answered["body"] };
}

test("of 400 first calls at once some are served and the others refused, none degraded; all can come again", async () => {
  await limit("hot");
  const keys = Array.from({ length: 400 }, (_, index) => `key ${index}`);
  const [hot, ...answers] = await Promise.all([limit("hot"), ...keys.map(limit)]);
  expect(hot.body).toMatchObject({ reason: "ok", remaining: LIMIT - 2 });
  const served = answers.filter(({ status }) => status === 200);
  const refused = answers.filter(({ status }) => status === 429);
  expect(served.length + refused.length).toBe(keys.length);
  expect(served.length).toBeGreaterThanOrEqual(STARTS);
  expect(refused.length).toBeGreaterThan(0);
  for (const { body } of served) expect(body).toMatchObject({ reason: "ok", remaining: LIMIT - 1 });
  for (const { body } of refused) expect(body.detail).toContain("calls at once that start an object");
  // One by one they all pass, and nothing was taken of those that were refused.
  for (const [index, key] of keys.slice(0, 60).entries()) {
    let again = await limit(key);
    while (again.status === 429) again = await limit(key);
    const before = answers[index]?.status === 200 ? 2 : 1;
    expect(again.body).toMatchObject({ reason: "ok", remaining: LIMIT - before });
  }
}, 120_000);

test("a server that ends meets files that go while it looks at them", async () => {
  // A link to nothing is listed, and is not there: as the log of an object that is dropped meanwhile.
  const odd = makeState();
  const folder = join(odd, "weir-LimiterObject");
  mkdirSync(folder);
  symlinkSync(join(odd, "nothing"), join(folder, `${"a".repeat(64)}.sqlite-wal`));
  await giveAllBack([serving.url], odd, "no secret");
  removeState(odd);
});

describe("calls that end something", () => {
  const FLOOD = 400;
  const openFiles = () => readdirSync(`/proc/${serving.process.pid}/fd`).length;
  const forged = (key: string) =>
    `lease_${Buffer.from(`slots/${key}`).toString("base64url")}.${randomBytes(16).toString("base64url")}`;
  const countedBy = (answers: readonly { readonly status: number }[], status: number) =>
    answers.filter((each) => each.status === status).length;

  test("forged ids of keys that nobody asked for start as few objects as first calls, and free no slot", async () => {
    const id = await acquire("held");
    const keys = Array.from({ length: FLOOD }, () => randomBytes(8).toString("hex"));
    const flood = keys.map((key) => send("DELETE", `leases/${forged(key)}`));
    const [mine, ...answers] = await Promise.all([send("DELETE", `leases/${forged("held")}`), ...flood]);
    expect(mine.status).toBe(404);
    expect(countedBy(answers, 404)).toBeGreaterThanOrEqual(STARTS);
    expect(countedBy(answers, 404)).toBeLessThan(FLOOD / 2);
    expect(countedBy(answers, 404) + countedBy(answers, 429)).toBe(FLOOD);
    expect((await send("DELETE", `leases/${id}`)).status).toBe(204);
  });

  test("units that are given back of keys that nobody asked for start as few", async () => {
    const before = openFiles();
    const flood = Array.from({ length: FLOOD }, () => {
      const returned = [{ key: randomBytes(8).toString("hex"), holder: "h", turn: 1, used: { api: 1 } }];
      return send("POST", "reservations", {
        protocol: 1,
        calls: [{ giveBack: { policy: "api", returned } }],
      });
    });
    await Promise.all(flood);
    // Each object has three files, and each call a connection.
    expect(openFiles() - before).toBeLessThan(FLOOD + (3 * FLOOD) / 2);
  });

  test("what is released truly finds room beside a flood of forged ids, though its object has to start", async () => {
    // Nobody asks for these objects, so they leave memory.
    await sleep(Math.max(0, kept.atMs + 14_000 - Date.now()));
    const keys = Array.from({ length: FLOOD }, () => randomBytes(8).toString("hex"));
    const flood = Promise.all(keys.map((key) => send("DELETE", `leases/${forged(key)}`)));
    const released = await Promise.all(kept.ids.map((id) => send("DELETE", `leases/${id}`)));
    expect(released.map(({ status }) => status)).toEqual(kept.ids.map(() => 204));
    expect(countedBy(await flood, 429)).toBeGreaterThan(0);
  });
});
