import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import type { Policies } from "../core/policies/policy.ts";
import type { AcquireCall, IdleCall, LimitCall } from "../core/protocol/messages.ts";
import { KeyMethods } from "./key-methods.ts";
import { cleaned, joinParts } from "./key-parts.ts";
import { Timers } from "./keys/timers.ts";
import { MemoryStorage } from "./storage/memory-storage.ts";

/** The methods that decide keys. A lease that ends with its caller needs the platform, so there is none here. */
const METHODS = [
  "limit",
  "limitCall",
  "setUsed",
  "reserve",
  "giveBack",
  "refund",
  "refundCharge",
  "hold",
  "settle",
  "cancel",
  "renew",
  "release",
  "releaseCall",
  "keys",
  "countKeys",
  "shedding",
  "peek",
  "reset",
] as const satisfies readonly (keyof KeyMethods)[];

/** The objects of a limiter that lives in this process and ends with it: one for each policy, whatever its `objects`. */
export class MemoryNamespace {
  readonly #policies: Pick<Policies, "get">;
  readonly #time: Time;
  readonly #objects = new Map<string, object>();

  constructor(policies: Pick<Policies, "get">, time = SYSTEM_TIME) {
    this.#policies = policies;
    this.#time = time;
  }

  /** The object of this name, as a stub would be: each call is answered later. */
  getByName(name: string): object {
    const policy = name.slice(0, name.indexOf("/"));
    const object = this.#objects.get(policy) ?? makeObject(this.#policies, this.#time);
    this.#objects.set(policy, object);
    return object;
  }
}

function makeObject(policies: Pick<Policies, "get">, time: Time): object {
  const setAlarm = (atMs: number | Date) => {
    const waitMs = Math.min(Math.max(0, Number(atMs) - time.nowMs()), MAX_TIMER_MS);
    const cleanUp = () => void cleaned(parts, () => Promise.resolve(Infinity));
    if (time.idle === undefined) time.after(waitMs, cleanUp);
    else time.idle(waitMs, cleanUp);
    return Promise.resolve();
  };
  const timers = new Timers({ getAlarm: () => Promise.resolve(null), setAlarm }, () => time.nowMs());
  const loadPooled = () => Promise.reject(new Error("a limiter in memory has no pools"));
  const parts = joinParts({ storage: new MemoryStorage(), timers, policies, loadPooled, time });
  const methods = new KeyMethods({ ...parts, sockets: { closeLost: () => undefined } });
  const callable = methods as unknown as Record<string, (...args: readonly unknown[]) => unknown>;
  const later = METHODS.map((name) => [
    name,
    async (...args: readonly unknown[]) => await callable[name]?.(...args),
  ]);
  const fetch = async (url: string, { body, signal }: RequestInit) => {
    const call = JSON.parse(typeof body === "string" ? body : "{}") as AcquireCall | IdleCall | LimitCall;
    const gone = signal ?? new AbortController().signal;
    return Response.json(await parts.waiting.answer(new URL(url).pathname, call, gone));
  };
  return { ...Object.fromEntries(later), fetch };
}

/** A longer timer would end at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;
