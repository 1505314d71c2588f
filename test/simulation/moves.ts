/**
 * Keys that move while they are called: isolates and objects of several versions with different places for
 * keys; deployments rolled out object by object, and rolled back half way; messages that are lost, late or
 * doubled; objects that die before and after any write and any message.
 */
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Layout, Policies, Policy } from "../../core/policies/policy.ts";
import type { AnswerText, Decided } from "../../core/protocol/answers.ts";
import { objectName } from "../../core/protocol/names.ts";
import type { ObjectStub } from "../../core/protocol/object-methods.ts";
import { spendableMs } from "../../core/reservations/sizing.ts";
import { pick, seededRandom, whole } from "../support/random.ts";
import { Database, Died } from "./database.ts";
import { law, Oracle } from "./laws.ts";
import { MovingObject, type MovingMethod, type MovingWorld } from "./moving-object.ts";
import { UnmovedObject } from "./unmoved-object.ts";
import { VirtualTime } from "./virtual-time.ts";

const RESERVED = { reservation: { ttl: "2s" }, deadlineMs: 300 };
const RULES: Readonly<Record<string, object>> = {
  bucket: { algorithm: "token-bucket", limit: 40, window: "60s" },
  quick: { algorithm: "token-bucket", limit: 400, window: "10s" },
  log: { algorithm: "sliding-log", limit: 30, window: "20s" },
  window: { algorithm: "fixed-window", limit: 300, window: "30s" },
  counter: { algorithm: "sliding-window-counter", limit: 40, window: "20s" },
  credits: { algorithm: "credits", limit: 200 },
  two: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 20, window: "10s" },
      total: { algorithm: "sliding-log", limit: 60, window: "60s" },
    },
  },
};
/** Callers name now this plan, now that: what is admitted is bounded by the loosest. */
const PLANNED: readonly object[] = [
  { algorithm: "token-bucket", limit: 20, window: "60s", plans: { big: { limit: 40 }, small: { limit: 5 } } },
  { algorithm: "sliding-log", limit: 15, window: "20s", plans: { big: { limit: 30 }, small: { limit: 4 } } },
];
const PLANS = ["", "", "big", "small"];
const LAYOUTS: readonly Layout[] = [1, 2, 3, "per-key"];
const KEYS = ["a", "b", "c", "d", "e"];
const NAME = "p";
const END_MS = 40_000;

export interface MoveBreakage {
  readonly object?: MovingWorld["breakage"];
  /** Changes an object's answer to another object. */
  readonly answer?: (text: unknown) => unknown;
}

export interface MoveOptions {
  /** No deaths and no reservations: every answer must equal that of an object whose keys never move. */
  readonly isCalm?: boolean;
  readonly hasPlans?: boolean;
  readonly breakage?: MoveBreakage;
}

export interface MoveOutcome {
  made: number;
  admitted: number;
  failed: number;
  moved: number;
  passed: number;
  deaths: number;
  deployments: number;
  /** Calls that named a plan. */
  planned: number;
}

/** Units of an isolate, which it may spend until an instant. */
interface Held {
  readonly key: string;
  readonly holder: string;
  readonly version: number;
  left: number;
  used: number;
  readonly untilMs: number;
}

export class MoveHistory implements MovingWorld {
  readonly time = new VirtualTime();
  readonly breakage?: (...args: Parameters<NonNullable<MovingWorld["breakage"]>>) => void;
  readonly #random: () => number;
  readonly #isCalm: boolean;
  readonly #answer: ((text: unknown) => unknown) | undefined;
  readonly #rules: object;
  readonly #databases = new Map<string, Database>();
  readonly #objects = new Map<string, MovingObject>();
  readonly #lastVersions = new Map<string, number>();
  readonly #versions: Policies[] = [];
  readonly #layouts: Layout[] = [];
  readonly #oracles = new Map<string, readonly Oracle[]>();
  readonly #unmoved: UnmovedObject;
  readonly #outcome: MoveOutcome = {
    made: 0,
    admitted: 0,
    failed: 0,
    moved: 0,
    passed: 0,
    deaths: 0,
    deployments: 0,
    planned: 0,
  };
  readonly #holds: { readonly key: string; readonly id: string }[] = [];
  #held: Held[] = [];
  /** Objects and isolates run this version or a later one. */
  #oldest = 0;
  #calls = 0;
  #failure: unknown;

  constructor(seed: number, { isCalm = false, hasPlans = false, breakage }: MoveOptions = {}) {
    this.#random = seededRandom(seed);
    this.#isCalm = isCalm;
    if (breakage?.object) this.breakage = breakage.object;
    this.#answer = breakage?.answer;
    this.#rules = pick(this.#random, hasPlans ? PLANNED : Object.values(RULES));
    this.#deploy(pick(this.#random, LAYOUTS));
    this.#unmoved = new UnmovedObject(this.#versions[0] as Policies, this.clockMs);
    this.#plan();
  }

  async run(): Promise<MoveOutcome> {
    await this.time.run(END_MS, () => undefined);
    if (this.#failure !== undefined) throw this.#failure;
    return this.#outcome;
  }

  readonly clockMs = (): number => 1_000_000_000 + Math.floor(this.time.nowMs);

  /** A call is decided, at this instant and in this object. */
  onMade(object: MovingObject, method: MovingMethod, args: readonly unknown[], make: () => unknown): unknown {
    const answer = make();
    this.#outcome.made += 1;
    if (this.#isCalm)
      this.#check(() =>
        this.#unmoved.compare(`${object.name} of version ${object.version}`, method, args, answer),
      );
    if (method === "limitCall") {
      const [{ key, cost }] = args as [{ key: string; cost: number }];
      if (isAdmitted(answer as AnswerText)) this.#admit(key, cost);
      const [{ inForce }] = args as [{ inForce?: { plan?: string } }];
      if (inForce?.plan !== undefined && inForce.plan !== "") this.#outcome.planned += 1;
    }
    return answer;
  }

  /** The stub of an object for another object, or for an isolate (`undefined`). */
  stubOf(name: string, from: MovingObject | undefined): ObjectStub {
    const call =
      (method: MovingMethod) =>
      (...args: readonly unknown[]) =>
        this.#send(name, from, method, args);
    const methods: readonly MovingMethod[] = [
      "limitCall",
      "reserve",
      "giveBack",
      "hold",
      "settle",
      "refund",
      "reset",
    ];
    return Object.fromEntries(methods.map((method) => [method, call(method)])) as unknown as ObjectStub;
  }

  #send(
    name: string,
    from: MovingObject | undefined,
    method: MovingMethod,
    args: readonly unknown[],
  ): Promise<unknown> {
    const delayMs = () => pick(this.#random, [0, 1, 1, 2, 5, 20, whole(this.#random, 400)]);
    const isLost = whole(this.#random, 25) === 0;
    const isBackLost = whole(this.#random, 25) === 0;
    // An object may die after a write and before its answer.
    const diesAfter = !this.#isCalm && whole(this.#random, 60) === 0;
    const isTwice = from !== undefined && method === "reserve" && whole(this.#random, 25) === 0;
    const message = JSON.stringify(args);
    return new Promise((resolve, reject) => {
      if (isLost || from?.isDead === true) return;
      const deliver = async () => {
        try {
          const answer = await this.#receive(name, method, JSON.parse(message) as unknown[], diesAfter);
          if (isBackLost || diesAfter) return;
          const sent = from === undefined ? answer : (this.#answer?.(answer) ?? answer);
          this.time.at(this.time.nowMs + delayMs(), () => {
            if (from?.isDead !== true) resolve(this.#isCalm ? this.#asOfNow(sent) : sent);
          });
        } catch (error) {
          this.time.at(this.time.nowMs + delayMs(), () => reject(error));
        }
      };
      this.time.at(this.time.nowMs + delayMs(), () => void deliver());
      if (isTwice)
        this.time.at(this.time.nowMs + delayMs() + whole(this.#random, 3_000), () => void deliver());
    });
  }

  /** Sets the sender's clock back by the time of the answer, so that holds end as if they had not moved. */
  #asOfNow(answer: unknown): unknown {
    if (typeof answer !== "string") return answer;
    return answer.replace(/^\{"nowMs":\d+/, `{"nowMs":${this.clockMs()}`);
  }

  async #receive(
    name: string,
    method: MovingMethod,
    args: readonly unknown[],
    diesAfter: boolean,
  ): Promise<unknown> {
    const object = this.#objectAt(name);
    const text = JSON.stringify(args[0]);
    if (text.startsWith('{"protocol":4,"passedOn"')) this.#outcome.passed += 1;
    if (text.startsWith('{"protocol":4,"taken"')) this.#outcome.moved += 1;
    try {
      const answer = object.receive(method, args);
      if (diesAfter) this.#kill(object);
      return await answer;
    } catch (error) {
      if (error instanceof Died && !object.isDead) {
        for (const database of this.#databases.values()) database.writesLeft = Infinity;
        if (whole(this.#random, 2) === 0) this.#kill(object);
      }
      throw error;
    }
  }

  #objectAt(name: string): MovingObject {
    const known = this.#objects.get(name);
    if (known !== undefined) return known;
    const database = this.#databases.get(name) ?? new Database();
    this.#databases.set(name, database);
    const least = Math.max(this.#oldest, this.#lastVersions.get(name) ?? 0);
    const version = least + whole(this.#random, this.#versions.length - least);
    const object = new MovingObject(this, name, version, this.#versions[version] as Policies, database);
    this.#objects.set(name, object);
    this.#lastVersions.set(name, version);
    return object;
  }

  #kill(object: MovingObject): void {
    object.isDead = true;
    if (this.#objects.get(object.name) === object) this.#objects.delete(object.name);
    this.#outcome.deaths += 1;
  }

  /** A new version. Earlier layouts stay named until they have no keys. */
  #deploy(objects: Layout): void {
    const before = [...new Set(this.#layouts.toReversed())].filter((each) => each !== objects);
    this.#layouts.push(objects);
    const fields = { ...this.#rules, ...RESERVED, objects };
    const moved = before.length === 0 ? {} : { objectsBefore: before };
    this.#versions.push(parsePolicies({ [NAME]: { ...fields, ...moved } }));
    this.#outcome.deployments += 1;
  }

  /** A deployment ends when all isolates and objects have its version, or the next one begins. */
  #rollOut(): void {
    const [last, other] = [this.#layouts.at(-1), pick(this.#random, LAYOUTS)];
    const back = this.#layouts.at(-2);
    const next = back !== undefined && whole(this.#random, 3) === 0 ? back : other;
    if (next !== last) this.#deploy(next);
  }

  #endRollOut(): void {
    this.#oldest = this.#versions.length - 1;
    // Its memory has unwritten state, which an evicted object writes at its next use.
    for (const object of this.#objects.values()) if (object.version < this.#oldest) this.#replace(object);
  }

  /** Replaces an object by a new version. Calm histories write all state first, as at an orderly end. */
  #replace(object: MovingObject): void {
    if (this.#isCalm) this.#rest(object);
    this.#kill(object);
    this.#outcome.deaths -= 1;
  }

  #rest(object: MovingObject): void {
    const { storage, cache } = object.object.memory;
    const policies = this.#versions[object.version] as Policies;
    if (cache.writeAll(this.clockMs())) storage.allowances.end(policies, this.clockMs());
  }

  #plan(): void {
    let atMs = 0;
    for (let step = 0; step < 160 && atMs < END_MS - 2_000; step += 1) {
      atMs += pick(this.#random, [0, 0, 1, 5, 40, 300, 1_500]);
      this.time.at(atMs, () => this.#step());
    }
    for (let moves = 0; moves < 3; moves += 1) {
      const beginMs = 2_000 + moves * 10_000 + whole(this.#random, 4_000);
      this.time.at(beginMs, () => this.#rollOut());
      // Some are rolled back before they have ended.
      if (whole(this.#random, 3) > 0)
        this.time.at(beginMs + whole(this.#random, 5_000), () => this.#endRollOut());
    }
  }

  #step(): void {
    const key = pick(this.#random, KEYS);
    const what = whole(this.#random, 20);
    if (what === 0) return this.#disturb();
    if (what === 1) return this.#collect();
    if (this.#isCalm) return what < 14 ? this.#take(key) : this.#useHold(key);
    if (what < 5) return this.#reserve(key);
    if (what === 5) return this.#giveBack();
    if (what < 9) return this.#spend();
    return this.#take(key);
  }

  /** An object dies or gets a newer version, or its next writes fail. */
  #disturb(): void {
    const objects = [...this.#objects.values()];
    if (objects.length === 0) return;
    const object = pick(this.#random, objects);
    if (this.#isCalm || whole(this.#random, 3) === 0) return this.#replace(object);
    if (whole(this.#random, 2) === 0) return this.#kill(object);
    const database = this.#databases.get(object.name);
    if (database !== undefined) database.writesLeft = whole(this.#random, 8);
  }

  #collect(): void {
    const object = pick(this.#random, [...this.#objects.values(), undefined]);
    try {
      object?.object.collectGarbage();
    } catch (error) {
      if (!(error instanceof Died) || object === undefined) throw error;
      for (const database of this.#databases.values()) database.writesLeft = Infinity;
      this.#kill(object);
    }
  }

  #take(key: string): void {
    this.#calls += 1;
    const cost = pick(this.#random, [0, 1, 1, 2, 5, 15]);
    const again = this.#isCalm && whole(this.#random, 4) === 0;
    const idempotencyKey = again
      ? { idempotencyKey: `call ${whole(this.#random, 12)} of ${key} for ${cost}` }
      : {};
    const hasPlans = this.#policy(0).plans !== undefined;
    const named = hasPlans && { inForce: { version: 0, plan: pick(this.#random, PLANS) } };
    this.#call(key, (stub) => stub.limitCall({ policy: NAME, key, cost, ...idempotencyKey, ...named }));
  }

  #useHold(key: string): void {
    this.#calls += 1;
    const held = this.#holds.splice(whole(this.#random, Math.max(1, this.#holds.length)), 1)[0];
    if (held !== undefined && whole(this.#random, 2) === 0)
      return this.#call(held.key, (stub) => stub.settle(NAME, held.key, held.id, whole(this.#random, 4)));
    if (whole(this.#random, 4) === 0)
      return this.#call(key, (stub) => stub.refund(NAME, key, 2, `refund ${this.#calls}`));
    this.#call(
      key,
      (stub) => stub.hold({ policy: NAME, key, cost: 3, ttlMs: 5_000 }),
      (answer) => {
        const { hold } = JSON.parse(answer as string) as Decided;
        if (hold !== undefined) this.#holds.push({ key, id: hold.id });
      },
    );
  }

  #reserve(key: string): void {
    this.#calls += 1;
    const version = this.#isolateVersion();
    const policy = this.#policy(version);
    const holder = `holder ${this.#calls}`;
    const wanted = pick(this.#random, [2, 5, 20]);
    const rules = Object.fromEntries(policy.rules.map(({ name }) => [name, { used: 0, kept: 0, wanted }]));
    const ttlMs = policy.reservation.mostMs;
    const sinceMs = this.time.nowMs;
    const call = { policy: NAME, key, cost: 0, holder, turn: 1, ttlMs, isShort: false, rules };
    this.#call(
      key,
      (stub) => stub.reserve(call),
      (answer) => {
        const { reserved } = JSON.parse(answer as string) as Decided;
        const left = Math.min(...Object.values(reserved?.units ?? { none: 0 }));
        const untilMs = sinceMs + spendableMs(reserved?.ttlMs ?? 0);
        if (left > 0) this.#held.push({ key, holder, version, left, used: 0, untilMs });
      },
      version,
    );
  }

  #spend(): void {
    this.#held = this.#held.filter(({ untilMs, left }) => untilMs > this.time.nowMs && left > 0);
    const held = this.#held[whole(this.#random, Math.max(1, this.#held.length))];
    if (held === undefined) return;
    const units = 1 + whole(this.#random, held.left);
    held.left -= units;
    held.used += units;
    this.#admit(held.key, units);
  }

  #giveBack(): void {
    const [held] = this.#held.splice(whole(this.#random, Math.max(1, this.#held.length)), 1);
    if (held === undefined) return;
    const { key, holder, version } = held;
    const used = Object.fromEntries(this.#policy(version).rules.map(({ name }) => [name, held.used]));
    this.#call(key, (stub) => stub.giveBack(NAME, [{ key, holder, turn: 2, used }]), undefined, version);
  }

  /** An isolate of some version calls the object where it places the key. */
  #call(
    key: string,
    call: (stub: ObjectStub) => unknown,
    onAnswer: (answer: unknown) => void = () => undefined,
    version = this.#isolateVersion(),
  ): void {
    const stub = this.stubOf(objectName(this.#policy(version), key), undefined);
    void Promise.resolve(call(stub)).then(onAnswer, () => (this.#outcome.failed += 1));
  }

  #isolateVersion(): number {
    return this.#oldest + whole(this.#random, this.#versions.length - this.#oldest);
  }

  #policy(version: number): Policy {
    return this.#versions[version]?.get(NAME) as Policy;
  }

  #admit(key: string, units: number): void {
    if (this.#isCalm || units === 0) return;
    this.#outcome.admitted += units;
    const loosest = this.#policy(0).plans?.get("big") ?? this.#policy(0);
    const oracles = this.#oracles.get(key) ?? loosest.rules.map((rule) => new Oracle(rule));
    this.#oracles.set(key, oracles);
    for (const oracle of oracles) {
      const over = oracle.admit(units, this.clockMs());
      this.#check(() => law(over <= 0, () => `${over} units of ${key} over the bound`));
    }
  }

  #check(check: () => void): void {
    try {
      check();
    } catch (error) {
      this.#failure ??= error;
    }
  }
}

function isAdmitted(answer: AnswerText): boolean {
  const { rules = [] } = JSON.parse(answer) as Partial<Decided>;
  return rules.length > 0 && rules.every(({ success }) => success);
}
