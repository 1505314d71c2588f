/** One cell of the table: holders far away, a load on one key, and what is admitted of it, in virtual time. */
import { LocalLimiter } from "../../client/local-limiter.ts";
import { LimiterClient } from "../../client/objects/limiter-client.ts";
import { ReservationCache } from "../../client/reservation-cache.ts";
import { BatchQueues } from "../../client/transports/batch-queue.ts";
import { Objects } from "../../client/transports/objects.ts";
import { DEFAULT_BOUNDS, type Policy } from "../../core/policies/policy.ts";
import { parseDeployment } from "../../core/policies/regional-policies.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { seededRandom, whole } from "../../test/support/random.ts";
import { drawCity } from "./cities.ts";
import { ExactQuota, Laws, type Quota, type Share } from "./laws.ts";
import { FarObjects, type ObjectsParts } from "./objects.ts";
import { Ticks } from "./ticks.ts";

export interface Cell {
  readonly quota: Quota;
  readonly holders: number;
  /** Calls a second, as a multiple of the limit. */
  readonly load: number;
  /** `turning`: at `EVENT_MS` nine tenths of the load move from one half of the holders to the other. */
  readonly shape: "even" | "zipf" | "turning";
  /** `stall`: from `EVENT_MS` on objects stand still for 10 s. `loss`: one message in ten is lost. */
  readonly fault: "none" | "stall" | "loss";
  readonly seed: number;
  /** How long calls are made. */
  readonly durationMs: number;
  /** How often the second law is checked. */
  readonly lawEveryMs: number;
  readonly plant?: ObjectsParts["plant"];
}

/** When the load turns, or objects begin to stand still. */
export const EVENT_MS = 10_000;
const STALL_MS = 10_000;
/** A cold start may take this long; after it all is counted. */
export const WARM_MS = 5_000;
/** A cell in which nothing has been admitted for this long after the cold start is cut off: it does not come back. */
const HOPELESS_MS = 2_500;
/** Fairness is measured over this long, at the end. */
const FAIR_MS = 10_000;
/** After the last call, answers may take this long. */
const LATE_MS = 3_000;
/** The parts of a run in which what is admitted is compared, to say when it is normal. */
const BIN_MS = 500;
const NORMAL = 0.9;
const KEY = "key";

export interface Figures {
  /** Admitted calls, as a part of those that one exact limiter admits. */
  readonly admitted: number;
  /** Parts of all calls: those that were not decided, and those that waited for a message. */
  readonly degraded: number;
  readonly waited: number;
  /** Waits of calls that waited, in milliseconds. */
  readonly waitP50: number;
  readonly waitP99: number;
  /** At the busiest object: messages a second that are sent to it, and the part of the time in which it works. */
  readonly messages: number;
  readonly busy: number;
  /** Jain's index of the admitted parts of holders' calls, and that of one exact limiter. */
  readonly jain: number;
  readonly jainExact: number;
  /** Units beyond the quota: see `Laws`. */
  readonly admittedOver: number;
  readonly handedOutOver: number;
  /** Seconds until 0.9 is admitted, since the cold start and since the event. `Infinity`: never. */
  readonly coldS: number;
  readonly backS: number;
  /** Lines that the product has logged, each second. */
  readonly logLines: number;
  /** How long calls were made, in seconds. */
  readonly seconds: number;
}

/** Runs a cell. The seed alone decides what happens. */
export async function runCell(cell: Cell): Promise<Figures> {
  const { warn } = console;
  let lines = 0;
  console.warn = () => (lines += 1);
  try {
    const figures = await run(cell);
    return { ...figures, logLines: lines / figures.seconds };
  } finally {
    console.warn = warn;
  }
}

async function run(cell: Cell): Promise<Omit<Figures, "logLines">> {
  const { quota, holders: count, fault, shape, seed } = cell;
  const hasEvent = fault === "stall" || shape === "turning";
  const random = seededRandom(seed);
  const ticks = new Ticks();
  const laws = new Laws(quota);
  const { algorithm, limit, windowMs } = quota;
  const { policies, regionalPolicies } = parseDeployment({
    policies: { api: { algorithm, limit, window: `${windowMs}ms` } },
  });
  const objects = new FarObjects({
    ticks,
    policies,
    laws,
    random: seededRandom(seed + 1),
    lost: fault === "loss" ? 0.1 : 0,
    stalled: fault === "stall" ? [EVENT_MS, EVENT_MS + STALL_MS] : [Infinity, Infinity],
    countedFromMs: WARM_MS,
    plant: cell.plant,
  });
  const policy = regionalPolicies.get("api") as Policy;
  const holders = Array.from({ length: count }, (_, index) => {
    const time = ticks.clock(2_000_000 + whole(random, 1_000));
    return new Isolate({ index, time, namespace: objects.namespaceFrom(drawCity(random)), regionalPolicies });
  });
  const shares = function* (): Iterable<Share> {
    for (const object of objects.all.values()) yield { units: object.unitsLeft(policy.name, KEY) };
    for (const holder of holders) yield { units: holder.unitsOf(policy) };
  };
  const measures = new Measures(cell, new ExactQuota(quota));
  const draw = drawHolder(cell, random);
  const callsPerMs = (limit * cell.load) / windowMs;
  let nextAtMs = 0;
  let { durationMs } = cell;
  let busiest = { messages: 0, busy: 0 };
  const isOver = () => ticks.nowMs >= durationMs + LATE_MS;
  await ticks.run(isOver, (nowMs) => {
    if (nowMs === WARM_MS + HOPELESS_MS && !hasEvent && measures.admitted === 0) durationMs = nowMs;
    for (; nextAtMs < Math.min(nowMs + 1, durationMs); nextAtMs -= Math.log(1 - random()) / callsPerMs) {
      const holder = draw(nowMs);
      const call = measures.begin(holder, nowMs);
      const decided = (holders[holder] as Isolate).limit(policy);
      const note = (decision: Decision | Problem) => {
        const isAdmitted = !(decision instanceof Problem) && decision.success;
        if (isAdmitted && decision.source === "isolate") laws.admitted(1, ticks.nowMs);
        measures.end(call, decision, ticks.nowMs);
      };
      if (decided instanceof Promise) void decided.then(note);
      else note(decided);
    }
    if (nowMs === durationMs) busiest = busiestOf(objects, durationMs - WARM_MS);
    if (nowMs % cell.lawEveryMs === 0) laws.handedOut(shares(), nowMs);
  });
  const eventMs = fault === "stall" ? EVENT_MS + STALL_MS : EVENT_MS;
  return {
    ...measures.figures(),
    ...busiest,
    admittedOver: laws.admittedOver,
    handedOutOver: laws.handedOutOver,
    coldS: measures.normalAfterS(0),
    backS: hasEvent ? measures.normalAfterS(eventMs) : Number.NaN,
    seconds: durationMs / 1_000,
  };
}

function busiestOf({ all }: FarObjects, ms: number): Pick<Figures, "messages" | "busy"> {
  const { received, busyMs } = [...all.values()].reduce((a, b) => (a.busyMs > b.busyMs ? a : b));
  return { messages: (1_000 * received) / ms, busy: busyMs / ms };
}

/** An isolate of a worker: the production client, with the bounds of one caller. */
class Isolate {
  readonly #client: LimiterClient;
  readonly #cache: ReservationCache;
  readonly #time: ReturnType<Ticks["clock"]>;

  constructor({
    index,
    time,
    namespace,
    regionalPolicies: policies,
  }: {
    readonly index: number;
    readonly time: ReturnType<Ticks["clock"]>;
    readonly namespace: ReturnType<FarObjects["namespaceFrom"]>;
    readonly regionalPolicies: ReturnType<typeof parseDeployment>["regionalPolicies"];
  }) {
    this.#time = time;
    this.#cache = new ReservationCache(() => `isolate-${index}`);
    const inBackground = () => undefined;
    const together = { queues: new BatchQueues(), inBackground };
    const objects = new Objects(namespace, time, together);
    const parts = { objects, policies, time, inBackground };
    this.#client = new LimiterClient(parts, new LocalLimiter(this.#cache)).for("caller", DEFAULT_BOUNDS);
  }

  limit(policy: Policy): Decision | Problem | Promise<Decision | Problem> {
    return this.#client.limit(policy, KEY, { cost: 1 });
  }

  /** Units that it may spend without asking. */
  unitsOf(policy: Policy): number {
    return this.#cache.find(policy, KEY)?.spendableAt(this.#time.nowMs())[0] ?? 0;
  }
}

/** Draws the holder of each call. */
function drawHolder({ shape, holders }: Cell, random: () => number): (nowMs: number) => number {
  if (shape === "even" || holders === 1) return () => whole(random, holders);
  if (shape === "turning")
    return (nowMs) => {
      const isOdd = random() < 0.9 === nowMs < EVENT_MS;
      return 2 * whole(random, Math.floor(holders / 2)) + (isOdd ? 1 : 0);
    };
  const sums = [0];
  for (let rank = 1; rank <= holders; rank += 1) sums.push((sums.at(-1) ?? 0) + 1 / rank);
  return () => {
    const drawn = random() * (sums.at(-1) ?? 0);
    let [low, high] = [0, holders - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((sums[middle] ?? 0) <= drawn) low = middle;
      else high = middle - 1;
    }
    return low;
  };
}

interface CallMade {
  readonly holder: number;
  readonly atMs: number;
}

/** What became of the calls. A call counts for the instant at which it was made, whenever it is answered. */
class Measures {
  readonly #durationMs: number;
  readonly #exact: ExactQuota;
  readonly #counts = { calls: 0, exactly: 0, admitted: 0, degraded: 0, waited: 0 };
  /** Calls by their wait in whole milliseconds, the longest ones together. */
  readonly #waits = new Int32Array(LATE_MS);
  /** By half a second. */
  readonly #bins: { exactly: number; admitted: number }[] = [];
  /** By holder, in the last seconds. */
  readonly #fair: { calls: number; exactly: number; admitted: number }[];

  constructor({ durationMs, holders }: Cell, exact: ExactQuota) {
    this.#durationMs = durationMs;
    this.#exact = exact;
    this.#bins = Array.from({ length: Math.ceil(durationMs / BIN_MS) }, () => ({ exactly: 0, admitted: 0 }));
    this.#fair = Array.from({ length: holders }, () => ({ calls: 0, exactly: 0, admitted: 0 }));
  }

  begin(holder: number, atMs: number): CallMade {
    const call = { holder, atMs };
    this.#add(call, "calls");
    if (this.#exact.admits(atMs)) this.#add(call, "exactly");
    return call;
  }

  end(call: CallMade, decision: Decision | Problem, nowMs: number): void {
    if (decision instanceof Problem || decision.reason === "degraded") this.#add(call, "degraded");
    else if (decision.success) this.#add(call, "admitted");
    if (nowMs === call.atMs) return;
    this.#add(call, "waited");
    const waitMs = Math.min(nowMs - call.atMs, LATE_MS - 1);
    if (call.atMs >= WARM_MS) this.#waits[waitMs] = (this.#waits[waitMs] ?? 0) + 1;
  }

  #add({ holder, atMs }: CallMade, what: "calls" | "exactly" | "admitted" | "degraded" | "waited"): void {
    if (atMs >= WARM_MS) this.#counts[what] += 1;
    if (what === "degraded" || what === "waited") return;
    const fair = this.#fair[holder];
    if (fair !== undefined && atMs >= this.#durationMs - FAIR_MS) fair[what] += 1;
    const bin = this.#bins[Math.floor(atMs / BIN_MS)];
    if (bin !== undefined && what !== "calls") bin[what] += 1;
  }

  /** Admitted calls since the cold start is over. */
  get admitted(): number {
    return this.#counts.admitted;
  }

  figures() {
    const { calls, exactly, admitted, degraded, waited } = this.#counts;
    const called = this.#fair.filter((each) => each.calls > 0);
    return {
      admitted: admitted / exactly,
      degraded: degraded / calls,
      waited: waited / calls,
      waitP50: this.#waitAt(0.5),
      waitP99: this.#waitAt(0.99),
      jain: jainIndex(called.map((each) => each.admitted / each.calls)),
      jainExact: jainIndex(called.map((each) => each.exactly / each.calls)),
    };
  }

  #waitAt(part: number): number {
    let left = part * this.#waits.reduce((sum, count) => sum + count, 0);
    return Math.max(
      0,
      this.#waits.findIndex((count) => (left -= count) <= 0),
    );
  }

  /** Seconds from `sinceMs` until a full second in which 0.9 of what an exact limiter admits is admitted. */
  normalAfterS(sinceMs: number): number {
    const isNormal = ({ exactly, admitted }: { exactly: number; admitted: number }) =>
      admitted >= NORMAL * exactly;
    const bins = this.#bins.slice(sinceMs / BIN_MS);
    const index = bins.findIndex((bin, at) => isNormal(bin) && isNormal(bins[at + 1] ?? bin));
    return index < 0 ? Infinity : (index * BIN_MS) / 1_000;
  }
}

/** 1: all have the same part. 1/n: one of n has all. */
function jainIndex(parts: readonly number[]): number {
  const sum = parts.reduce((total, each) => total + each, 0);
  const squares = parts.reduce((total, each) => total + each * each, 0);
  return squares === 0 ? 1 : sum ** 2 / (parts.length * squares);
}
