/**
 * Many keys of one object, whose memory is ahead of storage: random histories of calls and of holders that
 * spend later, while the machine dies between any two writes and before any answer, with its clock set back
 * or forward.
 */
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { AnswerText, Decided } from "../../core/protocol/answers.ts";
import { spendableMs } from "../../core/reservations/sizing.ts";
import { pick, seededRandom, whole } from "../support/random.ts";
import { Died, type Database } from "./database.ts";
import { law, Oracle } from "./laws.ts";
import { SimulatedObject } from "./simulated-object.ts";

const RESERVED = { reservation: { ttl: "2s" } };
const POLICIES = parsePolicies({
  bucket: { algorithm: "token-bucket", limit: 400, window: "60s", ...RESERVED },
  fast: { algorithm: "token-bucket", limit: 100, window: "1s", burst: 1_000, ...RESERVED },
  auto: { algorithm: "token-bucket", limit: 400, window: "4s", burst: 800 },
  autoWindow: { algorithm: "fixed-window", limit: 600, window: "6s" },
  slow: { algorithm: "token-bucket", limit: 2_000, window: "30d", ...RESERVED },
  log: { algorithm: "sliding-log", limit: 300, window: "20s", ...RESERVED },
  window: { algorithm: "fixed-window", limit: 300, window: "30s", ...RESERVED },
  counter: { algorithm: "sliding-window-counter", limit: 300, window: "20s", ...RESERVED },
  two: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 200, window: "10s" },
      total: { algorithm: "sliding-log", limit: 500, window: "60s" },
    },
    ...RESERVED,
  },
});
/** Below the spare lifetime of a lead: see core/clock.ts. */
const MAX_ON_MS = 8_000;
const MAX_BACK_MS = 2_000;
/** A key leaves memory after this number of others. */
const MAX_KEYS = 4;
const KEYS = 6;

/** A rule broken on purpose. */
export interface AllowanceBreakage {
  readonly atCrash?: (database: Database) => void;
  readonly policies?: (policies: Policies) => Policies;
}

/** Units of an isolate, which it may spend until an instant of true time. */
interface Held {
  readonly key: string;
  readonly holder: string;
  left: number;
  used: number;
  readonly untilMs: number;
}

export interface AllowanceOutcome {
  admitted: number;
  calls: number;
  crashes: number;
  deaths: number;
}

export class AllowanceHistory {
  readonly #random: () => number;
  readonly #database: Database;
  readonly #breakage: AllowanceBreakage;
  readonly #policy: Policy;
  readonly #object: SimulatedObject;
  readonly #oracles = new Map<string, readonly Oracle[]>();
  readonly #outcome: AllowanceOutcome = { admitted: 0, calls: 0, crashes: 0, deaths: 0 };
  #held: Held[] = [];
  #trueMs = 1_000_000;
  /** The offset of the object's clock from true time, and the sum of its forward changes. */
  #skewMs = 0;
  #onMs = 0;

  constructor(seed: number, database: Database, breakage: AllowanceBreakage = {}) {
    this.#random = seededRandom(seed);
    this.#database = database;
    this.#breakage = breakage;
    this.#policy = pick(this.#random, [...POLICIES.values()]);
    database.clear();
    database.writesLeft = Infinity;
    const policies = breakage.policies?.(POLICIES) ?? POLICIES;
    const clockMs = () => this.#trueMs + this.#skewMs;
    this.#object = new SimulatedObject(database, policies, clockMs, undefined, MAX_KEYS);
  }

  run(): AllowanceOutcome {
    for (let step = 0; step < 150; step += 1) {
      this.#trueMs += pick(this.#random, [0, 0, 0, 1, 5, 50, 400, 2_500, 12_000, 60_000]);
      if (whole(this.#random, 30) === 0) this.#database.writesLeft = whole(this.#random, 4);
      try {
        this.#step();
      } catch (error) {
        if (!(error instanceof Died)) throw error;
        this.#outcome.deaths += 1;
        // The machine may survive a failed write.
        this.#database.writesLeft = Infinity;
        if (whole(this.#random, 2) === 0) this.#crash();
      }
    }
    return this.#outcome;
  }

  #step(): void {
    const key = `key ${whole(this.#random, KEYS)}`;
    switch (whole(this.#random, 20)) {
      case 0:
        return this.#crash();
      case 1:
        return this.#object.collectGarbage();
      case 2:
        return this.#reset(key);
      case 3:
      case 4:
      case 5:
        return this.#reserve(key);
      case 6:
        return this.#giveBack();
      case 7:
      case 8:
      case 9:
        return this.#spend();
      case 10:
      case 11:
      case 12:
        return this.#takeAll(key);
      default:
        return this.#take(key, pick(this.#random, [1, 1, 1, 2, 3, 9]));
    }
  }

  #take(key: string, cost: number): void {
    const again = whole(this.#random, 12) === 0 ? { idempotencyKey: `call ${this.#outcome.calls}` } : {};
    this.#outcome.calls += 1;
    const answer = this.#object.limitCall({ policy: this.#policy.name, key, cost, ...again });
    if (isAdmitted(answer)) this.#admit(key, cost);
  }

  #takeAll(key: string): void {
    const { rules } = JSON.parse(this.#object.limit(this.#policy.name, key, 0)) as Decided;
    this.#take(key, Math.max(1, Math.min(...rules.map(({ remaining }) => remaining))));
  }

  #reserve(key: string): void {
    const holder = `holder ${this.#outcome.calls}`;
    this.#outcome.calls += 1;
    const wanted = pick(this.#random, [2, 5, 20, 100]);
    const { leastMs, mostMs } = this.#policy.reservation;
    const ttlMs = pick(this.#random, [leastMs, mostMs, leastMs + whole(this.#random, mostMs - leastMs + 1)]);
    const rules = Object.fromEntries(
      this.#policy.rules.map(({ name }) => [name, { used: 0, kept: 0, wanted }]),
    );
    const call = { policy: this.#policy.name, key, cost: 0, holder, turn: 1, ttlMs, isShort: false, rules };
    const { reserved } = JSON.parse(this.#object.reserve(call)) as Decided;
    const left = Math.min(...Object.values(reserved?.units ?? { none: 0 }));
    // The answer may be lost.
    if (left === 0 || whole(this.#random, 8) === 0) return;
    const untilMs = this.#trueMs + spendableMs(reserved?.ttlMs ?? 0);
    this.#held.push({ key, holder, left, used: 0, untilMs });
  }

  #spend(): void {
    this.#held = this.#held.filter(({ untilMs, left }) => untilMs > this.#trueMs && left > 0);
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
    const { key, holder } = held;
    const used = Object.fromEntries(this.#policy.rules.map(({ name }) => [name, held.used]));
    this.#object.giveBack(this.#policy.name, [{ key, holder, turn: 2, used }]);
  }

  #reset(key: string): void {
    // A failed reset may have taken effect.
    this.#oracles.delete(key);
    this.#object.reset(this.#policy.name, key);
  }

  #crash(): void {
    this.#outcome.crashes += 1;
    this.#breakage.atCrash?.(this.#database);
    const byMs = pick(this.#random, [
      0,
      0,
      -whole(this.#random, MAX_BACK_MS),
      whole(this.#random, MAX_ON_MS),
    ]);
    this.#skewMs += byMs;
    this.#onMs += Math.max(0, byMs);
    this.#object.crash();
  }

  /** Admissions keep to the bound by a clock that goes forward with the object's, and never back. */
  #admit(key: string, units: number): void {
    this.#outcome.admitted += units;
    const oracles = this.#oracles.get(key) ?? this.#policy.rules.map((rule) => new Oracle(rule));
    this.#oracles.set(key, oracles);
    const nowMs = this.#trueMs + this.#onMs;
    for (const oracle of oracles) {
      const over = oracle.admit(units, nowMs, { nowMs, backMs: MAX_BACK_MS * this.#outcome.crashes });
      law(over <= 0, () => `${over} units of ${key} over the bound`);
    }
  }
}

function isAdmitted(answer: AnswerText): boolean {
  return (JSON.parse(answer) as Decided).rules.every(({ success }) => success);
}
