/** One cell of the table: holders far away, a load on one key, and what is admitted of it, in virtual time. */
import { parseDeployment, withAll } from "../../core/policies/parse-policies.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { seededRandom, whole } from "../../test/support/random.ts";
import { drawCity, regionOf } from "./cities.ts";
import { HOLDERS, type Holder, type HolderParts, KEY } from "./holders.ts";
import { Laws, type Quota, type Share } from "./laws.ts";
import { type Figures, LATE_MS, Measures, WARM_MS } from "./measures.ts";
import { FarObjects, type ObjectsParts } from "./objects.ts";
import { Ticks } from "./ticks.ts";

export interface Cell {
  readonly quota: Quota;
  readonly holders: number;
  readonly kind: keyof typeof HOLDERS;
  /** Calls a second, as a multiple of the limit. */
  readonly load: number;
  /**
   * `turning`: at `EVENT_MS` nine tenths of the load move from one half of the holders to the other. `world`: each four
   * seconds they move from half of the regions to the others. `crowd`: for 8 s of each 24 all make calls, then only one.
   */
  readonly shape: "even" | "zipf" | "turning" | "world" | "crowd";
  /** `stall`: from `EVENT_MS` on objects stand still for 10 s. `loss`: one message in ten is lost. */
  readonly fault: "none" | "stall" | "loss";
  readonly seed: number;
  /** How long calls are made. */
  readonly durationMs: number;
  /** How often the second law is checked. */
  readonly lawEveryMs: number;
  readonly plant?: ObjectsParts["plant"];
  /** From so many holders on they ask objects in their regions. Absent: as in production. */
  readonly holdersForRegions?: number;
  /** `regions` of the policy. */
  readonly regions?: Policy["regions"];
  /** Then `regions` changes, so often, to each of these in turn. The last holder hears of it `lagMs` after the first. */
  readonly changes?: {
    readonly everyMs: number;
    readonly lagMs: number;
    readonly to: readonly NonNullable<Policy["regions"]>[];
  };
  /** So often an object loses its memory, one after the other. Absent: never. */
  readonly restart?: { readonly everyMs: number; readonly of: "regions" | "homes" | "all" };
  /** From `atMs` on calls name a plan with this smaller limit, but between `back`, and `lateMs` later only that counts. */
  readonly plan?: {
    readonly limit: number;
    readonly atMs: number;
    readonly back?: readonly [fromMs: number, toMs: number];
    readonly lateMs: number;
  };
  /** Changes what a region's object says to the home object, and hears of it: planted mistakes. */
  readonly plantBetween?: ObjectsParts["plantBetween"];
  /** Changes what a process says: planted mistakes. */
  readonly plantFar?: HolderParts["plantFar"];
  readonly plantReply?: HolderParts["plantReply"];
}

/** The plan of `Cell.plan`. */
const SMALL = "small";
/** When the load turns, or objects begin to stand still. */
export const EVENT_MS = 10_000;
const STALL_MS = 10_000;
/** A cell in which nothing was admitted for this long after the cold start ends then: it does not come back. */
const HOPELESS_MS = 10_000;

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
  const { limit, windowMs } = quota;
  const { policies, regionalPolicies } = parseDeployment({ policies: { api: tableOf(cell, cell.regions) } });
  const small = cell.plan && { ...cell.plan, laws: new Laws({ ...quota, limit: cell.plan.limit }) };
  const isSmall = (nowMs: number) => {
    const { atMs = Infinity, back: [fromMs, toMs] = [Infinity, Infinity] } = cell.plan ?? {};
    return nowMs >= atMs && (nowMs < fromMs || nowMs >= toMs);
  };
  const objects = new FarObjects({
    ticks,
    policies,
    laws,
    random: seededRandom(seed + 1),
    lost: fault === "loss" ? 0.1 : 0,
    stalled: fault === "stall" ? [EVENT_MS, EVENT_MS + STALL_MS] : [Infinity, Infinity],
    countedFromMs: WARM_MS,
    plant: cell.plant,
    plantBetween: cell.plantBetween,
    holdersForRegions: cell.holdersForRegions,
  });
  const policy = regionalPolicies.get("api") as Policy;
  const drawn = Array.from({ length: count }, () => drawCity(random));
  const cities = shape === "world" ? drawn.toSorted((a, b) => (regionOf(a) < regionOf(b) ? -1 : 1)) : drawn;
  const holders = cities.map((city, index) => {
    // No two clocks are the same.
    const time = ticks.clock(2_000_000 + whole(random, 1_000));
    return HOLDERS[cell.kind]({
      name: `holder-${index}`,
      time,
      namespace: objects.namespaceFrom(city),
      region: regionOf(city),
      policies: regionalPolicies,
      onAdmitted: () => {
        laws.admitted(1, ticks.nowMs);
        if (small && ticks.nowMs >= small.atMs + small.lateMs) small.laws.admitted(1, ticks.nowMs);
      },
      plantFar: cell.plantFar,
      plantReply: cell.plantReply,
    });
  });
  const shares = function* (): Iterable<Share> {
    for (const object of objects.all.values()) yield* object.sharesOf(policy.name, KEY);
    for (const holder of holders) yield* holder.sharesOf(policy);
  };
  const measures = new Measures(cell.durationMs, count, quota);
  const draw = drawHolder(cell, random);
  const versionFor = versionsOf(cell, policy);
  const callsPerMs = (limit * cell.load) / windowMs;
  let nextAtMs = 0;
  let { durationMs } = cell;
  let messages: MessageFigures = { messages: 0, busy: 0, objects: 0, allMessages: 0 };
  const isOver = () => ticks.nowMs >= durationMs + LATE_MS;
  await ticks.run(isOver, (nowMs) => {
    if (nowMs === WARM_MS + HOPELESS_MS && measures.admitted === 0) durationMs = nowMs;
    for (; nextAtMs < Math.min(nowMs + 1, durationMs); nextAtMs -= Math.log(1 - random()) / callsPerMs) {
      const holder = draw(nowMs);
      const call = measures.begin(holder, nowMs);
      const end = (decision: Decision | undefined) => measures.end(call, decision, ticks.nowMs);
      const named = planOf(versionFor(holder, nowMs), isSmall(nowMs) ? SMALL : "");
      const decided = (holders[holder] as Holder).limit(named);
      if (decided instanceof Promise) void decided.then(end);
      else end(decided);
    }
    const { restart } = cell;
    if (restart !== undefined && nowMs > 0 && nowMs % restart.everyMs === 0) {
      const all = [...objects.all.values()].filter(
        ({ isRegional }) => restart.of === "all" || isRegional === (restart.of === "regions"),
      );
      all[(nowMs / restart.everyMs) % all.length]?.restart();
    }
    if (nowMs === durationMs) messages = messagesOf(objects, durationMs - WARM_MS);
    if (nowMs % cell.lawEveryMs === 0) laws.handedOut(shares(), nowMs);
  });
  const eventMs = fault === "stall" ? EVENT_MS + STALL_MS : EVENT_MS;
  return {
    ...measures.figures(),
    ...messages,
    admittedOver: laws.admittedOver,
    handedOutOver: laws.handedOutOver,
    ...(small && { planOver: small.laws.admittedOver }),
    coldS: measures.normalAfterS(0, hasEvent ? EVENT_MS : durationMs),
    backS: hasEvent ? measures.normalAfterS(eventMs, durationMs) : Number.NaN,
    seconds: durationMs / 1_000,
    timeline: measures.timeline,
  };
}

function tableOf({ quota: { algorithm, limit, windowMs }, plan }: Cell, regions: Policy["regions"]) {
  return {
    algorithm,
    limit,
    window: `${windowMs}ms`,
    ...(regions && { regions }),
    ...(plan && { plans: { [SMALL]: { limit: plan.limit } } }),
  };
}

/** The policy as each holder knows it: changed at run time by `Cell.changes`. */
function versionsOf(cell: Cell, file: Policy): (holder: number, nowMs: number) => Policy {
  const { changes, holders } = cell;
  if (changes === undefined) return () => file;
  const versions = changes.to.map((regions, index) => {
    const table = tableOf(cell, regions);
    const { regionalPolicies } = parseDeployment({ policies: { [file.name]: table } });
    const inForce = { version: index + 1, fields: JSON.stringify(table) };
    return withAll(regionalPolicies.get(file.name) as Policy, { inForce });
  });
  return (holder, nowMs) => {
    const heardMs = nowMs - (changes.lagMs * holder) / holders;
    return versions[Math.min(Math.floor(heardMs / changes.everyMs), versions.length) - 1] ?? file;
  };
}

type MessageFigures = Pick<Figures, "messages" | "busy" | "objects" | "allMessages">;

function messagesOf({ all }: FarObjects, ms: number): MessageFigures {
  const { received, busyMs } = [...all.values()].reduce((a, b) => (a.busyMs > b.busyMs ? a : b));
  const sum = [...all.values()].reduce((messages, object) => messages + object.received, 0);
  return {
    messages: (1_000 * received) / ms,
    busy: Math.min(1, busyMs / ms),
    objects: all.size,
    allMessages: (1_000 * sum) / ms,
  };
}

/** Draws the holder of each call. */
function drawHolder({ shape, holders }: Cell, random: () => number): (nowMs: number) => number {
  if (shape === "even" || holders === 1) return () => whole(random, holders);
  if (shape === "world")
    return (nowMs) => {
      const isLast = random() < 0.9 === nowMs % 8_000 < 4_000;
      const half = Math.floor(holders / 2);
      return whole(random, half) + (isLast ? half : 0);
    };
  if (shape === "crowd") return (nowMs) => whole(random, nowMs % 24_000 < 8_000 ? holders : 1);
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
