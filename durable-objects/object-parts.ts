import { randomId, SYSTEM_TIME } from "../core/clock.ts";
import { localName, type Policy, type PolicyLookup, publicName } from "../core/policies/policy.ts";
import { STATS_NAME, type StatsMessage, type StatsNamespace } from "../core/stats/messages.ts";
import { type Counter, StatsSender, Tally } from "../core/stats/tally.ts";
import { LeaseSockets } from "./connections/lease-sockets.ts";
import { isRemoved, poolAddress, regionalPolicies } from "./deployment.ts";
import { cleaned, joinParts, type KeyParts } from "./key-parts.ts";
import { Timers } from "./keys/key-cache.ts";
import type { KeyState } from "./keys/key-state.ts";
import { KeyMoves, NOT_OWNER, passOn } from "./moves/key-moves.ts";
import { type ObjectNamespace, OwnedKeys, Places } from "./moves/places.ts";
import type { AskAnywhere, Operations } from "./operations/operations.ts";
import type { PooledHost } from "./pool/pooled-operations.ts";
import { sharesOf } from "./pool/share-algorithm.ts";
import { countedStorage, Storage } from "./storage/storage.ts";

/** Makes the parts of an object and joins them. */
export function makeParts(ctx: DurableObjectState, namespace: ObjectNamespace) {
  const counted = countedStorage(ctx.storage, objectCounter);
  const storage = new Storage(counted, objectCounter);
  const timers = new Timers(counted);
  const parts = joinParts({ storage, timers, policies: objectPolicies, loadPooled: loadPool });
  const { cache, ask } = parts;
  const nowMs = () => timers.nowMs();
  const placing = makePlacing(ctx, namespace, storage, parts);
  const renewBy = (dueMs: number, atMs: number) => timers.alarmBy(dueMs, atMs, 0);
  const { anywhere } = placing;
  const sockets = new LeaseSockets(ctx, { policyOf: parts.policyOf, ask, anywhere, nowMs, renewBy });
  const cleanUp = (isRepeated: boolean) => cleaned(parts, () => sockets.renew(), isRepeated);
  /** The process is about to end: what memory is ahead by is written. */
  const rest = () => {
    const atMs = timers.nowMs();
    if (cache.writeAll(atMs)) storage.leads.end(objectPolicies, atMs);
  };
  return { ...parts, ...placing, rest, sockets, cleanUp };
}

/** The parts by which keys move between objects, and by which calls find them. */
function makePlacing(
  ctx: DurableObjectState,
  namespace: ObjectNamespace,
  storage: Storage,
  { cache, timers, policies, queue, onWritten, ask }: KeyParts,
) {
  const places = new Places(namespace, ctx.id, (name) => policies.get(name)?.jurisdiction);
  const moves = new KeyMoves({
    policies,
    storage,
    cache,
    onWritten,
    nowMs: () => timers.nowMs(),
    residents: new OwnedKeys(storage),
    places,
    time: SYSTEM_TIME,
    endLine: (keyState, moved) => queue.end(keyState, moved),
  });
  const anywhere: AskAnywhere = (policy, key, here, { read, ...sent }) =>
    moves.make(policy, key, {
      isPassedOn: false,
      here: () => ask(policy, key, here),
      there: async (kept, mayBeAt) => {
        const returned = await passOn(places, kept, { policy, key, mayBeAt, ...sent });
        return returned === NOT_OWNER ? NOT_OWNER : read(returned);
      },
    });
  return { places, moves, anywhere };
}

export type ObjectParts = ReturnType<typeof makeParts>;

/** The policies by which objects decide. In a policy with a pool, each rule is replaced by the region's share of it. */
const objectPolicies = {
  get(name: string): Policy | undefined {
    const policy = regionalPolicies.get(name);
    if (policy?.pool === undefined) return policy;
    const shares = known.get(name) ?? sharesOf(policy);
    known.set(name, shares);
    return shares;
  },
  isRemoved,
} satisfies PolicyLookup;
const known = new Map<string, Policy>();

/** The parts of an object that its pooled operations use. */
interface PoolParts extends Pick<PooledHost, "store" | "queue" | "local" | "toNow"> {
  /** The object's clock, which never runs backwards. */
  readonly nowMs: () => number;
  readonly open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
}

/**
 * A prefix for the keys that a region counts alone while its pool does not answer (`onFailure = "local"`). They are
 * stored in the same object as the key of the pool. The prefix has 512 characters and a caller's key at most 512 bytes,
 * so no caller can name such a key. Stored: never change.
 */
const ALONE = "alone/".padEnd(512, "/");

/**
 * Loads the operations of a policy with a pool. They bring Upstash's client and the script with them, so an object
 * without pools does not load them.
 *
 * @throws Error while versions mix: this version of the object was deployed without the address of a Redis
 */
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
    openAlone: ({ policy, key }) => open(localName(policy), ALONE + key),
  });
}

/** What the objects of this isolate count, all of them together: one of them alone would send a message for a few calls. */
const tally = new Tally();
const sender = new StatsSender(tally, randomId, (error) =>
  console.warn(`what objects counted could not be sent, and is sent again: ${String(error)}`),
);

/** Where an object counts. */
const objectCounter: Pick<Counter, "add"> = tally;

/** Sees to it that what objects count is sent. No call waits for it, and no timer keeps an object in memory. */
export class ObjectStats {
  readonly #namespace: StatsNamespace | undefined;
  readonly #waitUntil: (work: Promise<unknown>) => void;

  /** @param namespace absent: nobody takes counts */
  constructor(namespace: StatsNamespace | undefined, waitUntil: (work: Promise<unknown>) => void) {
    this.#namespace = namespace;
    this.#waitUntil = waitUntil;
  }

  /** Counts a call on a key. What was counted before is sent when it is time. */
  called(policy: string, method: string): void {
    if (this.#namespace === undefined) return;
    tally.add("object_calls", [publicName(policy), method]);
    if (sender.isDue(SYSTEM_TIME.nowMs())) this.#waitUntil(sender.begin(SYSTEM_TIME, this.#push, 0));
  }

  /** Sends all that has been counted: the process is about to end. */
  async sendAll(): Promise<void> {
    if (this.#namespace === undefined) return;
    // First what had no answer, then what has been counted since.
    for (let messages = 0; messages < 2; messages += 1) await sender.send(SYSTEM_TIME, this.#push);
  }

  readonly #push = (message: StatsMessage) =>
    this.#namespace?.getByName(STATS_NAME).push(message) ?? Promise.resolve();
}
