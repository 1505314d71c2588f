/** Values outside JSON. Workers RPC delivers some of them, and refuses to send the others. */
import { RpcTarget } from "cloudflare:workers";
import { whole } from "../../random.ts";

type Random = () => number;

class Target extends RpcTarget {
  value(): string {
    return "a";
  }
}
class Plain {
  readonly policy = "slow";
}

function cycle(): object {
  const circle: Record<string, unknown> = { policy: "slow", key: "k1" };
  circle["self"] = circle;
  return circle;
}

function sparse(): unknown[] {
  const items: unknown[] = [];
  items.length = 20_000;
  items[19_999] = 1;
  return items;
}

function deep(): unknown {
  let value: unknown = 1;
  for (let level = 0; level < 500; level += 1) value = { a: value };
  return value;
}

const MAKERS: Readonly<Record<string, () => unknown>> = {
  undefined: () => undefined,
  NaN: () => NaN,
  Infinity: () => Infinity,
  "minus zero": () => -0,
  bigint: () => 10n ** 30n,
  symbol: () => Symbol("a"),
  map: () => new Map<unknown, unknown>([["tokens", 1]]),
  set: () => new Set([1]),
  date: () => new Date(0),
  "date that is none": () => new Date(NaN),
  regexp: () => /a+/g,
  function: () => () => "slow",
  "function that throws": () => () => {
    throw new Error("thrown by a function of the caller");
  },
  target: () => new Target(),
  "class instance": () => new Plain(),
  "boxed text": () => Object("slow") as unknown,
  "boxed number": () => Object(1) as unknown,
  error: () => new RangeError("a"),
  bytes: () => new Uint8Array(64),
  floats: () => new Float64Array(8),
  buffer: () => new ArrayBuffer(16),
  view: () => new DataView(new ArrayBuffer(8)),
  "sparse array": sparse,
  "array with a field": () => Object.assign([1], { policy: "slow" }),
  cycle,
  deep,
  "many fields": () => Object.fromEntries(Array.from({ length: 1_200 }, (_, each) => [`f${each}`, each])),
  "many items": () => Array.from({ length: 500 }, () => "k"),
  "huge text": () => "x".repeat(40_000),
  "lone surrogate": () => "\ud800",
  "no prototype": () => Object.assign(Object.create(null) as object, { policy: "slow", key: "k1" }),
  getter: () => ({
    get policy() {
      return "slow";
    },
    key: "k1",
  }),
  "getter that throws": () => ({
    get policy(): string {
      throw new Error("thrown by a getter of the caller");
    },
  }),
  "symbol key": () => ({ policy: "slow", key: "k1", [Symbol("a")]: 1 }),
  "text as a method": () => ({ policy: "slow", key: "k1", toString: "a", valueOf: 1, constructor: null }),
  proxy: () => new Proxy({ policy: "slow", key: "k1" }, {}),
  promise: () => Promise.resolve("slow"),
  thenable: () => JSON.parse(`{"then":"a"}`) as unknown,
  headers: () => new Headers({ a: "b" }),
  request: () => new Request("https://weir.test/"),
  response: () => new Response("a"),
  stream: () => new Response("a").body,
  url: () => new URL("https://weir.test/"),
  parameters: () => new URLSearchParams("policy=slow"),
  signal: () => AbortSignal.abort(),
  "weak map": () => new WeakMap(),
  global: () => globalThis,
};

/** One of them, by its name. */
export function foreignValue(random: Random): { readonly name: string; readonly value: unknown } {
  const entries = Object.entries(MAKERS);
  const [name, make] = entries[whole(random, entries.length)] as [string, () => unknown];
  return { name, value: make() };
}

/** The same value with `foreign` somewhere in it, or in its place. */
export function planted(random: Random, value: unknown, foreign: unknown): unknown {
  if (typeof value !== "object" || value === null || random() < 0.15) return foreign;
  const fields = Object.keys(value);
  if (fields.length === 0) return foreign;
  const field = fields[whole(random, fields.length)] ?? "";
  const inner = (value as Record<string, unknown>)[field];
  Object.defineProperty(value, field, {
    value: planted(random, inner, foreign),
    enumerable: true,
    configurable: true,
    writable: true,
  });
  return value;
}
