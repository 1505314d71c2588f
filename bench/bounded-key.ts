/** One key of an object, filled up to its bounds, on the production modules and a SQLite in memory. */
import { performance } from "node:perf_hooks";
import { parsePolicies } from "../core/policies/parse-policies.ts";
import type { Reserving } from "../core/protocol/calls.ts";
import { KeyCache } from "../durable-objects/keys/key-cache.ts";
import type { KeyState } from "../durable-objects/keys/key-state.ts";
import { KeyStore } from "../durable-objects/keys/key-store.ts";
import { type LocalOperations, localOperations } from "../durable-objects/operations/local-operations.ts";
import { Shedders } from "../durable-objects/operations/shedders.ts";
import { WaitQueue } from "../durable-objects/operations/wait-queue.ts";
import type { Claim } from "../durable-objects/storage/records.ts";
import { Storage } from "../durable-objects/storage/storage.ts";
import { Database } from "../test/simulation/database.ts";

/** A policy, and with what its key is filled. */
export interface Filling {
  readonly rules: Readonly<Record<string, object>>;
  /** Units that are used before, one in each millisecond. */
  readonly runs?: number;
  readonly claims: number;
  /** The part of the claims that are leases. */
  readonly leasesShare?: number;
  readonly isProvisional?: boolean;
  readonly isolates?: number;
  readonly waiters?: number;
  /** When the claims expire; absent: each at another instant. */
  readonly expiresAtMs?: number;
}

const KEY = "k";
export const START_MS = 1_700_000_000_000;
export const TTL_MS = 3_000_000;

export class BoundedKey {
  readonly storage: Storage;
  readonly policies: ReturnType<typeof parsePolicies>;
  readonly claims: readonly Claim[];
  nowMs = START_MS;
  /** How long it took to read the key with its claims from storage. */
  readonly loadMs: number;
  cache: KeyCache;
  operations: LocalOperations;
  #store: KeyStore;

  constructor(filling: Filling) {
    this.storage = new Storage(new Database().storage);
    this.policies = parsePolicies({ p: { rules: filling.rules } });
    [this.cache, this.#store, this.operations] = this.#start();
    for (let run = 0; run < (filling.runs ?? 0); run += 1) {
      this.nowMs += 1;
      void this.operations.limit(this.open(), { cost: 1 }, this.nowMs);
    }
    this.#settle();
    this.claims = claimsOf(filling, Object.entries(filling.rules), this.nowMs);
    this.storage.atomically(() => {
      for (const claim of this.claims) this.storage.claims.write(KEY, claim, true);
    });
    [this.cache, this.#store, this.operations] = this.#start();
    const startMs = performance.now();
    this.open();
    this.loadMs = performance.now() - startMs;
    for (let isolate = 0; isolate < (filling.isolates ?? 0); isolate += 1) this.reserve(isolate, 1, 1);
    for (let waiter = 0; waiter < (filling.waiters ?? 0); waiter += 1)
      this.acquire(`w${waiter}`, waiter === 0 ? 9_000 : 1 + (waiter % 7), 500_000 + 97 * waiter);
  }

  /** The key at this moment. */
  open(): KeyState {
    return this.#store.open("p", KEY, this.nowMs);
  }

  reserve(isolate: number, turn: number, wanted: number): unknown {
    const rules: Record<string, Reserving> = {};
    for (const { rule } of this.open().ruleStates) rules[rule.name] = { used: turn - 1, kept: 0, wanted };
    const call = { cost: 0, holder: `i${isolate}`, turn, ttlMs: 8_000, isShort: false, rules };
    return this.operations.reserve(this.open(), call, this.nowMs);
  }

  acquire(id: string, cost: number, waitMs: number): unknown {
    const call = { id, cost, ttlMs: TTL_MS, waitMs };
    return this.operations.acquire(this.open(), call, this.nowMs);
  }

  /** Writes what memory is ahead by. */
  #settle(): void {
    this.nowMs += 2_000;
    const keyState = this.open();
    this.cache.write(keyState, keyState.accounts, this.nowMs);
  }

  #start(): [KeyCache, KeyStore, LocalOperations] {
    const cache = new KeyCache(this.storage);
    const store = new KeyStore(this.policies, this.storage, cache, () => undefined);
    return [cache, store, localOperations(store, new WaitQueue(() => this.nowMs), new Shedders())];
  }
}

/** Claims in an order that is not that of their ends. */
function claimsOf(filling: Filling, rules: [string, object][], nowMs: number): Claim[] {
  const names = (isLeasing: boolean) =>
    rules.flatMap(([name, fields]) =>
      ("algorithm" in fields && fields.algorithm === "concurrency") === isLeasing ? [name] : [],
    );
  return Array.from({ length: filling.claims }, (_, index): Claim => {
    const isLease = index < filling.claims * (filling.leasesShare ?? 0);
    const units = Object.fromEntries(names(isLease).map((name) => [name, 1 + (index % 3)]));
    const spread = ((index * 7_919) % filling.claims) * 29;
    const expiresAtMs = filling.expiresAtMs ?? nowMs + 600_000 + spread;
    const common = { id: `claim-${index}-0123456789`, units, ttlMs: TTL_MS, expiresAtMs };
    if (isLease) return { ...common, kind: "lease", fencingToken: index + 1 };
    return { ...common, kind: "hold", ...(filling.isProvisional && { isProvisional: true }) };
  });
}
