import { SYSTEM_TIME, type Time } from "../core/clock.ts";
import type { Policies } from "../core/policies/policy.ts";
import type { KeysCall } from "../core/protocol/calls.ts";
import type { KeyCall } from "../core/protocol/object-methods.ts";
import { joinParts, KeyCalls, type WaitingCall } from "./key-calls.ts";
import { cleaned } from "./keys/garbage-collection.ts";
import { SHARED_MEMORY } from "./keys/key-cache.ts";
import { Timers } from "./keys/key-store.ts";
import { MemoryStorage } from "./storage/memory-storage.ts";
import { OwnerRouting, stubOf, type WireMethod, writeAnswer } from "./wire-methods.ts";

/** The objects of a limiter in this process: one per policy, whatever its `objects`. */
export class MemoryNamespace {
  readonly #policies: Pick<Policies, "get">;
  readonly #time: Time;
  readonly #objects = new Map<string, object>();

  constructor(policies: Pick<Policies, "get">, time = SYSTEM_TIME) {
    this.#policies = policies;
    this.#time = time;
  }

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
  const storage = new MemoryStorage();
  const parts = joinParts({ storage, memory: SHARED_MEMORY, timers, policies, loadPooled, time });
  const calls = new KeyCalls({ ...parts, sockets: { closeLost: () => undefined } });
  const makeHere = (message: KeyCall, method: WireMethod) => writeAnswer(method, calls.call(message));
  const routing = new OwnerRouting(makeHere, { time });
  const keys = async (call: KeysCall) => await calls.keys(call);
  const countKeys = async (call: KeysCall) => await Promise.resolve(calls.countKeys(call));
  const fetch = async (url: string, { body, signal }: RequestInit) => {
    const call = JSON.parse(typeof body === "string" ? body : "{}") as WaitingCall;
    const gone = signal ?? new AbortController().signal;
    return Response.json(await calls.request(new URL(url).pathname, call, gone));
  };
  return { ...stubOf(routing), keys, countKeys, fetch };
}

/** A longer timer would end at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;
