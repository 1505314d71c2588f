import type { Maybe } from "../core/protocol/object-methods.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { AskKey, Operations } from "./operations/operations.ts";

/** What the router needs of its object. */
export interface RouterHost {
  readonly local: Operations;
  readonly loadPooled: () => Promise<Operations>;
  readonly open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
  /** Ends what `open` began: a key of which there is nothing leaves memory. */
  readonly letGo: (keyState: KeyState) => void;
}

type Ask<Result> = (operations: Operations, keyState: KeyState, nowMs: number) => Maybe<Result>;

/**
 * Opens the key of each call and passes the call to the operations that decide it. When the key's policy has no pool,
 * these are `LocalOperations`. When it has one, these are `PooledOperations`, which are loaded at the first such call.
 *
 * When a call ends, it lets its key go. A key of which there is nothing leaves memory then, and the next call makes
 * another `KeyState` of it. So no call may use a `KeyState` that it has let go, or that another call could: two of one
 * key could both save. Calls to pools wait for I/O, so they pin their key until they end. Local calls wait in line
 * only, and a line pins its key too (`WaitQueue`).
 */
export class CallRouter {
  readonly #host: RouterHost;
  #pooled: Maybe<Operations> | undefined;

  constructor(host: RouterHost) {
    this.#host = host;
  }

  readonly ask: AskKey = (policy, key, ask) => {
    const { local, open, letGo } = this.#host;
    const [keyState, nowMs] = open(policy, key);
    const operations = this.#operationsFor(keyState);
    if (operations === local)
      return untilEnd(
        () => ask(local, keyState, nowMs),
        () => letGo(keyState),
      );
    if (!(operations instanceof Promise)) return this.#askPool(operations, ask, keyState, nowMs);
    // Loading takes time, and the key may leave memory meanwhile: so the key is opened again.
    letGo(keyState);
    return operations.then((pooled) => this.#askPool(pooled, ask, ...open(policy, key)));
  };

  #askPool<Result>(pooled: Operations, ask: Ask<Result>, keyState: KeyState, nowMs: number): Maybe<Result> {
    const unpin = keyState.pins.add();
    return untilEnd(
      () => ask(pooled, keyState, nowMs),
      () => {
        unpin();
        this.#host.letGo(keyState);
      },
    );
  }

  #operationsFor({ policy }: KeyState): Maybe<Operations> {
    if (policy.pool === undefined) return this.#host.local;
    this.#pooled ??= this.#host.loadPooled().then((loaded) => (this.#pooled = loaded));
    return this.#pooled;
  }
}

/** Does `work`, and then calls `onEnd`: when its promise is settled if it is one, and also when it throws. */
function untilEnd<Result>(work: () => Maybe<Result>, onEnd: () => void): Maybe<Result> {
  let answer: Maybe<Result>;
  try {
    answer = work();
  } catch (error) {
    onEnd();
    throw error;
  }
  if (answer instanceof Promise) void answer.then(onEnd, onEnd);
  else onEnd();
  return answer;
}
