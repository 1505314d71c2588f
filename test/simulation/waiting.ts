/** One random history of waiting and other callers: isolates, an object and the messages between. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { Objects, type LimiterNamespace } from "../../client/transports/objects.ts";
import { admitsTogether } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Answer, AnswerText, Decided, Peeked } from "../../core/protocol/answers.ts";
import type { LimitCall, ReserveCall } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { parseDeployment } from "../support/milliseconds.ts";
import { seededRandom } from "../support/random.ts";
import type { Database } from "./database.ts";
import { checkConservation, law, Oracle } from "./laws.ts";
import { simulatedNamespace, type Fate, type Method } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

const BUCKET = { algorithm: "token-bucket", limit: 40, window: 1_000 };
const LOG = { algorithm: "sliding-log", limit: 64, window: 400 };
const DEADLINE_MS = 100;
const WAITING = { deadlineMs: DEADLINE_MS, maxWait: 2_000, maxWaiters: 6 };
const { regionalPolicies } = parseDeployment({
  policies: {
    brief: { ...BUCKET, burst: 48, reservation: { ttl: 40 }, ...WAITING },
    bucket: { ...BUCKET, limit: 200, burst: 96, reservation: { ttl: 120 }, ...WAITING },
    log: { ...LOG, reservation: { ttl: 50 }, ...WAITING },
    two: {
      rules: { rate: { ...BUCKET, burst: 64 }, total: { ...LOG, window: 900 } },
      reservation: { ttl: 80 },
      ...WAITING,
    },
  },
});
const NAMES = [...regionalPolicies.named.keys()];
const KEY = "key";

export interface WaitingOutcome {
  readonly waited: number;
  readonly timedOut: number;
  readonly refused: number;
  readonly left: number;
  readonly admittedByIsolates: number;
  readonly deniedBehind: number;
}

/** A call in the object's queue. */
interface Standing {
  readonly cost: number;
  isGone: boolean;
}

interface Isolate {
  readonly local: LocalLimiter;
  readonly cache: ReservationCache;
}

export class WaitingSchedule {
  readonly #random: () => number;
  readonly #time = new VirtualTime();
  readonly #object: SimulatedObject;
  readonly #policy: Policy;
  readonly #oracles: readonly Oracle[];
  readonly #isolates: readonly Isolate[];
  readonly #isFaulty: boolean;
  /** In order of arrival. */
  #standing: Standing[] = [];
  /** The first of them, once its units are there. */
  #servable: { readonly first: Standing; readonly sinceMs: number } | undefined;
  #open = 0;
  #failure: unknown;
  readonly #outcome = { waited: 0, timedOut: 0, refused: 0, left: 0, admittedByIsolates: 0, deniedBehind: 0 };

  constructor(seed: number, database: Database) {
    this.#random = seededRandom(seed);
    this.#isFaulty = this.#chance(0.5);
    this.#policy = regionalPolicies.named.get(this.#of(NAMES)) as Policy;
    this.#oracles = this.#policy.rules.map((rule) => new Oracle(rule));
    database.clear();
    const clock = this.#time.clock({ ms: 1_000_000 });
    this.#object = new SimulatedObject(database, regionalPolicies.named, () => clock.nowMs(), clock);
    this.#isolates = Array.from({ length: 1 + this.#upTo(2) }, () => {
      const cache = new ReservationCache(() => `isolate ${String(this.#random()).slice(2)}`);
      return { local: new LocalLimiter(cache), cache };
    });
    let atMs = 0;
    for (let call = 12 + this.#upTo(40); call > 0; call -= 1) {
      this.#time.at(atMs, () => this.#call());
      atMs += this.#of([0, 0, 0, 1, 3, 10, 60]);
    }
  }

  async run(): Promise<WaitingOutcome> {
    await this.#time.run(20_000, () => this.#check());
    law(this.#open === 0, () => `${this.#open} calls were never answered`);
    law(this.#standing.length === 0, () => `${this.#standing.length} calls still stand in the queue`);
    return this.#outcome;
  }

  #call(): void {
    const { local } = this.#of(this.#isolates);
    const cost = this.#of([1, 1, 1, 2, 5, 20, 40]);
    const waitMs = this.#of([0, 0, 0, 30, 400, 2_000, 2_000]);
    const startMs = this.#time.nowMs;
    const time = this.#time.clock({ ms: 1_000_000 });
    const parts = { objects: new Objects(this.#namespace(), time), policies: regionalPolicies, time };
    const client = new LimiterClient({ ...parts, inBackground: () => undefined }, local);
    const gone = new AbortController();
    if (waitMs > 0 && this.#chance(0.2)) this.#time.at(startMs + this.#upTo(waitMs), () => gone.abort());
    const done = (decision: Decision | Problem) => {
      this.#open -= 1;
      if (decision instanceof Problem) throw decision.toError();
      const tookMs = this.#time.nowMs - startMs;
      law(tookMs <= waitMs + DEADLINE_MS, () => `a call took ${tookMs} ms`);
      if (gone.signal.aborted) this.#outcome.left += 1;
      else if (decision.reason === "wait-timeout") this.#outcome.timedOut += 1;
      else if (!decision.success && decision.waitedMs === 0) this.#outcome.refused += 1;
      else if ((decision.waitedMs ?? 0) > 0) this.#outcome.waited += 1;
      if (decision.source !== "isolate" || !decision.success) return;
      this.#outcome.admittedByIsolates += 1;
      this.#admit(cost);
    };
    this.#open += 1;
    const decided = client.limit(this.#policy, KEY, { cost, waitMs }, gone.signal);
    if (decided instanceof Promise) decided.then(done).catch((error: unknown) => (this.#failure ??= error));
    else done(decided);
  }

  /** The object's namespace, with the one request of calls that wait. */
  #namespace(): LimiterNamespace {
    const handle = (method: Method, args: readonly unknown[]) => this.#handle(method, args);
    const isGone = () => false;
    const calls = simulatedNamespace(this.#time, handle, () => this.#fate(), isGone);
    const fetch = (_: string, { body, signal }: RequestInit) =>
      this.#fetch(body as string, signal ?? undefined);
    return { getByName: (name) => ({ ...calls.getByName(name), fetch }) };
  }

  #fetch(body: string, signal: AbortSignal | undefined): Promise<Response> {
    const { thereMs, backMs } = this.#fate();
    return new Promise((resolve, reject) => {
      const isHere = { leave: () => undefined as void };
      signal?.addEventListener("abort", () => {
        reject(new Error("aborted"));
        this.#time.at(this.#time.nowMs + this.#upTo(4), () => isHere.leave());
      });
      if (thereMs === undefined || signal?.aborted === true) return;
      this.#time.at(this.#time.nowMs + thereMs, () => {
        const left = new AbortController();
        isHere.leave = () => left.abort();
        this.#limitInTurn(JSON.parse(body) as LimitCall, left.signal, (answer) => {
          if (backMs === undefined) return;
          this.#time.at(this.#time.nowMs + backMs, () => resolve(Response.json(answer)));
        });
      });
    });
  }

  #limitInTurn(
    { policy, key, ...call }: LimitCall,
    signal: AbortSignal,
    tell: (answer: Answer) => void,
  ): void {
    const cost = call.cost as number;
    const answer = this.#object.ask(policy, key, (operations, keyState, nowMs) =>
      operations.limit(keyState, { ...call, signal }, nowMs),
    );
    const told = (decided: Answer) => {
      if (this.#isAdmission(decided)) this.#admit(cost);
      tell(decided);
    };
    if (!(answer instanceof Promise)) return told(answer);
    const standing: Standing = { cost, isGone: false };
    this.#standing.push(standing);
    signal.addEventListener("abort", () => (standing.isGone = true));
    const leave = (decided: Answer) => {
      const index = this.#standing.filter((each) => each === standing || !each.isGone).indexOf(standing);
      const isServed = this.#isAdmission(decided);
      law(!isServed || index === 0, () => `${index} callers that came before still wait`);
      law(!isServed || !standing.isGone, () => "a caller was charged that had gone");
      this.#standing = this.#standing.filter((each) => each !== standing);
      told(decided);
    };
    answer.then(leave).catch((error: unknown) => (this.#failure ??= error));
  }

  #handle(method: Method, args: readonly unknown[]): unknown {
    const answer = this.#object.handle(method, args);
    if (method === "giveBack") return answer;
    const cost = (method === "limit" ? args[2] : (args[0] as ReserveCall).cost) as number;
    const decided = JSON.parse(answer as AnswerText) as Decided;
    const isAdmitted = cost > 0 && this.#isAdmission(decided);
    if (this.#peek().queueLength > 0) {
      law(!isAdmitted, () => "a call passed callers that wait");
      const granted = Object.values(decided.reserved?.units ?? {}).reduce((sum, units) => sum + units, 0);
      law(granted === 0, () => `an isolate was granted ${granted} units that callers wait for`);
      if (cost > 0) this.#outcome.deniedBehind += 1;
    }
    if (isAdmitted) this.#admit(cost);
    return answer;
  }

  #isAdmission(answer: Answer): boolean {
    return "rules" in answer && answer.rules.length > 0 && answer.rules.every(({ success }) => success);
  }

  #peek(): Peeked {
    return this.#object.ask(this.#policy.name, KEY, (operations, keyState, nowMs) =>
      operations.peek(keyState, nowMs),
    ) as Peeked;
  }

  /** By the shared clock, which shows whole milliseconds: virtual time may be between two. */
  #admit(cost: number): void {
    const nowMs = Math.floor(this.#time.nowMs);
    for (const [index, rule] of this.#policy.rules.entries()) {
      const over = this.#oracles[index]?.admit(cost, nowMs) ?? 0;
      law(over <= 0, () => `${over} units of ${rule.name} over the bound`);
    }
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
    const nowMs = this.#object.nowMs;
    const isolates = this.#isolates.map(({ cache }) => ({
      reservation: cache.find(this.#policy, KEY),
      nowMs,
    }));
    const entry = this.#object.open(this.#policy, KEY);
    checkConservation(entry, nowMs, isolates, false);
    const [first] = this.#standing;
    const isThere = first !== undefined && admitsTogether(entry.ruleStates, nowMs, first.cost);
    if (!isThere) this.#servable = undefined;
    else if (this.#servable?.first !== first) this.#servable = { first, sinceMs: nowMs };
    // Its timer may end at the end of this millisecond, since virtual time may be between two.
    const isLate = this.#servable !== undefined && nowMs > this.#servable.sinceMs + 1;
    law(!isLate, () => "the first caller waits for units that are there");
  }

  #fate(): Fate {
    const isLost = () => this.#isFaulty && this.#chance(0.05);
    return {
      ...(!isLost() && { thereMs: this.#upTo(4) }),
      ...(!isLost() && { backMs: this.#upTo(4) }),
      ...(this.#isFaulty && this.#chance(0.04) && { againMs: this.#upTo(60) }),
    };
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
