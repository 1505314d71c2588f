/**
 * Objects far away: the production object's calls on its storage, one queue for each object, and the way of messages to
 * it and back.
 */
import type { LimiterNamespace, LimiterStub } from "../../client/transports/objects.ts";
import { advance, remainingOf } from "../../core/accounts/account.ts";
import { heldUnits, type RuleAccount } from "../../core/accounts/hold.ts";
import type { TokenBucketConfig } from "../../core/algorithms/token-bucket.ts";
import { andThen, type Time } from "../../core/clock.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { ReserveCall } from "../../core/protocol/calls.ts";
import { objectName } from "../../core/protocol/names.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { joinParts, KeyCalls } from "../../durable-objects/key-calls.ts";
import { Timers } from "../../durable-objects/keys/key-store.ts";
import { RegionKeys } from "../../durable-objects/regions/region-keys.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import {
  OwnerRouting,
  WIRE_METHODS,
  type WireMethod,
  writeAnswer,
} from "../../durable-objects/wire-methods.ts";
import { Database } from "../../test/simulation/database.ts";
import { delayMs, type Place, REGIONS } from "./cities.ts";
import type { Laws, Share } from "./laws.ts";
import type { Ticks } from "./ticks.ts";

/** An object takes so long for a message, and for each call in it, whatever they do. */
const [MESSAGE_MS, DECISION_MS] = [1, 0.006];
/** With so many messages in its queue, some 10 s of work, an object answers that it is overloaded. */
const MAX_QUEUED = 10_000;
/** A message is late by up to this part of its delay, but never overtakes another one on the same way. */
const JITTER = 0.1;
/** Where an object is without a `locationHint`. */
const HOME = REGIONS.enam;
/** The clock of objects is ahead of virtual time, so that no instant is 0. */
const AHEAD_MS = 1_000_000;

export interface ObjectsParts {
  readonly ticks: Ticks;
  readonly policies: Policies;
  readonly laws: Laws;
  readonly random: () => number;
  /** The part of all messages that is lost, on either way. */
  readonly lost: number;
  /** From the first instant to the second, home objects stand still. */
  readonly stalled: readonly [fromMs: number, toMs: number];
  /** Messages and work are counted from here on. */
  readonly countedFromMs: number;
  /** Changes an answer: a planted mistake. */
  readonly plant?: ((answer: unknown, message: KeyCall) => unknown) | undefined;
  /** Changes the messages from regions' objects to a home object, and the answers: planted mistakes. */
  readonly plantBetween?:
    | {
        readonly message?: (message: ReserveCall) => ReserveCall;
        readonly answer?: (answer: Decided) => Decided;
      }
    | undefined;
  readonly holdersForRegions?: number | undefined;
}

interface QueuedMessage {
  readonly method: WireMethod;
  readonly args: readonly unknown[];
  /** Called with the answer, which leaves at this instant. */
  readonly answer: (leavesAtMs: number, answer: Promise<unknown>) => void;
}

/** The objects by name. Each is made when it is called first. */
export class FarObjects {
  readonly all = new Map<string, FarObject>();
  readonly #parts: ObjectsParts;

  constructor(parts: ObjectsParts) {
    this.#parts = parts;
  }

  /** The objects as a holder in this place reaches them. */
  namespaceFrom(place: Place): LimiterNamespace {
    const stubs = new Map<string, LimiterStub>();
    return {
      getByName: (name, options) => {
        const stub = stubs.get(name) ?? this.#stub(place, this.#open(name, options?.locationHint));
        stubs.set(name, stub);
        return stub;
      },
    };
  }

  #open(name: string, hint: keyof typeof REGIONS | undefined): FarObject {
    const place = hint === undefined ? HOME : REGIONS[hint];
    const home = ({ name: policy, objects }: Policy, key: string) =>
      this.#stub(place, this.#open(objectName({ name: policy, objects }, key), undefined));
    const object = this.all.get(name) ?? new FarObject(this.#parts, place, name.includes("/region/"), home);
    this.all.set(name, object);
    return object;
  }

  #stub(place: Place, object: FarObject): LimiterStub {
    const { ticks, random, lost } = this.#parts;
    const oneWayMs = delayMs(place, object.place);
    const wayMs = () => oneWayMs * (1 + JITTER * random());
    let lastArrivesAtMs = 0;
    const send = (method: WireMethod, args: readonly unknown[]) =>
      new Promise((resolve) => {
        const fate = random();
        if (fate < lost / 2) return;
        lastArrivesAtMs = Math.max(lastArrivesAtMs, ticks.nowMs + wayMs());
        const answer: QueuedMessage["answer"] = (leavesAtMs, answered) => {
          if (fate < lost) return;
          const leave = () => ticks.at(Math.max(leavesAtMs, ticks.nowMs) + wayMs(), () => resolve(answered));
          void answered.then(leave, leave);
        };
        ticks.at(lastArrivesAtMs, () => object.receive({ method, args, answer }));
      });
    const methods = WIRE_METHODS.map((method) => [
      method,
      (...args: readonly unknown[]) => send(method, args),
    ]);
    return Object.fromEntries(methods) as LimiterStub;
  }
}

/** One object: it makes one message after another, in the order in which they come. */
export class FarObject {
  readonly place: Place;
  readonly isRegional: boolean;
  received = 0;
  busyMs = 0;
  readonly #parts: ObjectsParts;
  readonly #home: (policy: Policy, key: string) => LimiterStub;
  readonly #database = new Database();
  readonly #time: Time;
  readonly #queue: QueuedMessage[] = [];
  #memory: ReturnType<FarObject["start"]>;
  #freeAtMs = 0;
  #isServing = false;
  #calls = 0;

  constructor(
    parts: ObjectsParts,
    place: Place,
    isRegional: boolean,
    home: (policy: Policy, key: string) => LimiterStub,
  ) {
    this.place = place;
    this.isRegional = isRegional;
    this.#parts = parts;
    this.#home = home;
    this.#time = parts.ticks.clock(AHEAD_MS);
    this.#memory = this.start();
  }

  /** It loses its memory, and goes on with what is stored. */
  restart(): void {
    this.#memory = this.start();
  }

  /** Everything that is only in its memory. */
  protected start() {
    const { ticks, policies, laws, plant, plantBetween, holdersForRegions } = this.#parts;
    const time = this.#time;
    const alarm = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };
    const joined = joinParts({
      storage: new Storage(this.#database.storage),
      timers: new Timers(alarm, () => time.nowMs()),
      policies,
      loadPooled: () => Promise.reject(new Error("there are no pools")),
      time,
      holdersForRegions,
    });
    const rulesOf = (policy: string, key: string) =>
      joined.ask(policy, key, (_, { ruleStates }) => ruleStates) as readonly RuleAccount[];
    const calls = new KeyCalls({ ...joined, sockets: { closeLost: () => undefined } });
    const noted = (message: KeyCall, made: unknown) => {
      const answer = plant === undefined ? made : plant(made, message);
      const units = admittedUnits(message, answer);
      if (units > 0) laws.admitted(units, ticks.nowMs);
      return answer;
    };
    const home = (policy: Policy, key: string) => {
      const stub = this.#home(policy, key);
      if (plantBetween === undefined) return stub;
      const { message = (same) => same, answer = (same) => same } = plantBetween;
      const reserve = async (call: ReserveCall) =>
        JSON.stringify(answer(JSON.parse(await stub.reserve(message(call))) as Decided));
      return { reserve } as LimiterStub;
    };
    const keys = new RegionKeys({ policies, time, home });
    const regions = {
      call: (message: KeyCall) => {
        this.#calls += 1;
        return andThen(keys.call(message), (made) => noted(message, made));
      },
    };
    const here = (message: KeyCall, method: WireMethod) => {
      this.#calls += 1;
      return writeAnswer(method, noted(message, calls.call(message)));
    };
    return { routing: new OwnerRouting(here, { time, regions }), keys, rulesOf };
  }

  /** What it may admit, beside what it has handed out. */
  sharesOf(policy: string, key: string): readonly Share[] {
    const nowMs = this.#time.nowMs();
    const { keys, rulesOf } = this.#memory;
    const accounts = this.isRegional
      ? keys.accountsOf(policy, key)
      : rulesOf(policy, key).map(({ rule, account }) => ({
          rule,
          account: advance(rule, account, nowMs),
        }));
    return accounts.slice(0, 1).map(({ rule, account }) => {
      const units = remainingOf(rule, account, nowMs);
      const { all, rate } = heldUnits(account.holds);
      const { burst = rule.capacity, limit = 0, windowMs = 1 } = rule.config as Partial<TokenBucketConfig>;
      const handedOut = rate.units / (rate.windowMs === 0 ? 1 : rate.windowMs / windowMs);
      const perWindow = ((limit - handedOut) * (rule.quota.windowMs ?? 1)) / windowMs;
      // A log knows no rate.
      if (rule.algorithm.isCutByWindow === true) return { units, burst: Math.max(0, burst - all) };
      // What it has handed out beyond that is over, and not made up for by others.
      return { units, perWindow: Math.max(0, perWindow), burst: Math.max(0, burst - all) };
    });
  }

  receive(message: QueuedMessage): void {
    const { ticks, countedFromMs } = this.#parts;
    if (ticks.nowMs >= countedFromMs) this.received += 1;
    if (this.#queue.length >= MAX_QUEUED)
      return message.answer(ticks.nowMs, refused(new Error("Durable Object is overloaded.")));
    this.#queue.push(message);
    if (!this.#isServing) this.#serve();
  }

  #serve(): void {
    const { ticks, stalled, countedFromMs } = this.#parts;
    const [stallsAtMs, resumesAtMs] = this.isRegional ? [Infinity, Infinity] : stalled;
    for (let message = this.#queue[0]; message !== undefined; message = this.#queue[0]) {
      const readyAtMs = Math.max(this.#freeAtMs, ticks.nowMs);
      const beginsAtMs = readyAtMs >= stallsAtMs && readyAtMs < resumesAtMs ? resumesAtMs : readyAtMs;
      this.#isServing = Math.floor(beginsAtMs) > ticks.nowMs;
      if (this.#isServing) return ticks.at(Math.floor(beginsAtMs), () => this.#serve());
      this.#queue.shift();
      this.#calls = 0;
      const answer = this.#make(message);
      const tookMs = MESSAGE_MS + DECISION_MS * this.#calls;
      this.#freeAtMs = beginsAtMs + tookMs;
      if (beginsAtMs >= countedFromMs) this.busyMs += tookMs;
      message.answer(this.#freeAtMs, answer);
    }
  }

  #make({ method, args }: QueuedMessage): Promise<unknown> {
    try {
      return Promise.resolve(this.#memory.routing.call(method, args));
    } catch (error) {
      return refused(error);
    }
  }
}

/** A rejection that may never be awaited: its answer can be lost. */
function refused(error: unknown): Promise<never> {
  const failed = Promise.reject(Object.assign(error as Error, { overloaded: true }));
  failed.catch(() => undefined);
  return failed;
}

/** The units that a call has taken by the object's decision. */
function admittedUnits(message: KeyCall, answer: unknown): number {
  if (message.op !== "limit" && message.op !== "reserve") return 0;
  if (typeof answer !== "object" || answer === null || !("rules" in answer)) return 0;
  const isAdmitted = (answer as Decided).rules.every(({ success }) => success);
  return isAdmitted && typeof message.cost === "number" ? message.cost : 0;
}
