/**
 * Random histories of a policy that changes at run time, and of callers that name another plan of it from some
 * time on: isolates that learn late, an object that they inform, remote clients in their callers' processes, messages that are late, lost and doubled, and crashes.
 * A seed makes each history.
 */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { Objects } from "../../client/transports/objects.ts";
import type { Time } from "../../core/clock.ts";
import { type RegionalPolicies, withAll } from "../../core/policies/parse-policies.ts";
import {
  DEFAULT_BOUNDS,
  type Policies,
  type Policy,
  type PolicyRevision,
} from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { ReservationsReply, ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import { SCOPES } from "../../worker/auth/tokens.ts";
import { callReserve } from "../../worker/calls/reservations.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import { transportOf } from "../support/transport.ts";
import type { Database } from "./database.ts";
import { Dice } from "./dice.ts";
import { law, Oracle } from "./laws.ts";
import { answeredTogether, simulatedNamespace, type Fate, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { manyTurns, VirtualTime } from "./virtual-time.ts";

const KEY = "key";
const NAME = "p";
/** The time in milliseconds until every reachable isolate knows of a change. */
const LAG_MS = 80;
/** Units spent under an earlier version were granted before, and live for this long at most. */
const TTL_MS = 60;
const DEADLINE_MS = 50;
const END_MS = 4_000;

const KINDS = [
  { algorithm: "token-bucket", window: 1_000 },
  { algorithm: "sliding-log", window: 400 },
  { algorithm: "sliding-window-counter", window: 500 },
  { algorithm: "fixed-window", window: 400 },
] as const;
/** The longest one-way times of a client's message in milliseconds: near, and a fifth of a lifetime. */
const FAR_MS = [0, 3, 12] as const;

interface Version {
  readonly policy: Policy;
  /** That calls name. */
  readonly plan: string;
  readonly sinceMs: number;
}

const OTHER_PLAN = "other";

interface Isolate {
  readonly limiter: LocalLimiter;
  /** All requests of an isolate read one clock. */
  readonly time: Time;
  readonly queues: BatchQueues;
  /** Answers the messages of clients. */
  readonly worker: LimiterClient;
  known: number;
}

export interface Breakage {
  /** Changes the version that an isolate sends the object. */
  readonly told?: (version: number, versions: number) => number;
  /** Isolates do not report when an override ended. */
  readonly isTimeless?: boolean;
  /** Isolates never learn. */
  readonly isDeaf?: boolean;
  /** An object starts again without the stored versions. */
  readonly forgets?: boolean;
  /** Changes how the limiter reads a client's message, by the policy in force for the key. */
  readonly read?: (message: ReservationsMessage, policy: Policy) => ReservationsMessage;
}

export interface Outcome {
  readonly calls: number;
  readonly changes: number;
  readonly admittedByIsolates: number;
  readonly admittedByClients: number;
  readonly admitted: number;
  readonly denied: number;
  readonly crashes: number;
  readonly adopted: number;
}

export class History {
  readonly #dice: Dice;
  readonly #time = new VirtualTime(manyTurns);
  readonly #database: Database;
  readonly #object: SimulatedObject;
  readonly #breakage: Breakage;
  readonly #versions: Version[] = [];
  readonly #isolates: Isolate[] = [];
  readonly #clients: RemoteLimiter[] = [];
  readonly #farMs: number;
  /** The loosest that was ever in force: nothing is ever admitted over it. */
  readonly #loosest: Oracle;
  /** The one in force alone, once every isolate knows it. */
  #strict: Oracle | undefined;
  #failure: unknown;
  #seen: PolicyRevision | undefined;
  #back = 0;
  #outcome = {
    calls: 0,
    changes: 0,
    admittedByIsolates: 0,
    admittedByClients: 0,
    admitted: 0,
    denied: 0,
    crashes: 0,
    adopted: 0,
  };

  constructor(seed: number, database: Database, breakage: Breakage = {}) {
    this.#dice = new Dice(seed);
    this.#database = database;
    this.#breakage = breakage;
    database.clear();
    const kind = this.#dice.of(KINDS);
    // Similar limits are each used up, and the loosest is no looser than the others.
    const most = this.#dice.of([0, 160, 320]);
    const changes = 1 + this.#dice.upTo(most === 0 ? 3 : 11);
    const drawn = () => (most === 0 ? this.#dice.of([20, 40, 64, 100, 160]) : most - this.#dice.upTo(1));
    const limits = Array.from({ length: changes + 1 }, drawn);
    const common = { ...kind, reservation: { ttl: TTL_MS }, deadlineMs: DEADLINE_MS };
    const tables = limits.map((limit) => ({ ...common, limit, plans: { [OTHER_PLAN]: { limit: drawn() } } }));
    const policies = tables.map((table) => parsePolicies({ [NAME]: table }).get(NAME) as Policy);
    this.#plan(policies, tables, most === 0 ? [1, 1, 4, 12] : [4, 12, 40, 40]);
    const all = policies.flatMap((policy) => [policy, planOf(policy, OTHER_PLAN)]);
    const loosest = all.reduce((one, other) =>
      one.rules[0].capacity >= other.rules[0].capacity ? one : other,
    );
    this.#loosest = new Oracle(loosest.rules[0]);
    const file: Policies = new Map([[NAME, policies[0] as Policy]]);
    this.#object = new SimulatedObject(
      database,
      file,
      () => Math.floor(this.#time.nowMs) + 1_000_000 - this.#back,
    );
    for (let count = 1 + this.#dice.upTo(3); count > 0; count -= 1) this.#isolates.push(this.#isolate(count));
    this.#farMs = this.#dice.of(FAR_MS);
    for (let count = this.#dice.upTo(4); count > 0; count -= 1) this.#clients.push(this.#client(count));
  }

  async run(): Promise<Outcome> {
    await this.#time.run(END_MS + 1_000, () => this.#check());
    return this.#outcome;
  }

  #plan(policies: readonly Policy[], tables: readonly object[], bursts: readonly number[]): void {
    let version = 0;
    let plan = "";
    let before: Policy | undefined;
    for (const [index, policy] of policies.entries()) {
      const atMs = index === 0 ? 0 : Math.floor((index * END_MS) / policies.length) + this.#dice.upTo(200);
      const fields = JSON.stringify(textOf(tables[index] as object));
      // An override that ends by itself changes the policy in force, and not the version.
      const isEnd = version > 0 && this.#dice.chance(0.4);
      if (!isEnd) version = index;
      const inForce = { version, fields, ...(isEnd && { sinceMs: 1_000_000 + atMs }) };
      const isOverride = !isEnd && this.#dice.chance(0.3);
      const override = isOverride && { override: { pattern: KEY } };
      const next = index === 0 ? policy : withAll(policy, { inForce, ...override });
      // Its callers name another plan: nothing else changes.
      const isOfPlan = before !== undefined && this.#dice.chance(0.4);
      if (isOfPlan) plan = plan === "" ? OTHER_PLAN : "";
      const changed = { policy: isOfPlan ? (before ?? next) : next, plan, sinceMs: atMs };
      before = changed.policy;
      if (index === 0) this.#versions.push(changed);
      else this.#time.at(atMs, () => this.#change(changed));
    }
    for (let atMs = 0; atMs < END_MS; atMs += this.#dice.of([1, 3, 10, 40, 200])) {
      const cost = this.#dice.of([1, 1, 1, 2, 5]);
      const index = this.#dice.upTo(2);
      const calls = this.#dice.of(bursts);
      const client = this.#dice.chance(0.6) ? this.#dice.upTo(3) : Infinity;
      this.#time.at(atMs, () => {
        for (let call = 0; call < calls; call += 1)
          if (client < this.#clients.length) this.#callClient(client, cost);
          else this.#call(index % this.#isolates.length, cost);
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
      if (isOver()) this.#strict = new Oracle(planOf(version.policy, version.plan).rules[0]);
    });
  }

  #isolate(count: number): Isolate {
    const cache = new ReservationCache(() => `isolate-${count}-${this.#dice.upTo(1e9)}`);
    const limiter = new LocalLimiter(cache);
    const queues = new BatchQueues();
    const time = this.#time.clock({ ms: 500 * count });
    const inBackground = () => undefined;
    const current = (): Policy => {
      const { known } = isolate;
      const { policy } = this.#versions[known] as Version;
      return this.#told(policy, known);
    };
    // Clients learn nothing of an override: their policy is the file's.
    const named = (): Policy => {
      const policy = current();
      const [file] = this.#versions;
      if (policy.override === undefined || file === undefined) return policy;
      return { ...file.policy, overrides: { find: () => policy } };
    };
    const policies = {
      get named() {
        return new Map([[NAME, named()]]);
      },
      get: () => named(),
      within: (policy: Policy) => policy,
    } as unknown as RegionalPolicies;
    const worker = new LimiterClient(
      { objects: this.#objects(time, queues), policies, time, inBackground },
      limiter,
    );
    const isolate: Isolate = { limiter, time, queues, worker: this.#noting(worker), known: 0 };
    return isolate;
  }

  /** Records what an isolate admits of its own units for a client at that instant: its answer may be lost. */
  #noting(worker: LimiterClient): LimiterClient {
    const limit = worker.limit.bind(worker);
    worker.limit = (policy, key, call) => {
      const decided = limit(policy, key, call);
      const note = (decision: Decision | Problem) => this.#decided(decision, call.cost as number);
      if (decided instanceof Promise) void decided.then(note).catch(this.#failed);
      else note(decided);
      return decided;
    };
    return worker;
  }

  /** A client in its caller's process. Each of its messages reaches any isolate. */
  #client(count: number): RemoteLimiter {
    const reserve = (asked: ReservationsMessage): Promise<ReservationsReply> =>
      new Promise((resolve) => {
        const { thereMs, backMs, againMs } = this.#fate(this.#farMs);
        if (thereMs === undefined) return;
        const arrive = async () => {
          const answered = await this.#answerClient(asked);
          if (backMs !== undefined) this.#time.at(this.#time.nowMs + backMs, () => resolve(answered));
        };
        this.#time.at(this.#time.nowMs + thereMs, () => void arrive().catch(this.#failed));
        if (againMs !== undefined)
          this.#time.at(
            this.#time.nowMs + thereMs + againMs,
            () => void this.#answerClient(asked).catch(this.#failed),
          );
      });
    const time = this.#time.clock({ ms: 7_000 * count });
    const parts = {
      transport: transportOf({ reserve }),
      time: { ...time, isLasting: true },
      inBackground: () => undefined,
    };
    // A call counts by the plan that it names, and a first one may wait for longer than a law allows.
    return new RemoteLimiter(parts, { deadlineMs: DEADLINE_MS });
  }

  async #answerClient(asked: ReservationsMessage): Promise<ReservationsReply> {
    const { worker, known } = this.#dice.of(this.#isolates);
    const { policy } = this.#versions[known] as Version;
    const principal = { title: "the client", id: `{"token":"t"}`, bounds: DEFAULT_BOUNDS, scopes: SCOPES };
    const message = this.#breakage.read?.(asked, policy) ?? asked;
    const answered = await callReserve({ client: worker, principal }, JSON.parse(JSON.stringify(message)));
    if (answered instanceof Problem) throw answered.toError();
    // Excludes decisions of the isolate from the client's own.
    const answers = answered.answers.map((answer) =>
      answer !== null && "decision" in answer
        ? { decision: { ...answer.decision, source: "object" as const } }
        : answer,
    );
    return JSON.parse(JSON.stringify({ ...answered, answers })) as ReservationsReply;
  }

  readonly #failed = (error: unknown) => void (this.#failure ??= error);

  #callClient(index: number, cost: number): void {
    this.#outcome.calls += 1;
    const { plan = "" } = this.#versions.at(-1) ?? {};
    const decided = this.#clients[index]?.limit({ policy: NAME, key: KEY, cost, ...(plan && { plan }) });
    const note = (decision: Decision) => {
      if (!decision.success || decision.source !== "isolate") return;
      this.#outcome.admittedByClients += 1;
      this.#admit(cost);
    };
    void decided?.then(note).catch(this.#failed);
  }

  #objects(time: Time, queues: BatchQueues): Objects {
    const handle = (method: Method, args: readonly unknown[]) => this.#handle(method, args);
    const namespace = simulatedNamespace(
      this.#time,
      handle,
      () => this.#fate(),
      () => false,
    );
    return new Objects(namespace, time, { queues, inBackground: () => undefined });
  }

  #call(index: number, cost: number): void {
    const isolate = this.#isolates[index];
    if (isolate === undefined) return;
    this.#outcome.calls += 1;
    const { time, queues } = isolate;
    const holding = { objects: this.#objects(time, queues), time, inBackground: () => undefined };
    const { policy, plan } = this.#versions[isolate.known] as Version;
    const planned = planOf(this.#told(policy, isolate.known), plan);
    const decided = isolate.limiter.limit(holding, planned, KEY, cost);
    if (decided instanceof Promise)
      void decided.then((late) => this.#decided(late, cost)).catch(this.#failed);
    else this.#decided(decided, cost);
  }

  #told(policy: Policy, known: number): Policy {
    const { inForce } = policy;
    if (inForce === undefined) return policy;
    const version = this.#breakage.told?.(known, this.#versions.length - 1) ?? inForce.version;
    const { sinceMs, ...timeless } =
      this.#breakage.isTimeless === true ? { ...inForce, sinceMs: undefined } : inForce;
    return withAll(policy, { inForce: { ...timeless, version, ...(sinceMs !== undefined && { sinceMs }) } });
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
    const together = answeredTogether(sent[0], ask, this.#failed);
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
    const clock = { nowMs: this.#object.nowMs, backMs: this.#back };
    const over = this.#loosest.admit(cost, this.#time.nowMs, clock);
    law(over <= 0, () => `${over} units over the loosest version that there was`);
    const strict = this.#strict?.admit(cost, this.#time.nowMs, clock) ?? 0;
    law(strict <= 0, () => `${strict} units over the version that everybody knows`);
  }

  #crash(): void {
    this.#outcome.crashes += 1;
    this.#back += this.#dice.upTo(10);
    if (this.#breakage.forgets === true)
      this.#database.rewrite((rules) => JSON.stringify({ ...(JSON.parse(rules) as object), "@": undefined }));
    const isStored =
      this.#database.storage !== undefined && this.#object.memory.storage.read(KEY) !== undefined;
    // If nothing of a key is stored, nothing is known after a crash.
    if (!isStored) this.#seen = undefined;
    this.#object.crash();
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
    const { inForce } = this.#object.open({ name: NAME }, KEY);
    const said = (each: PolicyRevision | undefined) =>
      `version ${each?.version ?? 0} of ${each?.sinceMs ?? 0}`;
    law(
      !isLater(this.#seen, inForce),
      () => `the object went back from ${said(this.#seen)} to ${said(inForce)}`,
    );
    if (isLater(inForce, this.#seen)) this.#outcome.adopted += 1;
    this.#seen = inForce;
  }

  #fate(usualMs = 4): Fate {
    const delayMs = () => (this.#dice.chance(0.05) ? this.#dice.upTo(100) : this.#dice.upTo(usualMs));
    const isLost = () => this.#dice.chance(0.03);
    return {
      ...(!isLost() && { thereMs: delayMs() }),
      ...(!isLost() && { backMs: delayMs() }),
      ...(this.#dice.chance(0.03) && { againMs: delayMs() }),
    };
  }
}

/** Whether one is of a later change. Callers that have not heard of a new plan set that back. */
function isLater(one: PolicyRevision | undefined, other: PolicyRevision | undefined): boolean {
  const versions = (one?.version ?? 0) - (other?.version ?? 0);
  return versions > 0 || (versions === 0 && (one?.sinceMs ?? 0) > (other?.sinceMs ?? 0));
}

/** The table as in `wrangler.toml`: durations are text. */
function textOf({ window, reservation, ...table }: { window?: unknown; reservation?: unknown }): object {
  const { ttl } = reservation as { ttl: number };
  return { ...table, window: `${String(window)}ms`, reservation: { ttl: `${ttl}ms` } };
}
