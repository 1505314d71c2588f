import { DurableObject } from "cloudflare:workers";
import { randomId, SYSTEM_TIME } from "../core/clock.ts";
import { localName, type Policy, type PolicyLookup, publicName } from "../core/policies/policy.ts";
import type { AnswerText } from "../core/protocol/answers.ts";
import type { AcquireCall, KeysCall } from "../core/protocol/calls.ts";
import { unsupportedOf } from "../core/protocol/messages.ts";
import { objectName } from "../core/protocol/names.ts";
import type { KeyCall, LimiterMethods } from "../core/protocol/object-methods.ts";
import { CLOSE_BROKEN } from "../core/protocol/problems.ts";
import { OBJECTS_SENDER, type StatsBindings, type StatsMessage, statsStub } from "../core/stats/messages.ts";
import { SEND_EVERY_MS, StatsSender, Tally } from "../core/stats/tally.ts";
import { acquireAttached, confirmLease } from "./connections/lease-handle.ts";
import { LeaseSockets } from "./connections/lease-sockets.ts";
import { backgroundMs, isRemoved, noticesTo, poolAddress, regionalPolicies } from "./deployment.ts";
import { KeyCalls, type PoolParts, joinParts, type WaitingCall } from "./key-calls.ts";
import { cleaned } from "./keys/garbage-collection.ts";
import { journalRoom, SHARED_MEMORY } from "./keys/key-cache.ts";
import { Timers } from "./keys/key-store.ts";
import { KeyMoves, type ObjectNamespace, Places } from "./moves/key-moves.ts";
import { OwnedKeys } from "./moves/moved-rows.ts";
import { deliveryTo } from "./notices/delivery.ts";
import { Outbox } from "./notices/outbox.ts";
import type { Operations } from "./operations/operations.ts";
import { sharesOf } from "./pool/share-algorithm.ts";
import { RegionKeys } from "./regions/region-keys.ts";
import { countedStorage, Storage } from "./storage/storage.ts";
import { FAILED_AGAIN_MS } from "./storage/sweeps.ts";
import { OwnerRouting, stubOf, WIRE_METHODS, type WireMethod, writeAnswer } from "./wire-methods.ts";

interface Bindings extends StatsBindings {
  readonly OBJECTS: ObjectNamespace;
}

/** Has the methods of wire-methods.ts, which are added below: Workers RPC finds methods on the prototype. */
const WithWireMethods = DurableObject as new (
  ...args: ConstructorParameters<typeof DurableObject>
) => DurableObject & Pick<LimiterMethods, WireMethod>;

/** The object of one or many keys of one policy. Each call is executed where its key is, mostly here. */
export class LimiterObject extends WithWireMethods {
  readonly #parts: ObjectParts;
  readonly #calls: KeyCalls;
  readonly #routing: OwnerRouting;
  readonly #bindings: StatsBindings;

  static {
    for (const method of WIRE_METHODS)
      Object.defineProperty(this.prototype, method, {
        configurable: true,
        writable: true,
        value(this: LimiterObject, ...args: readonly unknown[]) {
          return this.#parts.storage.turn(() => this.#routing.call(method, args), this.#lost);
        },
      });
  }

  /** What calls were promised is not stored: none is answered, and memory begins again with what is. */
  readonly #lost = (error: unknown): never => {
    this.ctx.abort(`a turn could not be stored: ${String(error)}`);
    throw error;
  };

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const bindings = env as unknown as Bindings;
    const { OBJECTS, STATS } = bindings;
    const parts = makeParts(ctx, OBJECTS);
    const host = { time: SYSTEM_TIME, elsewhere: parts };
    const make = (message: KeyCall, method: WireMethod) => writeAnswer(method, this.#calls.call(message));
    const anywhere = stubOf(new OwnerRouting(make, host));
    const renewBy = (dueMs: number, atMs: number) => parts.timers.alarmBy(dueMs, atMs, 0);
    const sockets = new LeaseSockets(ctx, { ...parts, anywhere, renewBy });
    this.#parts = { ...parts, sockets };
    this.#bindings = bindings;
    this.#calls = new KeyCalls(this.#parts, {
      acquire: (call) => acquireAttached({ ...parts, anywhere }, call),
      confirm: (call) => confirmLease({ ...parts, anywhere }, call),
    });
    const makeCounted = (message: KeyCall, method: WireMethod) => {
      this.#count(message.policy, method === "operate" ? calledOf(message) : method);
      return make(message, method);
    };
    const onDropped = (policy: string) => {
      if (STATS !== undefined) tally.add("calls_dropped", [publicName(policy)]);
    };
    const home = ({ name, objects }: Policy, key: string) =>
      parts.places.objectAt(objectName({ name, objects }, key));
    const keys = new RegionKeys({ policies: objectPolicies, time: SYSTEM_TIME, home });
    const regions = {
      call: (message: KeyCall) => {
        this.#count(message.policy, message.op);
        return keys.call(message);
      },
    };
    this.#routing = new OwnerRouting(makeCounted, { ...host, onDropped, regions });
    if (!parts.storage.isEmpty) void ctx.blockConcurrencyWhile(() => parts.timers.readAlarm(FAILED_AGAIN_MS));
  }

  keys(call: KeysCall): Promise<AnswerText> {
    return this.#calls.keys(call);
  }

  countKeys(call: KeysCall): AnswerText {
    return this.#calls.countKeys(call);
  }

  /** Writes memory that is ahead of storage, and sends all counts, so the process may end. */
  async rest(): Promise<void> {
    const { timers, cache, storage } = this.#parts;
    const atMs = timers.nowMs();
    const isExact = cache.writeAll(atMs);
    storage.fold();
    if (isExact) storage.allowances.end(objectPolicies, atMs);
    if (this.#bindings.STATS === undefined) return;
    await sender.sendAll(SYSTEM_TIME, this.#push);
  }

  override async fetch(request: Request): Promise<Response> {
    const url = new URL(request.url);
    // The message is in the address when the request opens a socket, otherwise in the body.
    const message = JSON.parse(url.searchParams.get("call") ?? (await request.text())) as WaitingCall;
    return await this.#routing.request(request, message, async () => {
      this.#count(message.policy, url.pathname.slice(1));
      const { sockets, hear } = this.#parts;
      const unsupported = unsupportedOf(message);
      if (unsupported !== undefined) return Response.json(unsupported);
      if (url.pathname === "/socket") {
        hear(message.policy, message.key, message);
        return sockets.accept(message as AcquireCall);
      }
      return Response.json(await this.#calls.request(url.pathname, message, request.signal));
    });
  }

  override webSocketClose(socket: WebSocket, code: number, _reason: string, wasClean: boolean): void {
    this.#parts.sockets.closed(socket, !wasClean || code === CLOSE_BROKEN);
  }

  override webSocketError(socket: WebSocket): void {
    this.#parts.sockets.closed(socket, true);
  }

  override alarm(info?: AlarmInvocationInfo): Promise<void> {
    const { sockets, outbox } = this.#parts;
    const wake = async () => Math.min(...(await Promise.all([sockets.renew(), outbox?.wake() ?? Infinity])));
    return cleaned(this.#parts, wake, info?.isRetry === true);
  }

  /** Counts are sent in later calls: no call waits for it, and no timer keeps an object in memory. */
  #count(policy: string, method: string): void {
    if (this.#bindings.STATS === undefined) return;
    tally.add("object_calls", [publicName(policy), method]);
    if (sender.isDue(SYSTEM_TIME.nowMs())) this.ctx.waitUntil(sender.begin(SYSTEM_TIME, this.#push, 0));
  }

  readonly #push = async (message: StatsMessage) => await statsStub(this.#bindings)?.push(message);
}

/** Shared by all objects of this isolate: a single one would send a message for a few calls. */
const tally = new Tally();
const unsent = (error: unknown) =>
  console.warn(`what objects counted could not be sent, and is sent again: ${String(error)}`);
/** Ten seconds of decisions are sent by the worker's isolates. What objects count may wait longer than that. */
const SEND_AFTER = 6;
const MAX_SEND_EVERY_MS = 60_000;
const everyMs = Math.min(MAX_SEND_EVERY_MS, SEND_AFTER * (backgroundMs ?? SEND_EVERY_MS));
const sender = new StatsSender(tally, () => `${OBJECTS_SENDER}${randomId()}`, unsent, everyMs);

const deliver = noticesTo && deliveryTo(noticesTo);

function makeParts(ctx: DurableObjectState, namespace: ObjectNamespace) {
  const counted = countedStorage(ctx.storage, tally);
  const storage = new Storage(counted, tally, journalRoom());
  const timers = new Timers(counted);
  const parts = joinParts({
    storage,
    memory: SHARED_MEMORY,
    timers,
    policies: objectPolicies,
    loadPooled: loadPool,
    ...(deliver && {
      makeOutbox: (store) =>
        new Outbox({
          store,
          storage,
          timers,
          counter: tally,
          deliver,
          inBackground: (work) => ctx.waitUntil(work),
        }),
    }),
  });
  const { cache, onWritten, queue } = parts;
  const nowMs = () => timers.nowMs();
  const places = new Places(namespace, ctx.id, (name) => objectPolicies.get(name)?.jurisdiction);
  const moves = new KeyMoves({
    policies: objectPolicies,
    storage,
    cache,
    onWritten,
    nowMs,
    residents: new OwnedKeys(storage),
    places,
    time: SYSTEM_TIME,
    endLine: (keyState, moved) => queue.end(keyState, moved),
  });
  return { ...parts, storage, nowMs, places, moves };
}

type ObjectParts = ReturnType<typeof makeParts> & { readonly sockets: LeaseSockets };

/** The policies of objects. With a pool, each rule is replaced by the region's share of it. */
const objectPolicies: PolicyLookup = {
  get: (name) => asShares(regionalPolicies.get(name)),
  copyOf: (policy, name) =>
    asShares(policy.pool === undefined ? policy : regionalPolicies.copyOf(policy, name)),
  isRemoved,
};
const sharesByPolicy = new WeakMap<Policy, Policy>();

function asShares(policy: Policy | undefined): Policy | undefined {
  if (policy?.pool === undefined) return policy;
  const shares = sharesByPolicy.get(policy) ?? sharesOf(policy);
  sharesByPolicy.set(policy, shares);
  return shares;
}

/**
 * A prefix for keys that a region counts while its pool does not answer (`onFailure = "local"`), in the same
 * object as the pool's key. It has 512 characters and a caller's key at most 512 bytes, so no caller can name
 * such a key. Stored: never change.
 */
const ALONE = "alone/".padEnd(512, "/");

/** @throws Error while versions mix: this version was deployed without the address of a Redis */
async function loadPool({ nowMs, open, ...parts }: PoolParts): Promise<Operations> {
  if (poolAddress === undefined) throw new Error("this version of the object has no pools");
  const [{ PooledOperations }, { RedisPool }] = await Promise.all([
    import("./pool/pooled-operations.ts"),
    import("./pool/redis/redis-pool.ts"),
  ]);
  const time = { ...SYSTEM_TIME, nowMs };
  return new PooledOperations({
    ...parts,
    pool: new RedisPool(poolAddress, time),
    time,
    openAlone: ({ policy, key, inForce }) => open(localName(policy), ALONE + key, inForce),
  });
}

/** An operation of a batch counts as the same call alone. */
function calledOf({ op }: KeyCall): string {
  return op === "lease" ? "acquire" : op;
}
