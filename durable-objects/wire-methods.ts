/**
 * The methods of an object over Workers RPC, and the one message that each of them is here. Isolates and objects of other
 * versions call these methods while a deployment is rolled out: never rename one, and never change its arguments.
 */
import type { Missing, Released, UnsupportedProtocol } from "../core/protocol/answers.ts";
import type { KeyCall, LimiterMethods, MaybePromise } from "../core/protocol/object-methods.ts";

/** The methods about one key. */
export type WireMethod = Exclude<keyof LimiterMethods, "keys" | "countKeys">;

/** How a method's arguments are read. */
type Readers = {
  readonly [Method in Exclude<WireMethod, "reserve">]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => KeyCall;
} & { readonly reserve: (call: Omit<Extract<KeyCall, { op: "reserve" }>, "op">) => KeyCall };

const READERS: Readers = {
  limit: (policy, key, cost, idempotencyKey) => ({ op: "limit", policy, key, cost, idempotencyKey }),
  limitCall: (call) => ({ op: "limit", ...call }),
  setUsed: (call) => ({ op: "set", ...call }),
  reserve: (call) => ({ op: "reserve", ...call }),
  giveBack: (policy, returned) => ({ op: "giveBack", policy, key: returned[0]?.key ?? "", returned }),
  refund: (policy, key, units, idempotencyKey) => ({ op: "refund", policy, key, units, idempotencyKey }),
  refundCharge: (call) => ({ op: "refund", ...call }),
  hold: (call) => ({ op: "hold", ...call }),
  settle: (policy, key, id, used) => ({ op: "settle", policy, key, id, used }),
  cancel: (policy, key, id) => ({ op: "cancel", policy, key, id }),
  acquire: (call) => ({ op: "acquire", ...call }),
  confirm: (policy, key, id, ttlMs, isAttached) => ({ op: "confirm", policy, key, id, ttlMs, isAttached }),
  renew: (policy, key, id, ttlMs) => ({ op: "renew", policy, key, id, ttlMs }),
  release: (policy, key, id) => ({ op: "release", policy, key, id }),
  releaseCall: (call) => ({ op: "release", ...call }),
  shedding: (call) => ({ op: "shedding", ...call }),
  tell: (policy, key, inForce) => ({ op: "tell", policy, key, inForce }),
  peek: (policy, key) => ({ op: "peek", policy, key }),
  reset: (policy, key) => ({ op: "reset", policy, key }),
};

/** How answers are sent that are not sent as JSON text. */
const WRITERS: Partial<Record<WireMethod, (answer: unknown) => unknown>> = {
  giveBack: () => undefined,
  acquire: (attached) => attached,
  confirm: (attached) => attached,
  release: (answer) => "released" in (answer as Released | Missing | UnsupportedProtocol),
  tell: () => undefined,
  peek: (peeked) => peeked,
  reset: () => undefined,
};

/** The names of all methods about one key. */
export const WIRE_METHODS = Object.keys(READERS) as readonly WireMethod[];

/** Whether an object has a method of this name, which is about one key. */
export function isWireMethod(method: string): method is WireMethod {
  return Object.hasOwn(READERS, method);
}

/** The message that a method with these arguments is. */
export function readCall(method: WireMethod, args: readonly unknown[]): KeyCall {
  return (READERS[method] as (...given: readonly unknown[]) => KeyCall)(...args);
}

/** An answer as a method returns it: at once if it is there at once. */
export function writeAnswer(method: WireMethod, answer: MaybePromise<unknown>): MaybePromise<unknown> {
  const write = WRITERS[method] ?? JSON.stringify;
  return answer instanceof Promise ? answer.then(write) : write(answer);
}
