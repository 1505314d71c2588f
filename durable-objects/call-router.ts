import type { Maybe } from "../core/protocol/object-methods.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { AskKey, Operations } from "./operations/operations.ts";

/**
 * Opens the key of each call and passes the call to the operations that decide it. When the key's policy has no pool,
 * these are `LocalOperations`. When it has one, these are `PooledOperations`, which are loaded at the first such call.
 */
export class CallRouter {
  readonly #open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
  readonly #local: Operations;
  readonly #loadPooled: () => Promise<Operations>;
  #pooled: Maybe<Operations> | undefined;

  constructor(
    open: (policy: string, key: string) => [keyState: KeyState, nowMs: number],
    local: Operations,
    loadPooled: () => Promise<Operations>,
  ) {
    this.#open = open;
    this.#local = local;
    this.#loadPooled = loadPooled;
  }

  readonly ask: AskKey = (policy, key, ask) => {
    const [keyState, nowMs] = this.#open(policy, key);
    const operations = this.#operationsFor(keyState);
    if (!(operations instanceof Promise)) return ask(operations, keyState, nowMs);
    // Loading takes time, and the key may leave memory meanwhile: so the key is opened again.
    return operations.then((pooled) => ask(pooled, ...this.#open(policy, key)));
  };

  #operationsFor({ policy }: KeyState): Maybe<Operations> {
    if (policy.pool === undefined) return this.#local;
    this.#pooled ??= this.#loadPooled().then((loaded) => (this.#pooled = loaded));
    return this.#pooled;
  }
}
