/** One random history of a seed: isolates, an object and the messages between them. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { Objects } from "../../client/transports/objects.ts";
import type { Time } from "../../core/clock.ts";
import { type Cost, costOf, forPriority, type Policy } from "../../core/policies/policy.ts";
import { ofGroup } from "../../core/policies/seen-policy.ts";
import type { AnswerText, Decided } from "../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall, SeenBy } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import { seededRandom } from "../support/random.ts";
import type { Database } from "./database.ts";
import { checkConservation, checkFigures, law, Oracles } from "./laws.ts";
import { answeredTogether, simulatedNamespace, type Fate, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

const BUCKET = { algorithm: "token-bucket", limit: 40, window: 1_000 };
const LOG = { algorithm: "sliding-log", limit: 64, window: 400 };
const COUNTER = { algorithm: "sliding-window-counter" };
const deadlineMs = 100;

/** Rates without delays, which isolates decide too. Used only by breakages that name them. */
const UNDELAYED = {
  cycles: { ...LOG, algorithm: "permits-per-cycle", reservation: { ttl: 50 }, deadlineMs },
  nodelay: {
    ...BUCKET,
    algorithm: "leaky-bucket",
    burst: 63,
    nodelay: true,
    reservation: { ttl: 40 },
    deadlineMs,
  },
};

/** Units become scarce after a few calls, and lifetimes are as long as a few messages. */
const POLICIES = parsePolicies({
  brief: { ...BUCKET, burst: 48, reservation: { ttl: 40 }, deadlineMs },
  bucket: { ...BUCKET, limit: 200, burst: 96, reservation: { ttl: 120 }, deadlineMs },
  slow: { ...BUCKET, limit: 1, window: 60_000, burst: 64, reservation: { ttl: 60 }, deadlineMs },
  auto: { ...BUCKET, limit: 500, burst: 400, deadlineMs },
  log: { ...LOG, reservation: { ttl: 50 }, deadlineMs },
  long: { ...LOG, window: 3_000, limit: 100, reservation: { ttl: 200 }, deadlineMs },
  window: { algorithm: "fixed-window", limit: 64, window: 400, reservation: { ttl: 50 }, deadlineMs },
  first: {
    algorithm: "fixed-window",
    limit: 100,
    window: 900,
    align: "first",
    jitter: 90,
    reservation: { ttl: 120 },
    deadlineMs,
  },
  counter: { ...COUNTER, limit: 80, window: 500, reservation: { ttl: 60 }, deadlineMs },
  windows: {
    rules: {
      month: { algorithm: "fixed-window", limit: 300, window: 2_500 },
      rate: { ...COUNTER, limit: 64, window: 300 },
      total: { ...LOG, window: 900 },
    },
    reservation: { ttl: 80 },
    deadlineMs,
  },
  two: {
    rules: { rate: { ...BUCKET, burst: 64 }, total: { ...LOG, window: 900 } },
    reservation: { ttl: 80 },
    deadlineMs,
  },
  ...UNDELAYED,
});
/** Refills nothing in a history, and is large enough for reservations. Used only by name. */
const PLAN = parsePolicies({
  plan: { ...BUCKET, limit: 20_000, window: "30d", reservation: { ttl: 60 }, deadlineMs },
});
/** A part of the limit is kept for more important calls. Used only by name. */
const PRIORITISED = parsePolicies({
  kept: {
    ...BUCKET,
    limit: 200,
    burst: 96,
    reserve: { critical: "25%", high: "12.5%" },
    reservation: { ttl: 120 },
    deadlineMs,
  },
  keptLog: {
    ...LOG,
    priorities: ["paid", "free"],
    reserve: { paid: "50%" },
    reservation: { ttl: 50 },
    deadlineMs,
  },
});
export const PRIORITISED_NAMES = [...PRIORITISED.keys()];
/** Groups share the limit, with parts that are large enough for reservations. Used only by name. */
const SHARED = parsePolicies({
  shared: { ...BUCKET, limit: 100, burst: 200, fair: true, reservation: { ttl: 80 }, deadlineMs },
  sharedLong: { ...BUCKET, limit: 90, burst: 240, fair: true, reservation: { ttl: 200 }, deadlineMs },
});
export const SHARED_NAMES = [...SHARED.keys()];
const GROUPS = ["one", "two"];
const ALL = new Map([...POLICIES, ...PLAN, ...PRIORITISED, ...SHARED]);
const NAMES = [...POLICIES.keys()].filter((name) => !Object.hasOwn(UNDELAYED, name));
const KEY = "key";
/** The most by which a crash sets the object's clock back. */
const MAX_BACK_MS = 30;

export interface Breakage {
  /** Checks only the bound, as callers see it, and not conservation between the levels. */
  readonly isBoundOnly?: boolean;
  /** Called before each call of an object, and after its answer. */
  readonly before?: (object: SimulatedObject, policy: Policy) => void;
  readonly after?: (object: SimulatedObject, policy: Policy) => void;
  readonly atCrash?: (object: SimulatedObject) => void;
  /** Changes a message on its way to the object. */
  readonly message?: (args: readonly unknown[]) => readonly unknown[];
  readonly isAlone?: boolean;
  /** Isolates are far from the object, so they have buckets of their own. Otherwise in every fourth history. */
  readonly isFar?: boolean;
  readonly policies?: readonly string[];
}

export interface Outcome {
  readonly calls: number;
  readonly admittedByIsolates: number;
  readonly admittedByObject: number;
  readonly denied: number;
  readonly degraded: number;
  readonly crashes: number;
  /** Values that isolates reported: their number, and the sums of their errors (`Off`). */
  readonly figures: number;
  readonly tooMany: number;
  readonly tooFew: number;
  readonly late: number;
  readonly batches: number;
}

const NOTHING = {
  calls: 0,
  admittedByIsolates: 0,
  admittedByObject: 0,
  denied: 0,
  degraded: 0,
  crashes: 0,
  batches: 0,
  figures: 0,
  tooMany: 0,
  tooFew: 0,
  late: 0,
};

/** An isolate, its clock, and whether it has been killed. */
interface Running {
  readonly isolate: LocalLimiter;
  readonly cache: ReservationCache;
  /** In every other history calls travel together. */
  readonly queues: BatchQueues | undefined;
  readonly clock: { ms: number };
  isKilled: boolean;
  isPutBack: boolean;
  /** The most by which a request's reading may be behind. */
  readonly jitterMs: number;
  /** Units that its calls wait for. */
  open: number;
}

export class Schedule {
  readonly #seed: number;
  readonly #random: () => number;
  readonly #jitter: () => number;
  readonly #time = new VirtualTime();
  readonly #object: SimulatedObject;
  readonly #objectClock: { ms: number };
  readonly #policy: Policy;
  readonly #oracles: Oracles;
  readonly #isolates: Running[] = [];
  readonly #isFaulty: boolean;
  /** What each message takes at least, one way. */
  readonly #wayMs: number;
  readonly #breakage: Breakage;
  readonly #open = new Map<number, Running>();
  #failure: unknown;
  #outcome = { ...NOTHING };

  constructor(seed: number, database: Database, breakage: Breakage = {}) {
    this.#seed = seed;
    this.#random = seededRandom(seed);
    this.#jitter = seededRandom(seed + 1);
    this.#breakage = breakage;
    this.#isFaulty = this.#chance(0.8) && breakage.isAlone !== true;
    this.#wayMs = breakage.isFar === true || seed % 4 === 2 ? 12 : 0;
    this.#policy = ALL.get(this.#of(breakage.policies ?? NAMES)) as Policy;
    this.#oracles = new Oracles(this.#policy);
    this.#objectClock = { ms: 1_000_000 + this.#upTo(500) };
    database.clear();
    this.#object = new SimulatedObject(
      database,
      ALL,
      () => Math.floor(this.#time.nowMs) + this.#objectClock.ms,
    );
    const isolates = breakage.isAlone === true ? 1 : 1 + this.#upTo(4);
    for (let count = isolates; count > 0; count -= 1) this.#isolates.push(this.#start());
    this.#plan();
  }

  async run(): Promise<Outcome> {
    await this.#time.run(10_000, () => this.#check());
    law(this.#open.size === 0, () => `${this.#open.size} calls were never answered`);
    return this.#outcome;
  }

  /** Bursts of calls, each at one isolate, and faults in between. */
  #plan(): void {
    let atMs = 0;
    for (let burst = 3 + this.#upTo(4); burst > 0; burst -= 1) {
      const index = this.#upTo(this.#isolates.length - 1);
      const paceMs = this.#of([0, 0, 1, 3, 10]);
      for (let call = 2 + this.#upTo(8); call > 0; call -= 1) {
        const cost = this.#cost();
        const of = { priority: this.#priority(), ...(this.#policy.isFair && { group: this.#of(GROUPS) }) };
        this.#time.at(atMs, () => this.#call(index, cost, of));
        atMs += this.#upTo(paceMs);
      }
      if (this.#isFaulty && this.#chance(0.25)) this.#time.at(atMs, () => this.#fault());
      atMs += this.#of([0, 2, 5, 20, 60, 200, 1_100]);
    }
    for (const quietMs of [1_000, 2_500]) this.#time.at(quietMs, () => this.#object.collectGarbage());
  }

  #call(index: number, cost: Cost, { priority, group }: SeenBy): void {
    const running = this.#isolates[index];
    if (running === undefined) return;
    const startMs = this.#time.nowMs;
    const id = this.#outcome.calls;
    const request = { isGone: false };
    const isGone = () => request.isGone || running.isKilled;
    const time = this.#jittering(this.#time.clock(running.clock, isGone), running.jitterMs);
    const handle = (method: Method, args: readonly unknown[]) => this.#handle(method, args);
    const namespace = simulatedNamespace(this.#time, handle, () => this.#fate(), isGone);
    const units = Math.max(...this.#policy.rules.map((rule) => costOf(rule, cost)));
    this.#outcome.calls += 1;
    this.#open.set(id, running);
    running.open += units;
    if (this.#isFaulty && this.#chance(0.05))
      this.#time.at(startMs + this.#upTo(20), () => {
        request.isGone = true;
        this.#open.delete(id);
      });
    const done = (decision: Decision | Problem) => {
      if (decision instanceof Problem) throw decision.toError();
      if (isGone()) return;
      this.#open.delete(id);
      running.open -= units;
      const tookMs = this.#time.nowMs - startMs;
      // A clock that is put back makes waits by that clock longer.
      const mostMs = this.#policy.deadlineMs * (this.#isFaulty ? 3 : 1);
      law(tookMs <= mostMs, () => `a call took ${tookMs} ms`);
      this.#decided(decision, cost, priority);
    };
    const inBackground = () => undefined;
    const together = running.queues && { queues: running.queues, inBackground };
    const caller = { objects: new Objects(namespace, time, together), time, inBackground };
    const policy = group === undefined ? this.#policy : ofGroup(this.#policy, { group });
    const decided = running.isolate.limit(caller, forPriority(policy, priority), KEY, cost);
    if (!(decided instanceof Promise)) {
      done(decided);
      return this.#checkFigures(decided, running, priority);
    }
    decided.then(done).catch((error: unknown) => (this.#failure ??= error));
  }

  #decided(decision: Decision, cost: Cost, priority: string | undefined): void {
    if (decision.reason === "degraded") this.#outcome.degraded += 1;
    else if (!decision.success) this.#outcome.denied += 1;
    if (decision.source !== "isolate" || !decision.success) return;
    this.#outcome.admittedByIsolates += 1;
    this.#admit(cost, priority);
  }

  /** Checks the values of immediate decisions. Before a promise settles, other calls may have spent units. */
  #checkFigures(decision: Decision, { cache, clock, open }: Running, priority: string | undefined): void {
    const reservation = cache.find(forPriority(this.#policy, priority), KEY);
    if (this.#breakage.isBoundOnly === true || reservation === undefined) return;
    const entry = this.#object.open(this.#policy, KEY);
    const seen = { ruleStates: entry.seenBy({ priority }), holders: entry.holders };
    const telling = { reservation, nowMs: Math.floor(this.#time.nowMs) + clock.ms, open };
    const isAlone = !this.#isFaulty && this.#isolates.length === 1 && this.#policy.priorities.seen.size === 0;
    for (const off of checkFigures(decision, seen, this.#object.nowMs, telling, isAlone)) {
      this.#outcome.figures += 1;
      this.#outcome.tooMany += off.tooMany;
      this.#outcome.tooFew += off.tooFew;
      this.#outcome.late += off.late;
    }
  }

  #handle(method: Method, sent: readonly unknown[]): unknown {
    const ask = (each: Method, args: readonly unknown[]) => this.#handle(each, args);
    const together = answeredTogether(sent[0], ask, (error) => (this.#failure ??= error));
    if (together !== undefined) this.#outcome.batches += 1;
    if (together !== undefined) return together;
    const args = this.#breakage.message?.(sent) ?? sent;
    this.#breakage.before?.(this.#object, this.#policy);
    const answer = this.#object.handle(method, args);
    this.#breakage.after?.(this.#object, this.#policy);
    if (method === "giveBack") return answer;
    const { cost, priority } =
      method === "limit"
        ? { cost: sent[2] as Cost, priority: undefined }
        : (sent[0] as ReserveCall | LimitCall);
    const { rules } = JSON.parse(answer as AnswerText) as Decided;
    if (cost === 0 || rules.some(({ success }) => !success)) return answer;
    this.#outcome.admittedByObject += 1;
    this.#admit(cost, priority);
    return answer;
  }

  #admit(cost: Cost, priority: string | undefined): void {
    const clock = { nowMs: this.#object.nowMs, backMs: MAX_BACK_MS * this.#outcome.crashes };
    this.#oracles.admit(cost, this.#time.nowMs, priority, clock);
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#breakage.isBoundOnly === true) return;
    const isolates = this.#isolates.flatMap(({ cache, clock, jitterMs }) =>
      cache.all(this.#policy, KEY).map((reservation) => ({
        reservation,
        // Some request may read this.
        nowMs: Math.floor(this.#time.nowMs) + clock.ms - jitterMs,
      })),
    );
    checkConservation(
      this.#object.open(this.#policy, KEY),
      this.#object.nowMs,
      isolates,
      this.#outcome.crashes > 0,
    );
  }

  #fault(): void {
    const index = this.#upTo(this.#isolates.length - 1);
    const running = this.#isolates[index];
    const what = this.#of(["crash", "crash", "kill", "clock", "reset"]);
    if (what === "crash") {
      this.#outcome.crashes += 1;
      this.#breakage.atCrash?.(this.#object);
      // The object starts again on another machine, whose clock is behind.
      this.#objectClock.ms -= this.#upTo(MAX_BACK_MS);
      this.#object.crash();
    } else if (what === "kill" && running !== undefined) {
      running.isKilled = true;
      for (const [id, of] of this.#open) if (of === running) this.#open.delete(id);
      this.#isolates[index] = this.#start();
    } else if (what === "reset") {
      this.#object.reset(this.#policy.name, KEY);
      // From here on the key is new, except for units that isolates already had.
      this.#oracles.reset();
    } else if (what === "clock" && running !== undefined) {
      // Put back once only, and by no more than the unspent end of a lifetime, which is meant for that.
      const mostMs = Math.floor(this.#policy.reservation.leastMs / 4) - running.jitterMs;
      const marginMs = running.isPutBack ? 0 : mostMs;
      running.isPutBack = true;
      const byMs = this.#of([-Math.min(200, marginMs), -Math.min(5, marginMs), 20, 200]);
      running.clock.ms += byMs;
    }
  }

  #start(): Running {
    const id = `isolate-${this.#isolates.length}-${this.#upTo(1e9)}`;
    const cache = new ReservationCache(() => id);
    return {
      cache,
      isolate: new LocalLimiter(cache),
      queues: this.#seed % 2 === 1 ? new BatchQueues() : undefined,
      clock: { ms: this.#upTo(1_000) },
      isKilled: false,
      isPutBack: false,
      // In every third history, by half of a lifetime's margin for clocks.
      jitterMs: this.#isFaulty && this.#seed % 3 === 0 ? Math.floor(this.#policy.reservation.leastMs / 8) : 0,
      open: 0,
    };
  }

  /** A clock with random delays of its readings, which draws no numbers of the history. */
  #jittering(time: Time, jitterMs: number): Time {
    if (jitterMs === 0) return time;
    return { ...time, nowMs: () => time.nowMs() - Math.floor(this.#jitter() * (jitterMs + 1)) };
  }

  /** Most messages take a moment; some are lost, some very late, some doubled. */
  #fate(): Fate {
    const delayMs = () =>
      this.#isFaulty && this.#chance(0.06)
        ? this.#upTo(2.5 * this.#policy.reservation.leastMs)
        : this.#wayMs + this.#upTo(4);
    const isLost = () => this.#isFaulty && this.#chance(0.05);
    return {
      ...(!isLost() && { thereMs: delayMs() }),
      ...(!isLost() && { backMs: delayMs() }),
      ...(this.#isFaulty && this.#chance(0.04) && { againMs: delayMs() }),
    };
  }

  #cost(): Cost {
    const units = this.#of(this.#policy.isFair === true ? [1, 1, 1, 2, 60] : [1, 1, 1, 1, 2, 5, 20]);
    return this.#policy.rules.length > 1 && this.#chance(0.3) ? { requests: 1 } : units;
  }

  /** Drawn only where it matters, so that seeds of other policies keep their meaning. */
  #priority(): string | undefined {
    const { names, seen } = this.#policy.priorities;
    return seen.size === 0 ? undefined : this.#of([...names, undefined]);
  }

  #chance(share: number): boolean {
    return this.#random() < share;
  }

  #upTo(most: number): number {
    return Math.floor(this.#random() * (most + 1));
  }

  #of<Value>(values: readonly Value[]): Value {
    return values[Math.floor(this.#random() * values.length)] as Value;
  }
}
