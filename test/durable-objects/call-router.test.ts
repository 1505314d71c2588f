/** The router's law: a key is never in memory twice while a call uses it, and stays no longer than there is something of it. */
import { beforeEach, describe, expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { makeAsk } from "../../durable-objects/key-calls.ts";
import { KeyCache } from "../../durable-objects/keys/key-cache.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { KeyStore } from "../../durable-objects/keys/key-store.ts";
import type { AskKey, Operations } from "../../durable-objects/operations/operations.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import { Database } from "../simulation/database.ts";

const POLICY: Policy = [
  ...parsePolicies({ five: { algorithm: "token-bucket", limit: 5, window: "30d" } }).values(),
][0] as Policy;
/** The router looks no further than whether there is a pool. */
const policies = new Map([
  ["five", POLICY],
  ["pooled", { ...POLICY, name: "pooled", pool: {} } as unknown as Policy],
]);
const NOW_MS = 1_000;

let cache: KeyCache;
let store: KeyStore;
let ask: AskKey;

beforeEach(() => {
  const storage = new Storage(new Database().storage);
  cache = new KeyCache(storage);
  store = new KeyStore(policies, storage, cache, () => undefined);
  ask = makeAsk({
    local: { name: "local" } as unknown as Operations,
    loadPooled: () => Promise.resolve({ name: "pooled" } as unknown as Operations),
    open: (policy, key) => [store.open(policy, key, NOW_MS), NOW_MS],
    release: (keyState) => cache.release(keyState),
  });
});

/** Takes a unit as an operation does: reads, decides, saves. */
function take(keyState: KeyState): boolean {
  const [{ rule, account }] = keyState.ruleStates as [KeyState["ruleStates"][number]];
  const decision = rule.algorithm.decide(rule.config, account.state, NOW_MS, 1, 0);
  if (decision.allowed) store.commit(keyState, { accounts: [{ state: decision.state, holds: [] }] }, NOW_MS);
  return decision.allowed;
}

/** A promise that the test settles. */
function message() {
  let [answer, fail]: [() => void, (error: Error) => void] = [() => undefined, () => undefined];
  const answered = new Promise<void>((resolve, reject) => ([answer, fail] = [resolve, reject]));
  return { answered, answer, fail };
}

describe.each(["five", "pooled"])("of the policy %s", (policy) => {
  test("a look leaves no key in memory, and neither does one that fails", async () => {
    for (let key = 0; key < 100; key += 1) await ask(policy, `key ${key}`, () => undefined);
    const failing = async () =>
      ask(policy, "key", () => {
        throw new Error("failed");
      });
    await expect(failing()).rejects.toThrow("failed");
    await expect(ask(policy, "key", () => Promise.reject(new Error("too late")))).rejects.toThrow("too late");
    expect(cache.size).toBe(0);
  });

  test("a key of which something is stored stays", async () => {
    await ask(policy, "key", (_, keyState) => take(keyState));
    await ask(policy, "key", () => undefined);
    expect(cache.size).toBe(1);
  });
});

describe("a call that waits for I/O", () => {
  test("saves in the same state as the calls that come and go meanwhile", async () => {
    const used = new Set<KeyState>();
    const messages = Array.from({ length: 4 }, message);
    const late = messages.map(async ({ answered }) =>
      ask("pooled", "key", async (_, keyState) => {
        await answered;
        used.add(keyState);
        return take(keyState);
      }),
    );
    const admitted = [];
    for (const { answer } of messages) {
      // Looks end here, and must not take the key away from those that wait.
      await ask("pooled", "key", () => undefined);
      admitted.push(
        await ask("pooled", "key", (_, keyState) => {
          used.add(keyState);
          return take(keyState);
        }),
      );
      answer();
    }
    admitted.push(...(await Promise.all(late)));
    expect(admitted.filter(Boolean)).toHaveLength(5);
    expect(used.size).toBe(1);
  });

  test("keeps a key in memory of which there is nothing, until it ends", async () => {
    const { answered, answer } = message();
    const [first, second] = [message(), message()];
    const states: KeyState[] = [];
    const wait = (until: Promise<void>) =>
      ask("pooled", "key", async (_, keyState) => {
        states.push(keyState);
        await until;
      });
    const waiting = [wait(answered), wait(first.answered), wait(second.answered)];
    first.answer();
    await waiting[1];
    second.fail(new Error("no answer"));
    await expect(waiting[2]).rejects.toThrow("no answer");
    expect(cache.size).toBe(1);
    await ask("pooled", "key", (_, keyState) => void states.push(keyState));
    answer();
    await waiting[0];
    expect(new Set(states).size).toBe(1);
    expect(cache.size).toBe(0);
  });
});
