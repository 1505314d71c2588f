/** One random history of a seed: isolates, the objects of some regions, and their shared pool. */
import type { LimiterStub, Objects } from "../../client/transports/objects.ts";
import type { Cost, Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { PoolAnswer, PoolCall } from "../../durable-objects/pool/protocol.ts";
import { poolKeys } from "../../durable-objects/pool/session.ts";
import { pooledRules } from "../../durable-objects/pool/share-algorithm.ts";
import type { Database } from "./database.ts";
import { Dice } from "./dice.ts";
import { law } from "./laws.ts";
import { objectsOf, onceName, refund, startIsolate, type Running } from "./pools-callers.ts";
import { checkPeek, checkPool, checkRegion } from "./pools-laws.ts";
import { LONGEST_HELD_MS, NAMES, OBJECT_POLICIES, policyIn, REGIONS } from "./pools-policies.ts";
import { SimulatedRegion, type Asked } from "./pools-region.ts";
import { SimulatedPool, type Script } from "./pools-server.ts";
import { Truth, type Having } from "./pools-truth.ts";
import { PoolWire, type Tampering } from "./pools-wire.ts";
import { VirtualTime } from "./virtual-time.ts";

export interface Breakage extends Tampering {
  readonly script?: (script: string) => string;
  readonly after?: (region: SimulatedRegion) => void;
  /** Checks only the bound, as callers see it, and not conservation between the levels. */
  readonly isBoundOnly?: boolean;
  readonly faults?: readonly Fault[];
  /** How often one follows a burst. Absent: `FAULT_SHARE`. */
  readonly faultShare?: number;
  readonly policies?: readonly string[];
  /** A search begins here, shortly before a history that finds it. Other starts find it later. */
  readonly firstSeed?: number;
}

type Fault = (typeof FAULTS)[number];
const FAULTS = ["crash", "crash", "kill", "pause", "pause", "save", "restore", "forget", "vanish"] as const;

interface Place {
  readonly name: string;
  readonly policy: Policy;
  readonly region: SimulatedRegion;
  readonly clock: { ms: number };
  readonly isolates: Running[];
}

export type Outcome = Record<string, number>;

const [FAULT_SHARE, QUIET_MS, LONG_AFTER_MS] = [0.35, 30_000, 10_000_000];

export class PoolHistory {
  readonly #dice: Dice;
  readonly #time = new VirtualTime(() => new Promise((resolve) => setImmediate(resolve)));
  readonly #policyName: string;
  readonly #policy: Policy;
  readonly #key: string;
  readonly #places: Place[] = [];
  readonly #wire: PoolWire;
  readonly #truth: Truth;
  readonly #isFaulty: boolean;
  readonly #breakage: Breakage;
  readonly #open = new Map<number, Running>();
  readonly #outcome: Outcome = {};
  #isSaved = false;
  #calls = 0;
  #failure: unknown;

  constructor(seed: number, script: Script, databases: readonly Database[], breakage: Breakage = {}) {
    this.#dice = new Dice(seed);
    this.#breakage = breakage;
    this.#isFaulty = this.#dice.chance(0.85);
    this.#policyName = this.#dice.of(breakage.policies ?? NAMES);
    this.#policy = policyIn(this.#policyName, 0);
    this.#key = `key ${seed}`;
    this.#truth = new Truth(this.#policy);
    const names = this.#policy.rules.map(({ name }) => name);
    this.#wire = new PoolWire(
      {
        pool: new SimulatedPool(script, poolKeys(this.#policyName, this.#key, names)),
        time: this.#time,
        clock: { ms: 1_791_000_000_000 + this.#dice.upTo(1_000) },
        fateOf: () => this.#dice.fate(this.#isFaulty, 12, this.#dice.of([60, 300, 3_000])),
        onCall: (_, call, answer, keys) => this.#carriedOut(call, answer, keys),
      },
      breakage,
    );
    for (let index = 0; index < 2 + this.#dice.upTo(1); index += 1)
      this.#places.push(this.#startRegion(index, databases[index] as Database));
    this.#plan();
  }

  async run(): Promise<Outcome> {
    await this.#time.run(QUIET_MS, () => this.#check());
    law(this.#open.size === 0, () => `${this.#open.size} calls were never answered`);
    await this.#checkQuiet();
    this.#note("poolCalls", this.#wire.pool.calls);
    this.#note("uncharged", this.#truth.uncharged);
    if (this.#truth.isVoid) this.#note("void");
    return this.#outcome;
  }

  get time(): VirtualTime {
    return this.#time;
  }
  get policyName(): string {
    return this.#policyName;
  }

  #startRegion(index: number, database: Database): Place {
    database.clear();
    const clock = { ms: 1_790_000_000_000 + this.#dice.upTo(500) };
    const name = REGIONS[index]?.name ?? "";
    const policy = policyIn(this.#policyName, index);
    const region = new SimulatedRegion({
      database,
      policies: OBJECT_POLICIES,
      time: this.#time,
      clock,
      poolFor: (time) => this.#wire.from(name, time),
      policy: policy.name,
      key: this.#key,
    });
    const isolates = Array.from({ length: 1 + this.#dice.upTo(1) }, () => this.#startIsolate());
    return { name, policy, region, clock, isolates };
  }

  /** Bursts of calls, each in one isolate, and faults in between. */
  #plan(): void {
    let atMs = 0;
    const { faultShare = FAULT_SHARE } = this.#breakage;
    for (let burst = 3 + this.#dice.upTo(5); burst > 0; burst -= 1) {
      const place = this.#dice.upTo(this.#places.length - 1);
      const isolate = this.#dice.upTo(1);
      const paceMs = this.#dice.of([0, 1, 3, 10, 40]);
      for (let call = 2 + this.#dice.upTo(9); call > 0; call -= 1) {
        this.#time.at(atMs, () => this.#call(place, isolate));
        atMs += this.#dice.upTo(paceMs);
      }
      if (this.#dice.chance(0.3)) this.#time.at(atMs, () => this.#peek());
      if (this.#isFaulty && this.#dice.chance(faultShare)) this.#time.at(atMs, () => this.#fault());
      atMs += this.#dice.of([0, 2, 5, 20, 60, 200, 600, 1_100]);
    }
    this.#time.at(QUIET_MS, () => undefined);
  }

  #call(index: number, isolate: number): void {
    const place = this.#places[index];
    const running = place?.isolates[isolate % place.isolates.length];
    if (place === undefined || running === undefined) return;
    const what = this.#dice.chance(0.75) ? "take" : this.#dice.of(["hold", "end", "end", "refund", "once"]);
    if (what === "end") return this.#end();
    if (this.#policy.lease !== undefined) return this.#acquire(index, isolate, place, running);
    if (what === "hold") return this.#hold(index, isolate, place, running);
    if (what === "once") return this.#once(place, running);
    if (what === "refund") return this.#refund(place, running);
    const cost = this.#cost();
    this.#ask(running, place, (objects, time) => {
      const caller = { objects, time, inBackground: () => undefined };
      const decided = running.isolate.limit(caller, place.policy, this.#key, cost);
      const done = (decision: Awaited<ReturnType<Running["isolate"]["limit"]>>) => {
        if (!("reason" in decision)) throw decision.toError();
        this.#note(decision.reason === "degraded" ? "degraded" : decision.success ? "admitted" : "denied");
        if (decision.source !== "isolate" || !decision.success) return;
        this.#note("byIsolates");
        this.#truth.admit(cost, this.#time.nowMs);
      };
      return decided instanceof Promise ? decided.then(done) : done(decided);
    });
  }

  /** A call that is charged once, however often it is made. */
  #once(place: Place, running: Running): void {
    const once = this.#dice.of([1, 2, 3]);
    const [idempotencyKey, cost] = [onceName(this.#policy, once), once === 1 ? 1 : 3];
    this.#ask(running, place, async (objects) => {
      const { policy } = place;
      const returned = running.isolate.end(policy, this.#key);
      const limit = (object: LimiterStub) => object.limit(policy.name, this.#key, cost, idempotencyKey);
      const asked = await objects.ask(policy, this.#key, limit, { returned });
      this.#note(asked === undefined ? "degraded" : "once");
    });
  }

  #refund(place: Place, running: Running): void {
    const number = this.#dice.upTo(5);
    this.#ask(running, place, async (objects) => {
      const { policy } = place;
      const returned = running.isolate.end(policy, this.#key);
      const giveBack = (object: LimiterStub) =>
        refund(object, policy.name, this.#key, number, onceName(this.#policy, number));
      const asked = await objects.ask(policy, this.#key, giveBack, { returned });
      if (asked !== undefined) this.#note("refunds");
    });
  }

  #hold(index: number, isolate: number, place: Place, running: Running): void {
    const sentMs = this.#time.nowMs;
    const [cost, ttlMs] = [this.#dice.of([1, 2, 8]), this.#dice.of([100, 300, 1_000])];
    this.#ask(running, place, async (objects) => {
      const { policy } = place;
      const returned = running.isolate.end(policy, this.#key);
      const call = { policy: policy.name, key: this.#key, cost, ttlMs };
      const asked = await objects.ask(policy, this.#key, (object) => object.hold(call), { returned });
      const { hold } = JSON.parse(asked?.answer ?? "{}") as Partial<Decided>;
      if (hold === undefined) return;
      this.#note("holds");
      const untilMs = sentMs + hold.expiresAfterMs;
      this.#truth.holds.set(hold.id, { id: hold.id, region: index, isolate, units: cost, untilMs });
    });
  }

  #acquire(index: number, isolate: number, place: Place, running: Running): void {
    const sentMs = this.#time.nowMs;
    const cost = this.#dice.chance(0.8) ? 1 : 2;
    const { ttlMs = 0, maxTtlMs = 0 } = this.#policy.lease ?? {};
    const waitMs = this.#dice.of([0, 0, 0, 50, 400]);
    const id = `lease ${this.#calls}`;
    const lease = { id, cost, ttlMs: this.#dice.of([ttlMs, ttlMs, 60, maxTtlMs]), waitMs };
    this.#ask(
      running,
      place,
      async (objects) => {
        const { policy } = place;
        const call = { policy: policy.name, key: this.#key, ...lease };
        const ask = async (object: ReturnType<Objects["objectOf"]>) =>
          (await object.acquire(call)) as unknown;
        const asked = await objects.ask(policy, this.#key, ask, { waitMs });
        const decided = JSON.parse((asked?.answer as string | undefined) ?? "{}") as Partial<Decided>;
        if (asked === undefined) this.#note("degraded");
        if (decided.lease === undefined) return;
        this.#note("leases");
        const untilMs = sentMs + decided.lease.expiresAfterMs;
        this.#truth.leases.set(id, { id, region: index, isolate, units: cost, untilMs });
      },
      waitMs,
    );
  }

  /** Renews or ends some caller's claim. */
  #end(): void {
    const having = this.#dice.of([...this.#truth.leases.values(), ...this.#truth.holds.values()]);
    const place = this.#places[having?.region ?? -1];
    const running = place?.isolates[(having?.isolate ?? 0) % place.isolates.length];
    if (having === undefined || place === undefined || running === undefined) return;
    if (this.#truth.holds.delete(having.id)) return this.#endHold(having, place, running);
    if (this.#dice.chance(0.4)) return this.#renew(having, place, running);
    this.#truth.leases.delete(having.id);
    this.#ask(running, place, async (objects) => {
      await objects.ask(place.policy, this.#key, (object) =>
        object.release(place.policy.name, this.#key, having.id),
      );
    });
  }

  #renew(lease: Having, place: Place, running: Running): void {
    // Always the longest ttl. A late duplicate of a shorter renewal would shorten a longer one since.
    const ttlMs = this.#policy.lease?.maxTtlMs ?? 0;
    const sentMs = this.#time.nowMs;
    this.#ask(running, place, async (objects) => {
      const { policy } = place;
      const asked = await objects.ask(policy, this.#key, (object) =>
        object.renew(policy.name, this.#key, lease.id, ttlMs),
      );
      const { expiresAfterMs } = JSON.parse(asked?.answer ?? "{}") as { expiresAfterMs?: number };
      if (expiresAfterMs === undefined || !this.#truth.leases.has(lease.id)) return;
      this.#note("renewed");
      lease.untilMs = sentMs + expiresAfterMs;
    });
  }

  /**
   * The caller has used units, unless the hold had expired, and settles, except sometimes when all are used.
   */
  #endHold(hold: Having, place: Place, running: Running): void {
    const isInTime = this.#time.nowMs < hold.untilMs;
    const used = isInTime ? this.#dice.upTo(Number(hold.units)) : 0;
    if (used > 0) this.#truth.admit(used, this.#time.nowMs);
    if (this.#dice.chance(0.3) && used === hold.units) return;
    this.#ask(running, place, async (objects) => {
      const { policy } = place;
      const settle = (object: ReturnType<Objects["objectOf"]>) =>
        used === 0
          ? object.cancel(policy.name, this.#key, hold.id)
          : object.settle(policy.name, this.#key, hold.id, used);
      await objects.ask<unknown>(policy, this.#key, settle);
      this.#note("settled");
    });
  }

  /** Makes a call in an isolate, and checks that it is answered in time. */
  #ask(
    running: Running,
    place: Place,
    work: (objects: Objects, time: ReturnType<VirtualTime["clock"]>) => Promise<void> | void,
    waitMs = 0,
  ): void {
    const id = this.#calls;
    const startMs = this.#time.nowMs;
    this.#calls += 1;
    this.#note("calls");
    this.#open.set(id, running);
    const isGone = () => running.isKilled;
    const time = this.#time.clock(running.clock, isGone);
    const handle = (asked: Asked) => this.#handle(place, asked);
    const objects = objectsOf(
      {
        time: this.#time,
        fateOf: () => this.#dice.fate(this.#isFaulty, 4, 2.5 * this.#policy.reservation.leastMs),
        handle,
      },
      isGone,
      time,
    );
    const done = () => {
      if (isGone()) return;
      this.#open.delete(id);
      // Clocks show whole milliseconds.
      const tookMs = Math.floor(this.#time.nowMs - startMs);
      const mostMs = this.#policy.deadlineMs + waitMs;
      law(tookMs <= mostMs, () => `a call took ${tookMs} ms`);
    };
    const working = work(objects, time);
    if (working === undefined) return done();
    working.then(done).catch((error: unknown) => (this.#failure ??= error));
  }

  async #handle({ region }: Place, asked: Asked): Promise<unknown> {
    const answer = await region.handle(asked);
    if (!["limit", "reserve", "acquire"].includes(asked.method) || typeof answer !== "string") return answer;
    const { rules = [], lease } = JSON.parse(answer) as Partial<Decided>;
    const isDirect = rules.some((rule) => "isDirect" in rule);
    const cost =
      asked.method === "limit" ? asked.cost : "call" in asked && "cost" in asked.call ? asked.call.cost : 0;
    const isTaken = asked.method === "acquire" ? lease !== undefined : rules.every(({ success }) => success);
    try {
      if (isTaken && !isDirect && cost !== 0) {
        this.#note("byRegions");
        this.#truth.admit(cost, this.#time.nowMs);
      }
    } catch (error) {
      this.#failure ??= error;
    }
    return answer;
  }

  #carriedOut(call: PoolCall, answer: PoolAnswer, keys: readonly string[]): void {
    const at = { nowMs: this.#time.nowMs, poolMs: this.#wire.nowMs };
    const isDirect = this.#truth.carriedOut(call, answer, keys, this.#wire.pool.stored, at);
    const [first] = answer.rules ?? [];
    if (isDirect && first !== undefined) {
      this.#note("direct");
      Object.assign(first, { isDirect: true });
    }
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
    this.#truth.checkLeases(this.#time.nowMs);
    for (const { region } of this.#places) if (!region.isVanished) this.#breakage.after?.(region);
    if (this.#breakage.isBoundOnly === true) return;
    const { stored } = this.#wire.pool;
    const poolMs = this.#wire.nowMs;
    checkPool(stored, this.#policy.rules, poolMs, this.#truth.lostMs !== undefined);
    if (poolMs < (this.#truth.lostMs ?? -Infinity) + LONGEST_HELD_MS) return;
    for (const { name, policy, region, isolates } of this.#places) {
      const spending = isolates.map(({ cache, clock }) => ({
        reservation: cache.find(policy, this.#key),
        nowMs: Math.floor(this.#time.nowMs) + clock.ms,
      }));
      const entry = region.isVanished ? {} : { entry: region.open() };
      const { nowMs, latestMs } = region;
      const having = { name, ...entry, nowMs, latestMs, isolates: spending };
      checkRegion(stored, this.#policy.rules, having, poolMs);
    }
  }

  /** Checks in the end that no unit is lost for ever: no hold is left, and all units are free again. */
  async #checkQuiet(): Promise<void> {
    const { pool, nowMs } = this.#wire;
    const live = pool.stored.holds.filter(({ atMs }) => atMs > nowMs);
    law(live.length === 0, () => `in the end ${live.length} holds are left: ${JSON.stringify(live)}`);
    const rules = pooledRules(OBJECT_POLICIES.get(this.#policy.name) as Policy);
    const { rules: said = [] } = await pool.peek(rules, nowMs + LONG_AFTER_MS);
    for (const { name, remaining, limit } of said)
      law(remaining === limit, () => `in the end ${remaining} of ${limit} units of ${name} are free`);
  }

  async #peek(): Promise<void> {
    const { pool, nowMs } = this.#wire;
    const rules = pooledRules(OBJECT_POLICIES.get(this.#policy.name) as Policy);
    const { rules: said = [] } = await pool.peek(rules, nowMs);
    if (this.#breakage.isBoundOnly === true) return;
    const remaining = said.map((each) => each.remaining);
    checkPeek(remaining, pool.stored, this.#policy.rules, nowMs);
  }

  async #fault(): Promise<void> {
    const place = this.#dice.of(this.#places);
    const what = this.#dice.of<Fault>(this.#breakage.faults ?? FAULTS);
    this.#note(what);
    const { pool } = this.#wire;
    if (what === "crash" && !place.region.isVanished) {
      // The object starts again on another machine, whose clock is behind.
      place.clock.ms -= this.#dice.upTo(30);
      place.region.crash();
    } else if (what === "vanish") place.region.vanish();
    else if (what === "pause") this.#wire.pause(this.#dice.of([30, 120, 700, 3_000]));
    else if (what === "kill") this.#kill(place);
    else if (what === "save") {
      await pool.save();
      this.#isSaved = true;
    } else if (what === "forget" || (what === "restore" && this.#isSaved)) {
      await (what === "forget" ? pool.forget() : pool.restore());
      this.#truth.lost(this.#wire.nowMs);
    }
  }

  #kill({ isolates }: Place): void {
    const index = this.#dice.upTo(isolates.length - 1);
    const running = isolates[index];
    if (running === undefined) return;
    running.isKilled = true;
    for (const [id, of] of this.#open) if (of === running) this.#open.delete(id);
    isolates[index] = this.#startIsolate();
  }

  #startIsolate(): Running {
    return startIsolate(`isolate-${this.#dice.upTo(1e9)}`, this.#dice.upTo(1_000));
  }

  #cost(): Cost {
    const units = this.#dice.of([1, 1, 1, 1, 2, 5, 20]);
    return this.#policy.rules.length > 1 && this.#dice.chance(0.3) ? { requests: 1 } : units;
  }

  #note(name: string, count = 1): void {
    this.#outcome[name] = (this.#outcome[name] ?? 0) + count;
  }
}
