import type { Maybe } from "../core/protocol/object-methods.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { AskKey, Operations } from "./operations/operations.ts";

/**
 * Opens keys and hands each call to whoever decides it: this object alone, or, when the key's policy has a pool, the
 * region's side of that, which is loaded with the first such call.
 */
export class CallRouter {
  readonly #open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
  readonly #local: Operations;
  readonly #loadPooled: () => Promise<Operations>;
  #pooled: Promise<Operations> | undefined;

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
    // Time has passed meanwhile, and the key may have left memory.
    return operations.then((pooled) => ask(pooled, ...this.#open(policy, key)));
  };

  #operationsFor({ policy }: KeyState): Maybe<Operations> {
    if (policy.pool === undefined) return this.#local;
    this.#pooled ??= this.#loadPooled();
    return this.#pooled;
  }
}
