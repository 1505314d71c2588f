/** What keys that nobody uses leave on disk, on plain workerd. */
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { claimId } from "../../core/protocol/names.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth, inDeepRuns } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** It takes long, most of it waiting. */

const PAGE_BYTES = 4_096;
const patient = { deadlineMs: 20_000 };
const policies = {
  alone: { algorithm: "token-bucket", limit: 5, window: "30d", ...patient },
  shared: { algorithm: "token-bucket", limit: 5, window: "30d", objects: 4, ...patient },
  brief: { algorithm: "token-bucket", limit: 100, window: "1s", objects: 4, ...patient },
  slots: { algorithm: "concurrency", limit: 5, objects: 4, ...patient },
};

let state: string;
let serving: Serving;
beforeEach(async () => {
  state = makeState();
  serving = await serveBundle(state, policies);
});
afterEach(async () => {
  await serving.stop();
  removeState(state);
});

async function call(path: string, body?: object, method = "POST"): Promise<Record<string, unknown>> {
  const response = await fetch(serving.url + path, {
    method,
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
}

/** The sizes of all limiter objects' files, their logs included. */
function files(): number[] {
  return (
    readdirSync(state, { recursive: true, encoding: "utf8" })
      .filter((path) => /-LimiterObject\/[0-9a-f]{64}\.sqlite(-wal)?$/.test(path))
      // A log may go meanwhile.
      .map((path) => statSync(join(state, path), { throwIfNoEntry: false })?.size ?? 0)
      .filter((bytes) => bytes > 0)
  );
}

/** Looks at a key in every way that takes nothing. */
function look(policy: string, slots: string, key: string): Promise<unknown> {
  const forged = claimId("lease", { policy: slots, key }, "A".repeat(22));
  const hold = claimId("hold", { policy, key }, "A".repeat(22));
  return Promise.all([
    call("/v1/limit", { policy, key, cost: 0 }),
    call("/v1/limit", { policy, key, cost: 6 }),
    call(`/v1/policies/${policy}/keys/${key}`, undefined, "GET"),
    call(`/v1/leases/${forged}`, undefined, "DELETE"),
    call(`/v1/holds/${hold}/settle`, { used: 1 }),
  ]);
}

test("looks at keys that share objects leave a page for each object, and no more", async () => {
  for (let key = 0; key < depth(80, 200); key += 1) await look("shared", "slots", `key-${key}`);
  await serving.stop();
  expect(files()).toEqual(Array.from({ length: 8 }, () => PAGE_BYTES));
});

test("looks at keys with an object each leave a page each, until the next start; what is stored stays", async () => {
  await call("/v1/limit", { policy: "alone", key: "used", cost: 2 });
  for (let key = 0; key < 50; key += 1) await look("alone", "slots", `key-${key}`);
  await serving.stop();
  expect(files().length).toBeGreaterThan(50);
  serving = await serveBundle(state, policies);
  expect(files()).toHaveLength(1);
  expect(await call("/v1/limit", { policy: "alone", key: "used", cost: 0 })).toMatchObject({ remaining: 3 });
});

test("what an object had not written to its file when it was killed stays", async () => {
  await call("/v1/limit", { policy: "alone", key: "used", cost: 2 });
  await serving.stop("SIGKILL");
  serving = await serveBundle(state, policies);
  expect(await call("/v1/limit", { policy: "alone", key: "used", cost: 0 })).toMatchObject({ remaining: 3 });
});

inDeepRuns(
  "after a flood of keys that came once the disk is as before",
  async () => {
    for (let batch = 0; batch < 60; batch += 1)
      await Promise.all(
        Array.from({ length: 50 }, (_, each) =>
          call("/v1/limit", { policy: "brief", key: `key-${batch}-${each}` }),
        ),
      );
    expect(files().reduce((sum, bytes) => sum + bytes, 0)).toBeGreaterThan(4 * PAGE_BYTES);
    // One row says it of all keys. It matters for 45 s, and is forgotten three minutes later, when the alarm comes.
    const untilMs = Date.now() + 320_000;
    let left = files();
    while (Date.now() < untilMs && left.some((bytes) => bytes !== PAGE_BYTES)) {
      await sleep(500);
      left = files();
    }
    expect(left).toEqual(Array.from({ length: 4 }, () => PAGE_BYTES));
  },
  400_000,
);
