/** A random history of a key that is mostly denied: isolates call it without a pause, and return units. */
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { Objects } from "../../client/transports/objects.ts";
import { decideTogether, outstandingOf } from "../../core/accounts/account.ts";
import type { SlidingWindowCounterConfig } from "../../core/algorithms/windows/sliding-window-counter.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { FLOOD_MS, maxUnits } from "../../core/reservations/sizing.ts";
import type { Database } from "./database.ts";
import { Dice } from "./dice.ts";
import { law } from "./laws.ts";
import { simulatedNamespace, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { manyTurns, VirtualTime } from "./virtual-time.ts";

const KEY = "key";
const COSTS = [1, 5];
/** The longest way of a message. An isolate's wait begins this much later than the object's. */
const WAY_MS = 4;
/** Where isolates hold units, a denial is repeated for a second. */
const UNSURE_MS = 1_000;

const SLOW = { algorithm: "token-bucket", limit: 64, window: "1h" };
/** Several keys have an object, so that its answers say in which epoch they are. */
const SHARED = { objects: 1 };
const { regionalPolicies } = parseDeployment({
  policies: {
    slow: SLOW,
    brief: { ...SLOW, ...SHARED, denialTtl: "3s" },
    never: { ...SLOW, denialTtl: "0s" },
    steady: { algorithm: "token-bucket", limit: 1, window: "2s", burst: 40 },
    log: { algorithm: "sliding-log", limit: 64, window: "5s", ...SHARED },
    spaced: { algorithm: "sliding-log", limit: 64, window: "5s", minInterval: "700ms" },
    window: { algorithm: "fixed-window", limit: 64, window: "4s", ...SHARED },
    counter: { algorithm: "sliding-window-counter", limit: 40, window: "6s", ...SHARED },
    credits: { algorithm: "credits", limit: 60 },
    two: {
      rules: { rate: { ...SLOW, window: "60s" }, log: { algorithm: "sliding-log", limit: 50, window: "8s" } },
    },
  },
});
export const FLOODED = [...regionalPolicies.named.keys()];

export interface Mistake {
  /** Changes the object's answer to a call for units. */
  readonly answer?: (answer: Decided) => Decided;
  readonly policies?: readonly string[];
}

export interface Flood {
  readonly calls: number;
  readonly asked: number;
  readonly admitted: number;
  readonly repeated: number;
}

/** A call that an isolate did not answer at once. */
interface Asking {
  readonly isolate: number;
  readonly cost: number;
  readonly atMs: number;
  /** When the isolate last repeated a denial of that cost before it. */
  readonly repeatedMs: number;
  /** Infinity: it has no answer yet. */
  answeredMs: number;
}

/**
 * How much earlier than its wait a cost of 1 may pass at a counter, in milliseconds. The wait counts what the
 * isolate holds until the hold ends. Settled in the window before, it leaves the view with the others: the
 * first unit is free after windowMs / limit of the next window instead of windowMs / (limit - held).
 */
function soonerMs({ rules }: Policy): number {
  const each = rules.map((rule) => {
    if (rule.algorithm.name !== "sliding-window-counter") return 0;
    const { limit, windowMs } = rule.config as SlidingWindowCounterConfig;
    return Math.ceil(windowMs / (limit - Math.floor(maxUnits(rule))) - windowMs / limit);
  });
  return Math.max(...each);
}

export class FloodSchedule {
  readonly #dice: Dice;
  readonly #time = new VirtualTime(manyTurns);
  readonly #object: SimulatedObject;
  readonly #policy: Policy;
  readonly #mistake: Mistake;
  readonly #isolates: LimiterClient[] = [];
  /** By isolate: when its last call by name was executed. */
  readonly #namedAtMs: number[] = [];
  readonly #asking: Asking[] = [];
  /** By isolate and cost: when it last repeated a denial. */
  readonly #repeatedMs = new Map<string, number>();
  /** Since when the object would admit a cost. */
  readonly #liftedMs = new Map<number, number>();
  /** When a message last reduced the held units. */
  #unitsAtMs = -Infinity;
  #failure: unknown;
  #sum = { calls: 0, asked: 0, admitted: 0, repeated: 0 };

  constructor(seed: number, database: Database, mistake: Mistake = {}) {
    this.#dice = new Dice(seed);
    this.#mistake = mistake;
    this.#policy = regionalPolicies.get(this.#dice.of(mistake.policies ?? FLOODED)) as Policy;
    database.clear();
    this.#object = new SimulatedObject(database, regionalPolicies.named, () =>
      Math.floor(this.#time.nowMs + 1_000_000),
    );
    for (let isolate = this.#dice.upTo(2); isolate >= 0; isolate -= 1) this.#start();
    this.#plan();
  }

  async run(): Promise<Flood> {
    await this.#time.run(60_000, () => void this.#look());
    if (this.#failure !== undefined) throw this.#failure;
    return this.#sum;
  }

  #plan(): void {
    let atMs = 0;
    for (let phase = 4 + this.#dice.upTo(4); phase > 0; phase -= 1) {
      const isolate = this.#dice.upTo(this.#isolates.length - 1);
      const cost = this.#dice.of([1, 1, 5]);
      const paceMs = this.#dice.of([1, 2, 5, 20]);
      const forMs = this.#dice.of([10, 40, 300, 2_500]);
      for (let callMs = 0; callMs < forMs; callMs += paceMs)
        this.#time.at(atMs + callMs, () => this.#call(isolate, cost));
      // Phases overlap, so that isolates call at once.
      atMs += this.#dice.of([0, 100, 700, forMs]);
      if (this.#dice.chance(0.4)) this.#time.at(atMs, () => this.#name());
    }
  }

  #call(isolate: number, cost: number): void {
    this.#sum.calls += 1;
    const decided = this.#isolates[isolate]?.limit(this.#policy, KEY, { cost });
    if (decided === undefined) return;
    if (!(decided instanceof Promise)) return this.#decided(decided, isolate, cost);
    const { nowMs: atMs } = this.#time;
    const repeatedMs = this.#repeatedMs.get(`${isolate} ${cost}`) ?? -Infinity;
    const asking = { isolate, cost, atMs, repeatedMs, answeredMs: Infinity };
    this.#asking.push(asking);
    void decided.then(
      (each) => {
        asking.answeredMs = this.#time.nowMs;
        this.#decided(each, isolate, cost);
      },
      (error: unknown) => (this.#failure ??= error),
    );
  }

  /** A call by name that returns units. */
  #name(): void {
    const isolate = this.#dice.upTo(this.#isolates.length - 1);
    const client = this.#isolates[isolate];
    const isReset = this.#dice.chance(0.5);
    const done = isReset
      ? client?.reset(this.#policy, KEY)
      : client?.refund(this.#policy, KEY, 1 + this.#dice.upTo(9), `refund ${this.#time.nowMs}`);
    void done?.catch((error: unknown) => (this.#failure ??= error));
  }

  #decided(decision: Decision | Problem, isolate: number, cost: number): void {
    if (!("success" in decision)) return void (this.#failure ??= new Error(decision.detail));
    if (decision.success) this.#sum.admitted += 1;
    if (decision.success || decision.source !== "isolate") return;
    this.#sum.repeated += 1;
    this.#look();
    this.#try(() => this.#repeated(isolate, cost));
    this.#repeatedMs.set(`${isolate} ${cost}`, this.#time.nowMs);
  }

  /**
   * The object would make the same denial as the isolate, except for late news by name, and until a call
   * under way is answered.
   * @throws BrokenLaw
   */
  #repeated(isolate: number, cost: number): void {
    const liftedMs = this.#liftedMs.get(cost);
    if (liftedMs === undefined) return;
    // An isolate knows its own calls by name. Only later ones can be news to it.
    const ownMs = this.#namedAtMs[isolate] ?? -Infinity;
    const othersMs = Math.max(-Infinity, ...this.#namedAtMs.filter((_, each) => each !== isolate));
    const { denialTtlMs } = this.#policy;
    const news = (atMs: number, forMs: number) => (atMs > ownMs ? atMs + forMs : -Infinity);
    const mostMs = Math.max(
      liftedMs + (cost === 1 ? soonerMs(this.#policy) : 0),
      // Its answer may wait for that of an earlier message, which returned units: both ways.
      ownMs + WAY_MS,
      news(this.#unitsAtMs, Math.min(UNSURE_MS, denialTtlMs)),
      news(othersMs, denialTtlMs),
    );
    const { nowMs } = this.#time;
    if (nowMs <= mostMs + WAY_MS) return;
    // The first unanswered call asks for all, unless calls had paused for long.
    const asking = this.#asking.find(
      (each) => each.isolate === isolate && each.cost === cost && each.answeredMs > mostMs,
    );
    const isAsked = asking?.answeredMs === Infinity && asking.atMs < asking.repeatedMs + FLOOD_MS;
    const ago = (atMs = -Infinity) => `${nowMs - atMs} ms ago`;
    const inWords = () =>
      `a cost of ${cost} is denied that would pass since ${ago(liftedMs)}: units came back ${ago(this.#unitsAtMs)}, ` +
      `this isolate gave some back ${ago(ownMs)}, and others ${ago(othersMs)}; ` +
      `it asked ${ago(asking?.atMs)}, and heard ${ago(asking?.answeredMs)}`;
    law(isAsked, inWords);
  }

  #handle(isolate: number, method: Method, args: readonly unknown[]): unknown {
    const before = this.#look();
    const answer = this.#object.handle(method, args);
    if (this.#look() < before) this.#unitsAtMs = this.#time.nowMs;
    const isNamed = method === "refund" || method === "reset";
    if (isNamed) this.#namedAtMs[isolate] = this.#time.nowMs;
    if (isNamed || method === "giveBack") return answer;
    this.#sum.asked += 1;
    const decided = JSON.parse(answer as string) as Decided;
    return JSON.stringify(this.#mistake.answer?.(decided) ?? decided);
  }

  /** Notes since when the object would admit each cost, and returns the held units. */
  #look(): number {
    const { nowMs } = this.#object;
    const ruleAccounts = this.#object.open(this.#policy, KEY).seenBy();
    for (const cost of COSTS) {
      const { admitted } = decideTogether(ruleAccounts, nowMs, cost);
      if (!admitted) this.#liftedMs.delete(cost);
      else if (!this.#liftedMs.has(cost)) this.#liftedMs.set(cost, this.#time.nowMs);
    }
    return ruleAccounts.reduce((sum, { account }) => sum + outstandingOf(account), 0);
  }

  #start(): void {
    const isolate = this.#isolates.length;
    const time = this.#time.clock({ ms: this.#dice.upTo(1_000) });
    const namespace = simulatedNamespace(
      this.#time,
      (method, args) => this.#handle(isolate, method, args),
      () => ({ thereMs: this.#dice.upTo(4), backMs: this.#dice.upTo(4) }),
      () => false,
    );
    const parts = { policies: regionalPolicies, time, inBackground: () => undefined };
    this.#isolates.push(new LimiterClient({ ...parts, objects: new Objects(namespace, time) }));
  }

  #try(check: () => void): void {
    try {
      check();
    } catch (error) {
      this.#failure ??= error;
    }
  }
}
