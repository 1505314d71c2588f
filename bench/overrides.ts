/**
 * What 10,000 overrides cost an isolate: a hot decision with and without them, in rounds that take turns, and their memory;
 * then what they cost a request, and new isolates. `npm run bench:overrides`.
 */
import type { CatalogChanges } from "../core/catalog/calls.ts";
import { PoliciesInForce } from "../core/catalog/policies-in-force.ts";
import { parseDeployment } from "../core/policies/parse-policies.ts";
import type { Principal } from "../worker/auth/tokens.ts";
import { findTarget } from "../worker/calls/limits.ts";
import { printHerd } from "./herd.ts";
import { printServed } from "./overrides-served.ts";

const TABLE = { algorithm: "token-bucket", limit: 1_000_000, window: "1s" };
const OVERRIDES = 10_000;
const ROUNDS = 40;
const CALLS = 20_000;
const EVERYBODY = { title: "bench", id: "{}", bounds: {}, scopes: ["limit"] } as unknown as Principal;

function inForce(count: number): PoliciesInForce {
  const { policies, tables, regions } = parseDeployment({ policies: { api: TABLE } });
  const made = new PoliciesInForce({ policies, tables, regions });
  const overrides = Array.from({ length: count }, (_, each) => ({
    policy: "api",
    // One in ten is a pattern.
    pattern: each % 10 === 0 ? `team:${each}:*` : `customer:${each}`,
    fields: { multiply: 2 + (each % 7) },
  }));
  const changes: CatalogChanges = {
    revision: 1,
    isWhole: true,
    policies: count === 0 ? [] : [{ name: "api", version: 1 }],
    overrides,
    tokens: [],
  };
  made.apply(changes);
  return made;
}

/** Nanoseconds for finding what a call is about. */
function timed(policies: PoliciesInForce, key: (call: number) => string): number {
  const client = { policies } as unknown as Parameters<typeof findTarget>[0];
  const keys = Array.from({ length: CALLS }, (_, call) => key(call));
  const begin = process.hrtime.bigint();
  for (const each of keys) findTarget(client, EVERYBODY, { policy: "api", key: each });
  return Number(process.hrtime.bigint() - begin) / CALLS;
}

const median = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? 0;

globalThis.gc?.();
const before = process.memoryUsage().heapUsed;
const many = inForce(OVERRIDES);
globalThis.gc?.();
const bytes = process.memoryUsage().heapUsed - before;
const none = inForce(0);
const ways: Record<string, readonly [PoliciesInForce, (call: number) => string]> = {
  "no overrides": [none, (call) => `user:${call % 1_000}`],
  "10,000 overrides, a key without one": [many, (call) => `user:${call % 1_000}`],
  "10,000 overrides, one hot key with one": [many, () => "customer:7"],
  "10,000 overrides, 1,000 keys with one": [many, (call) => `customer:${1 + 10 * (call % 900)}`],
  "10,000 overrides, a key of a pattern": [many, (call) => `team:${10 * (call % 900)}:anybody`],
};
const times = Object.fromEntries(Object.keys(ways).map((name) => [name, [] as number[]]));
for (let round = 0; round < ROUNDS; round += 1)
  for (const [name, [policies, key]] of Object.entries(ways)) times[name]?.push(timed(policies, key));
for (const [name, all] of Object.entries(times)) console.log(`${name}: ${median(all).toFixed(0)} ns`);
console.log(`memory of ${OVERRIDES} overrides, before any is used: ${(bytes / 2 ** 20).toFixed(1)} MiB`);
await printServed();
await printHerd();
