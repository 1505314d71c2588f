/**
 * An overloaded fleet behind a policy that sheds: production clients and a production object in virtual time.
 * Each machine reports its utilization once a second through the isolate that it calls.
 */
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { LoadShedding } from "../../client/objects/load-shedding.ts";
import { Objects } from "../../client/transports/objects.ts";
import { parseDeployment } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { SheddingLevel } from "../../core/protocol/answers.ts";
import { seededRandom, whole } from "../support/random.ts";
import { Database } from "./database.ts";
import { simulatedNamespace, type Fate } from "./network.ts";
import { SimulatedObject } from "./simulated-object.ts";
import { VirtualTime } from "./virtual-time.ts";

export const [OVERLOAD_AT_S, RELIEF_AT_S, END_S] = [120, 840, 1_200];
/** As parts of the fleet's capacity: before and after the overload, and during it. */
export const [USUAL_LOAD, OVERLOAD] = [0.6, 1.25];
/** The part of all calls with each priority, the most important first. */
export const MIX = { critical: 0.1, high: 0.2, normal: 0.4, low: 0.3 } as const;
export type Priority = keyof typeof MIX;

const KEY = "fleet";
const TICK_MS = 250;
const [MACHINES, ISOLATES] = [8, 4];
/** The calls that one machine serves in a second, and the most seconds of queued work. */
const [CALLS_PER_S, MAX_QUEUE_S] = [50, 2];

/** The policy, or a shedder that sheds `low` and `normal` at once until the overload is over. */
export type Who = "weir" | "at-once";

export interface BusySecond {
  /** Utilization from 0 to 1, and queued work in seconds. */
  readonly utilization: number;
  readonly queueS: number;
  readonly level: number;
  /** Messages to the object. */
  readonly messages: number;
  readonly offered: Readonly<Record<Priority, number>>;
  readonly shed: Readonly<Record<Priority, number>>;
}

export interface Faults {
  /** The part of all messages that is lost. */
  readonly lost?: number;
  readonly crashesAtS?: readonly number[];
  readonly shed?: object;
}

/** Runs the trace: the usual load, an overload, and the usual load again. */
export async function simulateBusy(who: Who, seed: number, faults: Faults = {}): Promise<BusySecond[]> {
  const fleet = new Fleet(who, seed, faults);
  const seconds: BusySecond[] = [];
  for (let second = 0; second < END_S; second += 1) seconds.push(await fleet.second(second));
  return seconds;
}

class Fleet {
  readonly #who: Who;
  readonly #faults: Faults;
  readonly #random: () => number;
  readonly #time = new VirtualTime();
  readonly #object: SimulatedObject;
  readonly #clients: readonly LimiterClient[];
  readonly #policy: Policy;
  readonly #queues = Array.from({ length: MACHINES }, () => 0);
  #level: Pick<SheddingLevel, "level"> = { level: 0 };
  #isBad = false;
  #messages = 0;

  constructor(who: Who, seed: number, faults: Faults) {
    this.#who = who;
    this.#faults = faults;
    this.#random = seededRandom(seed);
    const { policies, regionalPolicies } = parseDeployment({
      policies: { api: { algorithm: "unlimited", shed: faults.shed ?? true } },
    });
    this.#policy = regionalPolicies.get("api") as Policy;
    const clock = this.#time.clock({ ms: 1_000_000 });
    this.#object = new SimulatedObject(new Database(), policies, () => clock.nowMs());
    const handle: Parameters<typeof simulatedNamespace>[1] = (method, args) => {
      this.#messages += 1;
      const answer = this.#object.handle(method, args) as string;
      this.#level = JSON.parse(answer) as SheddingLevel;
      return answer;
    };
    this.#clients = Array.from({ length: ISOLATES }, (_, index) => {
      const namespace = simulatedNamespace(this.#time, handle, this.#fate, () => false);
      const parts = {
        objects: new Objects(namespace, clock),
        policies: regionalPolicies,
        time: clock,
        inBackground: () => undefined,
      };
      return new LimiterClient(parts, undefined, new LoadShedding(seededRandom(seed + index + 1)));
    });
  }

  readonly #fate = (): Fate => {
    const isLost = (this.#faults.lost ?? 0) > this.#random();
    return isLost ? {} : { thereMs: 5 + whole(this.#random, 40), backMs: 5 + whole(this.#random, 40) };
  };

  async second(second: number): Promise<BusySecond> {
    if (this.#faults.crashesAtS?.includes(second) === true) this.#object.crash();
    const offered = { critical: 0, high: 0, normal: 0, low: 0 };
    const shed = { ...offered };
    this.#messages = 0;
    const busyS = this.#queues.map(() => 0);
    for (let tick = 0; tick < 1_000 / TICK_MS; tick += 1) {
      await this.#time.run(second * 1_000 + tick * TICK_MS, () => undefined);
      this.#time.nowMs = second * 1_000 + tick * TICK_MS;
      await this.#arrive(second, offered, shed);
      for (const [machine, queueS] of this.#queues.entries()) {
        const doneS = Math.min(queueS, TICK_MS / 1_000);
        busyS[machine] = (busyS[machine] ?? 0) + doneS;
        this.#queues[machine] = queueS - doneS;
      }
    }
    for (const [machine, busy] of busyS.entries())
      this.#clients[machine % ISOLATES]?.report(this.#policy, KEY, Math.min(1, busy));
    const utilization = mean(busyS);
    this.#isBad = utilization > (this.#isBad ? 0.7 : 0.8);
    const queueS = mean(this.#queues);
    return { utilization, queueS, level: this.#level.level, messages: this.#messages, offered, shed };
  }

  /** The calls of one tick. Admitted ones go to one machine each, as work. */
  async #arrive(
    second: number,
    offered: Record<Priority, number>,
    shed: Record<Priority, number>,
  ): Promise<void> {
    const load = second >= OVERLOAD_AT_S && second < RELIEF_AT_S ? OVERLOAD : USUAL_LOAD;
    const calls = poisson(this.#random, (load * MACHINES * CALLS_PER_S * TICK_MS) / 1_000);
    for (let call = 0; call < calls; call += 1) {
      const priority = this.#priority();
      const machine = whole(this.#random, MACHINES);
      offered[priority] += 1;
      if (await this.#isShed(machine, priority)) shed[priority] += 1;
      else
        this.#queues[machine] = Math.min(
          MAX_QUEUE_S,
          (this.#queues[machine] ?? 0) + (-1 / CALLS_PER_S) * Math.log(1 - this.#random()),
        );
    }
  }

  async #isShed(machine: number, priority: Priority): Promise<boolean> {
    if (this.#who === "at-once") return this.#isBad && (priority === "low" || priority === "normal");
    const decided = this.#clients[machine % ISOLATES]?.limit(this.#policy, KEY, { cost: 1, priority });
    // The first call waits for the chance of shedding, and nothing is shed.
    if (decided === undefined || decided instanceof Promise) return false;
    return !decided.success;
  }

  #priority(): Priority {
    const drawn = this.#random();
    let sum = 0;
    for (const [name, part] of Object.entries(MIX)) {
      sum += part;
      if (drawn < sum) return name as Priority;
    }
    return "low";
  }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** A Poisson number (D. E. Knuth, The Art of Computer Programming, vol. 2, 3.4.1). */
function poisson(random: () => number, expected: number): number {
  // In parts: for a large number e^-n is 0.
  if (expected > 500) return poisson(random, 500) + poisson(random, expected - 500);
  const least = Math.exp(-expected);
  let count = 0;
  for (let product = random(); product > least; product *= random()) count += 1;
  return count;
}

/** How often a series changes direction by more than `least`. */
export function turnsOf(values: readonly number[], least: number): number {
  let [turns, direction] = [0, 0];
  let [low, high] = [values[0] ?? 0, values[0] ?? 0];
  for (const value of values) {
    [low, high] = [Math.min(low, value), Math.max(high, value)];
    const now = value < high - least ? -1 : value > low + least ? 1 : direction;
    if (now === direction) continue;
    if (direction !== 0) turns += 1;
    direction = now;
    [low, high] = [value, value];
  }
  return turns;
}
