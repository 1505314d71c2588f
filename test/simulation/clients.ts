import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { Objects } from "../../client/transports/objects.ts";
import { heldUnits, holdWith } from "../../core/accounts/hold.ts";
import { RATE_WINDOWS } from "../../core/algorithms/token-bucket.ts";
import { unsleepingClock, type Time } from "../../core/clock.ts";
import { parseRegions, RegionalPolicies } from "../../core/policies/parse-policies.ts";
import { type Cost, DEFAULT_BOUNDS, type Policies, type Policy } from "../../core/policies/policy.ts";
import { ofGroup } from "../../core/policies/seen-policy.ts";
import type { AnswerText, Decided } from "../../core/protocol/answers.ts";
import type { ReserveCall } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Batch } from "../../core/protocol/messages.ts";
import { ownKey } from "../../core/protocol/names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { ReservationsReply, ReservationsMessage } from "../../core/protocol/reservation-messages.ts";
import { heldMs } from "../../core/reservations/sizing.ts";
/**
 * One random history of a seed: clients that hold units in their own processes, a worker of the limiter, and the object.
 * Messages between client and worker are lost, late or doubled. Clients die, their machines sleep, their clocks are set.
 */
import { heldFor } from "../../durable-objects/operations/own-buckets.ts";
import { answerBatch } from "../../durable-objects/wire-methods.ts";
import { SCOPES } from "../../worker/auth/tokens.ts";
import { callReserve } from "../../worker/calls/reservations.ts";
import { seededRandom } from "../support/random.ts";
import { transportOf } from "../support/transport.ts";
import { type Kind, POLICIES_OF } from "./clients-policies.ts";
import type { Database } from "./database.ts";
import { BrokenLaw, law, Oracles } from "./laws.ts";
import { asAlone, simulatedNamespace, type Method } from "./network.ts";
import type { Breakage } from "./schedule.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { manyTurns, VirtualTime } from "./virtual-time.ts";

const FAR_END_MS = 5_000;
const GROUPS = ["a", "b", "c"];
const KEY = "key";
const CLIENT = `{"token":"t"}`;
const FAULTS = ["crash", "kill", "sleep", "sleep", "clock", "close"] as const;
type Fault = (typeof FAULTS)[number];

/** Planted mistakes of an object, or of a client's clock. */
export interface ClientBreakage extends Pick<Breakage, "before" | "after" | "atCrash"> {
  readonly faults?: readonly Fault[];
  readonly clockOf?: (wallMs: () => number, steadyMs: () => number) => () => number;
  /** What the limiter reads of a client's message. */
  readonly read?: (message: ReservationsMessage) => ReservationsMessage;
  /** What it answers. */
  readonly answered?: (reply: ReservationsReply) => ReservationsReply;
  /** Called after the object has answered a message for units. */
  readonly reserved?: (object: SimulatedObject, policy: Policy, call: ReserveCall, answer: Decided) => void;
}

export interface ClientOutcome {
  readonly calls: number;
  readonly admittedByClients: number;
  readonly admittedByWorker: number;
  readonly admittedByObject: number;
  readonly degraded: number;
  readonly messages: number;
  readonly sleeps: number;
  /** Answers that gave a client a bucket of its own, and what clients admitted from these. */
  readonly buckets: number;
  readonly admittedFromBuckets: number;
}

interface Running {
  readonly limiter: RemoteLimiter;
  readonly cache: ReservationCache;
  readonly time: Time;
  readonly machine: { wallMs: number; sleptMs: number; wakesAtMs: number };
  isKilled: boolean;
}

export class ClientSchedule {
  readonly #random: () => number;
  readonly #time = new VirtualTime(manyTurns);
  readonly #object: SimulatedObject;
  readonly #policy: Policy;
  readonly #oracles: Oracles;
  readonly #breakage: ClientBreakage;
  readonly #worker: LimiterClient;
  readonly #clients: Running[] = [];
  readonly #isFar: boolean;
  readonly #policies: Policies;
  #crashedAtMs = -Infinity;
  #failure: unknown;
  #open = 0;
  #outcome = {
    calls: 0,
    admittedByClients: 0,
    admittedByWorker: 0,
    admittedByObject: 0,
    degraded: 0,
    messages: 0,
    sleeps: 0,
    buckets: 0,
    admittedFromBuckets: 0,
  };

  constructor(seed: number, database: Database, breakage: ClientBreakage = {}, kind: Kind = "usual") {
    this.#random = seededRandom(seed);
    this.#breakage = breakage;
    this.#isFar = kind === "far";
    this.#policies = POLICIES_OF[kind];
    this.#policy = this.#of([...this.#policies.values()]);
    this.#oracles = new Oracles(this.#policy);
    database.clear();
    this.#object = new SimulatedObject(
      database,
      this.#policies,
      () => Math.floor(this.#time.nowMs) + 1_000_000,
    );
    this.#worker = this.#makeWorker();
    for (let count = 1 + this.#upTo(3); count > 0; count -= 1) this.#clients.push(this.#start());
    if (this.#isFar) this.#planFar();
    else this.#plan();
  }

  async run(): Promise<ClientOutcome> {
    await this.#time.run(10_000, () => {
      if (this.#failure !== undefined) throw this.#failure;
    });
    law(this.#open === 0, () => `${this.#open} calls were never answered`);
    return this.#outcome;
  }

  /** Bursts of calls, of a client or of the worker's isolate itself, and faults in between. */
  #plan(): void {
    let atMs = 0;
    for (let burst = 4 + this.#upTo(5); burst > 0; burst -= 1) {
      const index = this.#upTo(this.#clients.length - 1);
      const isOfWorker = this.#chance(0.2);
      // Calls of one instant come before the client's first units, so these are a quarter of the bursts.
      const paceMs = this.#of([0, 1, 3, 10]);
      for (let call = 4 + this.#upTo(16); call > 0; call -= 1) {
        const cost = this.#of([1, 1, 1, 1, 1, 1, 2, 5]);
        this.#time.at(atMs, () => (isOfWorker ? this.#callWorker(cost) : this.#call(index, cost)));
        atMs += this.#upTo(paceMs);
      }
      if (this.#chance(0.4)) this.#time.at(atMs, () => this.#fault(index));
      atMs += this.#of([0, 2, 5, 20, 60, 200, 1_100]);
    }
  }

  /** Each client, and now and then the worker's isolate, calls at a pace that changes. */
  #planFar(): void {
    const callers = this.#clients.length;
    for (let caller = 0; caller <= callers; caller += 1)
      for (let atMs = this.#upTo(300); atMs < FAR_END_MS;) {
        const untilMs = atMs + 300 + this.#upTo(1_500);
        const paceMs = caller === callers ? this.#of([100, 400]) : this.#of([4, 8, 8, 20, 40]);
        for (; atMs < untilMs; atMs += this.#upTo(2 * paceMs)) {
          const cost = this.#of([1, 1, 1, 1, 1, 1, 2]);
          this.#time.at(atMs, () => (caller === callers ? this.#callWorker(cost) : this.#call(caller, cost)));
        }
        if (caller < callers && this.#chance(0.2)) this.#time.at(atMs, () => this.#fault(caller));
        if (this.#chance(0.2)) atMs += this.#upTo(1_500);
      }
  }

  #call(index: number, cost: Cost): void {
    const running = this.#clients[index];
    if (running === undefined || this.#time.nowMs < running.machine.wakesAtMs) return;
    this.#outcome.calls += 1;
    this.#open += 1;
    running.limiter.limit({ policy: this.#policy.name, key: KEY, cost, ...this.#group() }).then(
      (decision) => {
        this.#open -= 1;
        if (decision.reason === "degraded") this.#outcome.degraded += 1;
      },
      (error: unknown) => (this.#failure ??= error),
    );
  }

  #callWorker(cost: Cost): void {
    const { group } = this.#group();
    const policy = group === undefined ? this.#policy : ofGroup(this.#policy, { group });
    void this.#worker.limit(policy, KEY, { cost });
  }

  #group(): { readonly group?: string } {
    return this.#policy.isFair === true ? { group: this.#of(GROUPS) } : {};
  }

  /** Records what the worker's isolate admits of its own units, before its message may be answered. */
  #notingWorker(worker: LimiterClient): LimiterClient {
    const limit = worker.limit.bind(worker);
    const note = (decision: Decision | Problem, cost: Cost): Decision | Problem => {
      if (decision instanceof Problem || decision.source !== "isolate" || !decision.success) return decision;
      this.#outcome.admittedByWorker += 1;
      this.#admit(cost);
      return decision;
    };
    worker.limit = (policy, key, call) => {
      const decided = limit(policy, key, call);
      if (decided instanceof Promise) return decided.then((late) => note(late, call.cost));
      note(decided, call.cost);
      return decided;
    };
    return worker;
  }

  #fault(index: number): void {
    const running = this.#clients[index];
    const what = this.#of(this.#breakage.faults ?? FAULTS);
    if (what === "crash") {
      this.#breakage.atCrash?.(this.#object);
      this.#object.crash();
      this.#crashedAtMs = this.#time.nowMs;
    } else if (what === "kill" && running !== undefined) {
      running.isKilled = true;
      this.#clients[index] = this.#start();
    } else if (what === "sleep" && running !== undefined) {
      const ms = this.#of([30, 100, 1_000]);
      running.machine.wakesAtMs = this.#time.nowMs + ms;
      running.machine.sleptMs += ms;
      this.#outcome.sleeps += 1;
    } else if (what === "clock" && running !== undefined && this.#time.nowMs >= running.machine.wakesAtMs) {
      running.machine.wallMs += this.#of([-10_000, -200, -60, -40, 20, 10_000]);
    } else if (what === "close" && running !== undefined) void running.limiter.flush();
  }

  #start(): Running {
    const machine = { wallMs: this.#upTo(1e6), sleptMs: 0, wakesAtMs: 0 };
    const isKilled = () => running.isKilled;
    const wallMs = () => Math.floor(this.#time.nowMs) + machine.wallMs;
    const steadyMs = () => this.#time.nowMs - machine.sleptMs;
    const { clockOf = unsleepingClock } = this.#breakage;
    const time: Time = {
      isLasting: true,
      nowMs: clockOf(wallMs, steadyMs),
      after: (ms, work) => {
        let isCancelled = false;
        this.#awake(machine, ms, () => {
          if (!isCancelled && !isKilled()) work();
        });
        return () => {
          isCancelled = true;
        };
      },
    };
    const transport = transportOf({ reserve: (asked) => this.#send(asked, machine, isKilled) });
    const cache = new ReservationCache(() => `client-${this.#upTo(1e9)}`);
    const parts = { transport, time, inBackground: () => undefined, cache, farMs: 20 };
    const running: Running = {
      limiter: this.#noting(new RemoteLimiter(parts), () => running),
      cache,
      time,
      machine,
      isKilled: false,
    };
    return running;
  }

  /** Records a client's admissions at their instants. */
  #noting(limiter: RemoteLimiter, self: () => Running): RemoteLimiter {
    const isKilled = () => self().isKilled;
    const limit = limiter.limit.bind(limiter);
    limiter.limit = async (asked) => {
      // A killed client is owed no answer.
      const before = this.#open;
      const decision = await Promise.race([limit(asked), this.#untilKilled(isKilled)]);
      if (decision === undefined) return { success: false, reason: "ok" } as Decision;
      if (decision.source === "isolate" && decision.success && before >= 0 && !isKilled()) {
        this.#outcome.admittedByClients += 1;
        this.#admit(asked.cost ?? 1);
        this.#checkBucket(self());
      }
      return decision;
    };
    return limiter;
  }

  /** What a client admits from is held for it, whichever message or answer is lost: its rate, and all that may be in it. */
  #checkBucket({ cache, time }: Running): void {
    const reservation = cache.find(this.#policy, KEY);
    const { buckets = [] } = reservation ?? {};
    if (reservation === undefined || buckets.length === 0) return;
    this.#outcome.admittedFromBuckets += 1;
    // An object that has lost its memory knows no buckets.
    if (this.#time.nowMs < this.#crashedAtMs + 2 * heldMs(this.#policy.reservation.mostMs)) return;
    const { holders, ruleStates } = this.#object.open(this.#policy, KEY);
    const hold = holders.get(ownKey(CLIENT, reservation.holder))?.hold ?? "";
    const isSpendable = reservation.spendableAt(time.nowMs()).some((units) => units > 0);
    for (const [index, { rule, account }] of isSpendable ? ruleStates.entries() : []) {
      const { rate, units = 0 } = holdWith(account.holds, hold) ?? {};
      const bucket = buckets[index];
      const { most = 0, rate: { units: perWindow } = { units: 0 } } = bucket ?? {};
      const isHeld = (rate?.units ?? 0) >= perWindow && units >= heldFor(rule, most, perWindow);
      if (!isHeld)
        this.#failure ??= new BrokenLaw(`a client has a bucket of ${rule.name} that is not held for it`);
    }
  }

  /** What is handed out is no more than there is. */
  #checkHandedOut(): void {
    for (const { rule, account } of this.#object.open(this.#policy, KEY).ruleStates) {
      const { all, rate } = heldUnits(account.holds);
      const isThere = all <= rule.capacity && rate.units <= RATE_WINDOWS * rule.quota.units;
      if (!isThere) this.#failure ??= new BrokenLaw(`more of ${rule.name} is handed out than there is`);
    }
  }

  #untilKilled(isKilled: () => boolean): Promise<undefined> {
    return new Promise((done) => {
      const look = () => {
        if (isKilled()) done(undefined);
        else if (this.#time.nowMs < 9_000) this.#time.at(this.#time.nowMs + 500, look);
      };
      this.#time.at(this.#time.nowMs + 500, look);
    });
  }

  /** Delays work of a machine: if it is due while the machine sleeps, it runs when the machine wakes. */
  #awake(machine: Running["machine"], ms: number, work: () => void): void {
    this.#time.at(this.#time.nowMs + Math.max(0, ms), () => {
      const restMs = machine.wakesAtMs - this.#time.nowMs;
      if (restMs > 0) this.#awake(machine, restMs, work);
      else work();
    });
  }

  /** A message from a client to the worker and back: each way may lose or double it, or be late. */
  #send(
    asked: ReservationsMessage,
    machine: Running["machine"],
    isKilled: () => boolean,
  ): Promise<ReservationsReply> {
    const text = JSON.stringify(asked);
    this.#outcome.messages += 1;
    return new Promise((resolve) => {
      const arrive = (isFirst: boolean) => {
        void this.#carryOut(text).then((answered) => {
          if (!isFirst || this.#chance(0.03)) return;
          this.#awake(machine, this.#delayMs(), () => {
            if (!isKilled()) resolve(JSON.parse(answered) as ReservationsReply);
          });
        });
      };
      if (this.#chance(0.03)) return;
      this.#time.at(this.#time.nowMs + this.#delayMs(), () => arrive(true));
      if (this.#chance(0.04))
        this.#time.at(this.#time.nowMs + this.#delayMs() + this.#delayMs(), () => arrive(false));
    });
  }

  async #carryOut(text: string): Promise<string> {
    const { read = (same) => same, answered: told = (same) => same } = this.#breakage;
    const asked = read(JSON.parse(text) as ReservationsMessage);
    const principal = { title: "the client", id: CLIENT, bounds: DEFAULT_BOUNDS, scopes: SCOPES };
    const answered = await callReserve({ client: this.#worker, principal }, asked);
    if (answered instanceof Problem) throw answered.toError();
    // Excludes decisions of the worker's isolate from the client's own.
    const answers = answered.answers.map((answer) =>
      answer !== null && "decision" in answer
        ? { decision: { ...answer.decision, source: "object" as const } }
        : answer,
    );
    return JSON.stringify(told({ ...answered, answers }));
  }

  #makeWorker(): LimiterClient {
    const time = this.#time.clock({ ms: 5_000 });
    const handle = (method: Method, args: readonly unknown[]) => this.#handle(method, args);
    const fate = () => ({
      ...(!this.#chance(0.02) && { thereMs: this.#upTo(3) }),
      ...(!this.#chance(0.02) && { backMs: this.#upTo(3) }),
    });
    const namespace = simulatedNamespace(this.#time, handle, fate, () => false);
    const inBackground = () => undefined;
    const objects = new Objects(namespace, time, { queues: new BatchQueues(), inBackground });
    const policies = new RegionalPolicies(this.#policies, parseRegions(undefined));
    const local = new LocalLimiter(new ReservationCache(() => `worker-${this.#upTo(1e9)}`));
    return this.#notingWorker(new LimiterClient({ objects, policies, time, inBackground }, local));
  }

  #handle(method: Method, args: readonly unknown[]): unknown {
    const [message] = args;
    if (typeof message === "object" && message !== null && "calls" in message)
      return answerBatch(message as Batch, (...each) => this.#handle(...asAlone(...each)));
    this.#breakage.before?.(this.#object, this.#policy);
    const answer = this.#object.handle(method, args);
    this.#breakage.after?.(this.#object, this.#policy);
    if (this.#isFar) this.#checkHandedOut();
    if (method === "giveBack") return answer;
    const cost = method === "limit" ? (args[2] as Cost) : (message as { readonly cost: Cost }).cost;
    const decided = JSON.parse(answer as AnswerText) as Decided;
    const { rules, reserved } = decided;
    if (reserved?.buckets !== undefined) this.#outcome.buckets += 1;
    if (reserved !== undefined)
      this.#breakage.reserved?.(this.#object, this.#policy, message as ReserveCall, decided);
    if (cost === 0 || rules.some(({ success }) => !success)) return answer;
    this.#outcome.admittedByObject += 1;
    this.#admit(cost);
    return answer;
  }

  #admit(cost: Cost): void {
    try {
      this.#oracles.admit(cost, this.#time.nowMs, undefined, { nowMs: this.#object.nowMs, backMs: 0 });
    } catch (error) {
      this.#failure ??= error;
    }
  }

  #delayMs(): number {
    if (this.#isFar) return this.#chance(0.03) ? this.#upTo(800) : 15 + this.#upTo(45);
    return this.#chance(0.04) ? this.#upTo(2.5 * this.#policy.reservation.leastMs) : this.#upTo(12);
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
