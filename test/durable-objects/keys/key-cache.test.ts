/** What the object's memory may take: about 32 MiB of states, names and claims, and 20,000 keys. */
import { beforeEach, describe, expect, test } from "vitest";
import type { Account } from "../../../core/accounts/hold.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { KeyCache, MAX_KEYS } from "../../../durable-objects/keys/key-cache.ts";
import type { KeyState } from "../../../durable-objects/keys/key-state.ts";
import { KeyStore } from "../../../durable-objects/keys/key-store.ts";
import { CLAIM_BYTES, type Claim } from "../../../durable-objects/storage/records.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { Database } from "../../simulation/database.ts";

const policies = parsePolicies({
  bucket: { algorithm: "token-bucket", limit: 5, window: "30d" },
  log: { algorithm: "sliding-log", limit: 100_000, window: "30d" },
  slots: { algorithm: "concurrency", limit: 10_000 },
});
const NOW_MS = 1_000_000;
const MAX_BYTES = 32 * 2 ** 20;

let cache: KeyCache;
let store: KeyStore;

beforeEach(() => {
  const storage = new Storage(new Database().storage);
  cache = new KeyCache(storage);
  store = new KeyStore(policies, storage, cache, () => undefined);
});

/** The only rule of a policy. */
function ruleOf(policy: string): Rule {
  const rule = policies.get(policy)?.rules[0];
  if (rule === undefined) throw new Error(`no policy ${policy}`);
  return rule;
}

/** A log with so many units, each at an instant of its own. */
function logOf(units: number): Account {
  const rule = ruleOf("log");
  let state: unknown;
  for (let unit = 0; unit < units; unit += 1)
    state = rule.algorithm.debit(rule.config, state, NOW_MS - units + unit, 1);
  return { state, holds: [] };
}

/** Gives a key this log, and returns about how many bytes of memory it takes. */
function fill(keyState: KeyState, log: Account): number {
  store.commit(keyState, { accounts: [log] }, NOW_MS);
  return keyState.bytes;
}

describe("large states leave when there are too many", () => {
  const large = logOf(40_000);

  test("however many small keys came before", () => {
    for (let key = 0; key < 5_000; key += 1) {
      const keyState = store.open("bucket", `small ${key}`, NOW_MS);
      store.commit(keyState, { accounts: [{ state: spent(), holds: [] }] }, NOW_MS);
    }
    let bytes = 0;
    for (let key = 0; key < 60; key += 1) bytes = fill(store.open("log", `large ${key}`, NOW_MS), large);
    expect(bytes).toBeGreaterThan(MAX_BYTES / 60);
    // The small ones are not what takes room: they stay.
    expect(cache.size).toBeGreaterThan(5_000);
    expect(cache.size).toBeLessThanOrEqual(5_000 + MAX_BYTES / bytes + 1);
  });

  test("also when they grow while they are in memory, and no key is loaded", () => {
    const states = Array.from({ length: 60 }, (_, key) => store.open("log", `grows ${key}`, NOW_MS));
    const small = logOf(10);
    for (const keyState of states) fill(keyState, small);
    expect(cache.size).toBe(60);
    for (const key of states.keys()) fill(store.open("log", `grows ${key}`, NOW_MS), large);
    const bytes = states.at(-1)?.bytes ?? 0;
    // Keys that were not filled yet may have left, so each was opened anew.
    expect(cache.size * bytes).toBeLessThanOrEqual(MAX_BYTES + 2 * bytes + 60_000);
  });

  test("all at once, when those leave that somebody waited for", () => {
    const states = Array.from({ length: 60 }, (_, key) => store.open("log", `waits ${key}`, NOW_MS));
    const unpins = states.map((keyState) => keyState.pin());
    for (const keyState of states) fill(keyState, large);
    expect(cache.size).toBe(60);
    for (const unpin of unpins) unpin();
    store.open("bucket", "next", NOW_MS);
    expect(cache.size).toBeLessThanOrEqual(MAX_BYTES / (states[0]?.bytes ?? 0) + 1);
  });

  test("but not the key that a call is changing, though it is the largest", () => {
    const keyState = store.open("slots", "largest", NOW_MS);
    for (let each = 0; each < 2; each += 1) {
      store.commit(keyState, { accounts: keyState.accounts, put: leases(70_000) }, NOW_MS);
      expect(keyState.bytes).toBeGreaterThan(MAX_BYTES);
      expect(store.open("slots", "largest", NOW_MS)).toBe(keyState);
    }
  });
});

test("claims are weighed, and names", () => {
  const claims = 2_000;
  for (let key = 0; key < 60; key += 1) {
    const keyState = store.open("slots", `key ${key}`, NOW_MS);
    store.commit(keyState, { accounts: keyState.accounts, put: leases(claims) }, NOW_MS);
    expect(keyState.bytes).toBeGreaterThanOrEqual(claims * CLAIM_BYTES);
  }
  expect(cache.size).toBeLessThanOrEqual(MAX_BYTES / (claims * CLAIM_BYTES) + 1);
  const named = store.open("bucket", "k".repeat(512), NOW_MS);
  expect(named.bytes).toBeGreaterThanOrEqual(512);
});

test("no more keys than there are places, except those that somebody waits for", () => {
  const pinned = Array.from({ length: 10 }, (_, key) => store.open("bucket", `pinned ${key}`, NOW_MS));
  for (const keyState of pinned) keyState.pin();
  for (let key = 0; key < MAX_KEYS + 100; key += 1) store.open("bucket", `key ${key}`, NOW_MS);
  expect(cache.size).toBe(MAX_KEYS);
  for (const [key, keyState] of pinned.entries())
    expect(store.open("bucket", `pinned ${key}`, NOW_MS)).toBe(keyState);
});

/** The state of a bucket of which a unit was taken. */
function spent(): unknown {
  const rule = ruleOf("bucket");
  return rule.algorithm.debit(rule.config, undefined, NOW_MS, 1);
}

function leases(count: number): Claim[] {
  return Array.from({ length: count }, (_, id) => ({
    id: `${id}`,
    kind: "lease",
    units: { slots: 1 },
    ttlMs: 1,
    expiresAtMs: 2 * NOW_MS,
  }));
}
