/**
 * Random histories of a policy that changes at run time: isolates that learn of it late, an object that they tell, messages
 * that are late, lost and twice, and crashes. Each history is made from a seed.
 */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { Objects } from "../../client/transports/objects.ts";
import { Outboxes } from "../../client/transports/outboxes.ts";
import { later, type InForce } from "../../core/policies/in-force.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { LimitCall, ReserveCall } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import type { Database } from "./database.ts";
import { Dice } from "./dice.ts";
import { law, Oracle } from "./laws.ts";
import { answeredTogether, simulatedNamespace, type Fate, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

const KEY = "key";
const NAME = "p";
/** Within so many milliseconds every isolate that hears of anything knows of a change. */
const LAG_MS = 80;
/** What is spent under an earlier version has been granted before that, and lives for so long at most. */
const TTL_MS = 60;
const END_MS = 4_000;

const KINDS = [
  { algorithm: "token-bucket", window: 1_000 },
  { algorithm: "sliding-log", window: 400 },
  { algorithm: "sliding-window-counter", window: 500 },
] as const;

/** What a version says of the policy. */
interface Version {
  readonly policy: Policy;
  readonly sinceMs: number;
}

interface Isolate {
  readonly limiter: LocalLimiter;
  readonly outboxes: Outboxes;
  known: number;
}

/** A mistake that is made on purpose, to see that the laws find it. */
export interface Breakage {
  /** Changes what an isolate tells the object. */
  readonly told?: (version: number, versions: number) => number;
  /** Isolates do not say when an override ended. */
  readonly isTimeless?: boolean;
  /** Isolates never learn. */
  readonly isDeaf?: boolean;
  /** An object starts again without what is stored of versions. */
  readonly forgets?: boolean;
}

export interface Outcome {
  readonly calls: number;
  readonly changes: number;
  readonly admittedByIsolates: number;
  readonly admitted: number;
  readonly denied: number;
  readonly crashes: number;
  readonly adopted: number;
}

/** One history. */
export class History {
  readonly #dice: Dice;
  readonly #time = new VirtualTime();
  readonly #database: Database;
  readonly #object: SimulatedObject;
  readonly #breakage: Breakage;
  readonly #versions: Version[] = [];
  readonly #isolates: Isolate[] = [];
  /** The loosest that was ever in force: nothing is ever admitted over it. */
  readonly #loosest: Oracle;
  /** The one in force alone, once everybody knows it. */
  #strict: Oracle | undefined;
  #failure: unknown;
  #seen: InForce | undefined;
  #back = 0;
  #outcome = { calls: 0, changes: 0, admittedByIsolates: 0, admitted: 0, denied: 0, crashes: 0, adopted: 0 };

  constructor(seed: number, database: Database, breakage: Breakage = {}) {
    this.#dice = new Dice(seed);
    this.#database = database;
    this.#breakage = breakage;
    database.clear();
    const kind = this.#dice.of(KINDS);
    const changes = 1 + this.#dice.upTo(3);
    const limits = Array.from({ length: changes + 1 }, () => this.#dice.of([20, 40, 64, 100, 160]));
    const tables = limits.map((limit) => ({ ...kind, limit, reservation: { ttl: TTL_MS }, deadlineMs: 50 }));
    const policies = tables.map((table) => parsePolicies({ [NAME]: table }).get(NAME) as Policy);
    this.#plan(policies, tables);
    const most = policies.reduce((one, other) =>
      one.rules[0].capacity >= other.rules[0].capacity ? one : other,
    );
    this.#loosest = new Oracle(most.rules[0]);
    const file: Policies = new Map([[NAME, policies[0] as Policy]]);
    this.#object = new SimulatedObject(
      database,
      file,
      () => Math.floor(this.#time.nowMs) + 1_000_000 - this.#back,
    );
    for (let count = 1 + this.#dice.upTo(3); count > 0; count -= 1) this.#isolates.push(this.#isolate(count));
  }

  async run(): Promise<Outcome> {
    await this.#time.run(END_MS + 1_000, () => this.#check());
    return this.#outcome;
  }

  #plan(policies: readonly Policy[], tables: readonly object[]): void {
    let version = 0;
    for (const [index, policy] of policies.entries()) {
      const atMs = index === 0 ? 0 : Math.floor((index * END_MS) / policies.length) + this.#dice.upTo(200);
      const fields = JSON.stringify(textOf(tables[index] as object));
      // An override that ends by itself changes what is in force, and not the version.
      const isEnd = version > 0 && this.#dice.chance(0.4);
      if (!isEnd) version = index;
      const inForce = { version, fields, ...(isEnd && { sinceMs: 1_000_000 + atMs }) };
      const changed = { policy: index === 0 ? policy : { ...policy, inForce }, sinceMs: atMs };
      if (index === 0) this.#versions.push(changed);
      else this.#time.at(atMs, () => this.#change(changed));
    }
    for (let atMs = 0; atMs < END_MS; atMs += this.#dice.of([1, 3, 10, 40, 200])) {
      const cost = this.#dice.of([1, 1, 1, 2, 5]);
      const index = this.#dice.upTo(2);
      const calls = this.#dice.of([1, 1, 4, 12]);
      this.#time.at(atMs, () => {
        for (let call = 0; call < calls; call += 1) this.#call(index % this.#isolates.length, cost);
      });
      if (this.#dice.chance(0.02)) this.#time.at(atMs, () => this.#crash());
    }
  }

  /** A change is acknowledged. Isolates learn of it one after the other. */
  #change(version: Version): void {
    this.#versions.push(version);
    this.#outcome.changes += 1;
    this.#strict = undefined;
    const number = this.#versions.length - 1;
    for (const isolate of this.#isolates)
      if (this.#breakage.isDeaf !== true)
        this.#time.at(this.#time.nowMs + this.#dice.upTo(LAG_MS), () => {
          isolate.known = Math.max(isolate.known, number);
        });
    const isOver = () => number === this.#versions.length - 1;
    this.#time.at(this.#time.nowMs + LAG_MS + 2 * TTL_MS + 50, () => {
      if (isOver()) this.#strict = new Oracle(version.policy.rules[0]);
    });
  }

  #isolate(count: number): Isolate {
    const cache = new ReservationCache(() => `isolate-${count}-${this.#dice.upTo(1e9)}`);
    return { limiter: new LocalLimiter(cache), outboxes: new Outboxes(), known: 0 };
  }

  #call(index: number, cost: number): void {
    const isolate = this.#isolates[index];
    if (isolate === undefined) return;
    this.#outcome.calls += 1;
    const time = this.#time.clock({ ms: 500 * index });
    const handle = (method: Method, args: readonly unknown[]) => this.#handle(method, args);
    const namespace = simulatedNamespace(
      this.#time,
      handle,
      () => this.#fate(),
      () => false,
    );
    const inBackground = () => undefined;
    const objects = new Objects(namespace, time, { outboxes: isolate.outboxes, inBackground });
    const { policy } = this.#versions[isolate.known] as Version;
    const decided = isolate.limiter.limit(
      { objects, time, inBackground },
      this.#told(policy, isolate.known),
      KEY,
      cost,
    );
    const failed = (error: unknown) => (this.#failure ??= error);
    if (decided instanceof Promise) void decided.then((late) => this.#decided(late, cost)).catch(failed);
    else this.#decided(decided, cost);
  }

  #told(policy: Policy, known: number): Policy {
    const { inForce } = policy;
    if (inForce === undefined) return policy;
    const version = this.#breakage.told?.(known, this.#versions.length - 1) ?? inForce.version;
    const { sinceMs, ...timeless } =
      this.#breakage.isTimeless === true ? { ...inForce, sinceMs: undefined } : inForce;
    return { ...policy, inForce: { ...timeless, version, ...(sinceMs !== undefined && { sinceMs }) } };
  }

  #decided(decision: Decision | Problem, cost: number): void {
    if (decision instanceof Problem) throw decision.toError();
    if (!decision.success) this.#outcome.denied += 1;
    if (decision.success && decision.source === "isolate") {
      this.#outcome.admittedByIsolates += 1;
      this.#admit(cost);
    }
  }

  #handle(method: Method, sent: readonly unknown[]): unknown {
    const ask = (each: Method, args: readonly unknown[]) => this.#handle(each, args);
    const together = answeredTogether(sent[0], ask, (error) => (this.#failure ??= error));
    if (together !== undefined) return together;
    const answer = this.#object.handle(method, sent);
    if (method === "giveBack" || typeof answer !== "string") return answer;
    const { cost } = method === "limit" ? { cost: sent[2] as number } : (sent[0] as ReserveCall | LimitCall);
    const { rules } = JSON.parse(answer) as Decided;
    if (cost !== 0 && rules.every(({ success }) => success)) this.#admit(cost as number);
    return answer;
  }

  #admit(cost: number): void {
    this.#outcome.admitted += 1;
    const over = this.#loosest.admit(cost, this.#time.nowMs);
    law(over <= 0, () => `${over} units over the loosest version that there was`);
    const strict = this.#strict?.admit(cost, this.#time.nowMs) ?? 0;
    law(strict <= 0, () => `${strict} units over the version that everybody knows`);
  }

  #crash(): void {
    this.#outcome.crashes += 1;
    this.#back += this.#dice.upTo(10);
    if (this.#breakage.forgets === true)
      this.#database.rewrite((rules) => JSON.stringify({ ...(JSON.parse(rules) as object), "@": undefined }));
    const isStored =
      this.#database.storage !== undefined && this.#object.memory.storage.read(KEY) !== undefined;
    // Of a key of which nothing is stored, nothing is known after a crash.
    if (!isStored) this.#seen = undefined;
    this.#object.crash();
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
    const { inForce } = this.#object.open({ name: NAME }, KEY);
    const said = (each: InForce | undefined) => `version ${each?.version ?? 0} of ${each?.sinceMs ?? 0}`;
    law(
      later(inForce, this.#seen) === inForce,
      () => `the object went back from ${said(this.#seen)} to ${said(inForce)}`,
    );
    if (later(this.#seen, inForce) !== this.#seen) this.#outcome.adopted += 1;
    this.#seen = inForce;
  }

  #fate(): Fate {
    const delayMs = () => (this.#dice.chance(0.05) ? this.#dice.upTo(100) : this.#dice.upTo(4));
    const isLost = () => this.#dice.chance(0.03);
    return {
      ...(!isLost() && { thereMs: delayMs() }),
      ...(!isLost() && { backMs: delayMs() }),
      ...(this.#dice.chance(0.03) && { againMs: delayMs() }),
    };
  }
}

/** The table as `wrangler.toml` has it: durations are text. */
function textOf({ window, reservation, ...table }: { window?: unknown; reservation?: unknown }): object {
  const { ttl } = reservation as { ttl: number };
  return { ...table, window: `${String(window)}ms`, reservation: { ttl: `${ttl}ms` } };
}
