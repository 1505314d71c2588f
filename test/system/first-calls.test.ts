/** Many keys at once that nobody has asked for before, each with an object of its own, all in one process. */
import { mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { giveAllBack } from "../../scripts/stopping.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { makeState, removeState } from "../support/served.ts";

const LIMIT = 5;
const STARTS = 16;
const policies = { api: { algorithm: "token-bucket", limit: LIMIT, window: "1h" } };
const state = makeState();
let serving: Serving;
beforeAll(async () => {
  serving = await serve({
    stateDir: state,
    policies,
    apiTokens: JSON.stringify(TEST_TOKENS),
    objectBounds: JSON.stringify({ startsAtOnce: STARTS, inMemory: 2_000 }),
    onOutput: () => undefined,
  });
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

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
