/** How many commands a call of the script is, as Upstash bills them: the script's own, and each one inside it. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { PoolAnswer } from "../../../../durable-objects/pool/protocol.ts";
import { readPages } from "../../../support/docs.ts";
import { holdingOf, type Pool, type Pools, startPools } from "../../../support/pools.ts";

/** Of a million commands, in dollars. */
const PRICE = 2;
const BUCKET = { name: "rate", algorithm: "token-bucket", limit: 100, windowMs: 60_000, burst: 100 } as const;
const LOG = { name: "rate", algorithm: "sliding-log", limit: 100, windowMs: 60_000 } as const;
/** Without the test's clock, whose commands would count too. */
const NOW_MS = 0;

let pools: Pools;
beforeAll(async () => {
  pools = await startPools([], "");
});
afterAll(() => pools.stop());

async function counted(): Promise<number> {
  const info = await pools.client.info("commandstats");
  const calls = [...info.matchAll(/^cmdstat_(\S+):calls=(\d+)/gm)];
  return calls.reduce((sum, [, name, count]) => sum + (name === "info" ? 0 : Number(count)), 0);
}

const limit = (pool: Pool, cost = 1) => pool.call({ op: "limit", cost: [cost] }, NOW_MS);
const once = (pool: Pool) => pool.call({ op: "limit", cost: [1], request: "one" }, NOW_MS);
const hold = (pool: Pool) => pool.call({ op: "hold", id: "a", ttlMs: 60_000, cost: [1] }, NOW_MS);
const settle = (pool: Pool) => pool.call({ op: "settle", id: "a", used: [1] }, NOW_MS);
const refund = (pool: Pool) =>
  pool.call(
    { op: "refund", cost: [1], isNamed: true, request: "back", chargeName: "once", answerName: "back" },
    NOW_MS,
  );
const message = (pool: Pool, turn: number) =>
  pool.call({ op: "limit", holding: holdingOf({ holder: "eu", turn, wanted: [5] }) }, NOW_MS);

interface Counted {
  readonly rule: typeof BUCKET | typeof LOG;
  before?(pool: Pool): Promise<unknown>;
  call(pool: Pool): Promise<PoolAnswer>;
  readonly answer: object;
}

const rate = (success: boolean) => ({ rules: [{ success }] });
/** By the rows of the table in docs/costs.md. */
const CALLS: Readonly<Record<string, Counted>> = {
  "token bucket, `gcra`: admitted": { rule: BUCKET, before: limit, call: limit, answer: rate(true) },
  "sliding log: admitted, a key's first": { rule: LOG, call: limit, answer: rate(true) },
  "sliding log: admitted": { rule: LOG, before: limit, call: limit, answer: rate(true) },
  "denied, or `cost: 0`": {
    rule: BUCKET,
    before: limit,
    call: (pool) => limit(pool, 100),
    answer: rate(false),
  },
  "bucket, with an idempotency key": { rule: BUCKET, call: once, answer: rate(true) },
  "hold of a bucket": { rule: BUCKET, before: limit, call: hold, answer: { hold: { id: "a" } } },
  "its settlement": { rule: BUCKET, before: hold, call: settle, answer: rate(true) },
  "refund of a charge": { rule: BUCKET, before: once, call: refund, answer: rate(true) },
  "a region's message about a bucket": {
    rule: BUCKET,
    before: (pool) => message(pool, 1),
    call: (pool) => message(pool, 2),
    answer: { granted: { units: [5] } },
  },
};

const lines =
  readPages()
    .find(({ path }) => path === "docs/costs.md")
    ?.lines.join("\n") ?? "";
const ROWS = [...lines.matchAll(/^\| ([^|]+) \| (\d+) \| \$(\d+) \|$/gm)].map(
  ([, name = "", commands, dollars]) => ({ name, commands: Number(commands), dollars: Number(dollars) }),
);

test("docs/costs.md has these calls, and no other", () => {
  expect(ROWS.map(({ name }) => name)).toEqual(Object.keys(CALLS));
});

test.each(ROWS)("$name: $commands commands", async ({ name, commands, dollars }) => {
  const known = CALLS[name];
  if (known === undefined) throw new Error("the test knows no such call");
  const pool = pools.create([known.rule]);
  await known.before?.(pool);
  // A log's units of one millisecond are one run.
  await sleep(5);
  const from = await counted();
  const answered = await known.call(pool);
  expect([(await counted()) - from, PRICE * commands]).toEqual([commands, dollars]);
  expect(answered).toMatchObject(known.answer);
});

test("`cost: 0` is as many commands as a denial", async () => {
  const pool = pools.create([BUCKET]);
  await limit(pool);
  const from = await counted();
  await limit(pool, 0);
  expect((await counted()) - from).toBe(4);
});
