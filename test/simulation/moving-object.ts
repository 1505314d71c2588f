/** An object whose keys may move: the production modules, with storage that outlives it, and a network. */
import type { Policies } from "../../core/policies/policy.ts";
import type { HoldCall, LimitCall, ReserveCall } from "../../core/protocol/calls.ts";
import type { KeyCall, ObjectStub } from "../../core/protocol/object-methods.ts";
import { KeyMoves, Places } from "../../durable-objects/moves/key-moves.ts";
import { type MovesHost, OwnedKeys } from "../../durable-objects/moves/moved-rows.ts";
import { Epochs } from "../../durable-objects/operations/limits.ts";
import { OwnerRouting } from "../../durable-objects/wire-methods.ts";
import { Died, type Database } from "./database.ts";
import { SimulatedObject } from "./simulated-object.ts";
import type { VirtualTime } from "./virtual-time.ts";

export type MovingMethod = "limitCall" | "reserve" | "giveBack" | "hold" | "settle" | "refund" | "reset";

export interface MovingWorld {
  readonly time: VirtualTime;
  readonly clockMs: () => number;
  stubOf(name: string, from: MovingObject): ObjectStub;
  /** A call is made here, and not forwarded: returns its answer. */
  onMade(object: MovingObject, method: MovingMethod, args: readonly unknown[], make: () => unknown): unknown;
  /** Changes parts of an object: a planted mistake. */
  readonly breakage?: (host: MovesHost, moves: KeyMoves) => void;
}

/** The most keys in its memory: so few that most are read again and again. */
const MAX_KEYS = 3;

/** One life of an object, with the policies of its version. */
export class MovingObject {
  readonly name: string;
  readonly version: number;
  readonly object: SimulatedObject;
  readonly placed: OwnerRouting;
  readonly moves: KeyMoves;
  isDead = false;
  readonly #world: MovingWorld;

  constructor(world: MovingWorld, name: string, version: number, policies: Policies, database: Database) {
    this.#world = world;
    this.name = name;
    this.version = version;
    const time = world.time.clock({ ms: 0 }, () => this.isDead);
    const alive = { storage: this.#whileAlive(database.storage) } as unknown as Database;
    this.object = new SimulatedObject(alive, policies, world.clockMs, time, MAX_KEYS);
    const { storage, cache, queue } = this.object.memory;
    const namespace = {
      idFromName: (each: string) => each,
      getByName: (each: string) => world.stubOf(each, this),
    };
    const places = new Places(namespace, name);
    const host: MovesHost = {
      policies,
      storage,
      cache,
      residents: new OwnedKeys(storage),
      places,
      time,
      nowMs: () => this.object.nowMs,
      onWritten: () => undefined,
      endLine: (keyState, moved) => queue.end(keyState, moved),
    };
    this.moves = new KeyMoves(host);
    world.breakage?.(host, this.moves);
    this.placed = new OwnerRouting((call) => this.#make(call), {
      time,
      elsewhere: { moves: this.moves, places, epochs: new Epochs() },
    });
  }

  receive(method: MovingMethod, args: readonly unknown[]): unknown {
    return this.placed.call(method, args);
  }

  /** Makes a call on a key that is here. */
  #make(call: KeyCall): unknown {
    const { object } = this;
    const { policy, key } = call;
    const { op: _, ...sent } = call;
    const made = (method: MovingMethod, args: readonly unknown[], make: () => unknown) =>
      this.#world.onMade(this, method, args, make);
    const ask: SimulatedObject["ask"] = (...args) => object.ask(...args);
    switch (call.op) {
      case "limit":
        return made("limitCall", [sent], () => object.limitCall(sent as LimitCall));
      case "reserve":
        return made("reserve", [sent], () => object.reserve(sent as ReserveCall));
      case "giveBack":
        return made("giveBack", [policy, call.returned], () => object.giveBack(policy, call.returned));
      case "reset":
        return made("reset", [policy, key], () => object.reset(policy, key));
      case "refund":
        return made("refund", [policy, key, call.units, call.idempotencyKey], () =>
          object.refund(policy, key, call.units, call.idempotencyKey),
        );
      case "hold": {
        const { policy: _policy, key: _key, ...params } = sent as HoldCall;
        return made("hold", [sent], () =>
          JSON.stringify(
            ask(policy, key, (operations, keyState, nowMs) => operations.hold(keyState, params, nowMs)),
          ),
        );
      }
      case "settle":
        return made("settle", [policy, key, call.id, call.used], () =>
          JSON.stringify(
            ask(policy, key, (operations, keyState, nowMs) => operations.settle(keyState, call, nowMs)),
          ),
        );
      case "acquire":
      case "cancel":
      case "confirm":
      case "endWaits":
      case "lease":
      case "peek":
      case "release":
      case "renew":
      case "set":
      case "shedding":
      case "slots":
      case "tell":
        break;
    }
    throw new Error(`nobody makes ${call.op} here`);
  }

  /** A dead object writes nothing, though its promises still settle here. */
  #whileAlive(storage: DurableObjectStorage): DurableObjectStorage {
    const { sql, kv } = storage;
    const alive = () => {
      if (this.isDead) throw new Died("it has died");
    };
    return {
      ...storage,
      sql: {
        exec: (...args: Parameters<typeof sql.exec>) => {
          alive();
          return sql.exec(...args);
        },
      },
      kv: {
        get: (name: string) => kv.get(name),
        put: (name: string, value: unknown) => {
          alive();
          kv.put(name, value);
        },
        delete: (name: string) => {
          alive();
          return kv.delete(name);
        },
      },
    } as unknown as DurableObjectStorage;
  }
}
