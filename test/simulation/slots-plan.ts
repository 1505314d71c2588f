/** What happens in a random history of leases (slots.ts). */
import type { Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
import { parseDeployment } from "../support/milliseconds.ts";
import { seededRandom, whole } from "../support/random.ts";

export interface SlotsPlan {
  readonly seed: number;
  readonly limit: number;
  readonly isolates: number;
  /** With clients of their own, whose callers lose their leases with them. */
  readonly processes: number;
  /** Isolates have no callers but processes. */
  readonly isServing?: boolean;
  /** The clock of a process stands still for up to 6 s, and its timers do not. */
  readonly standstills: number;
  readonly ttlMs: number;
  /** The mean time that a lease is held. */
  readonly heldMs: number;
  readonly callsPerS: number;
  /** After each 3 s of calls none come for so long: leases are only kept. Absent: never. */
  readonly restMs?: number;
  /** The part of processes' messages that isolates of the version before slots answer. Absent: none. */
  readonly older?: number;
  readonly waitMs: number;
  readonly lost: number;
  readonly late: number;
  readonly kills: number;
  readonly restarts: number;
  readonly freezes: number;
  /** An isolate is cut off from the object for up to 20 s. */
  readonly cuts: number;
  readonly resets: number;
  /** The object drops the key from memory, and reads it again. */
  readonly drops: number;
  /** The part of leases that are released and renewed through another isolate. */
  readonly elsewhere: number;
  /** The part of leases that are never released. */
  readonly abandoned: number;
  readonly seconds: number;
  readonly oneWayMs: number;
  readonly faults?: SlotsFaults;
}

/** Planted mistakes. */
export interface SlotsFaults {
  /** Changes a holder's message. @param memory the name of the object's present memory */
  readonly message?: (call: SlotsCall, memory: string) => SlotsCall;
  readonly answer?: (answer: Slots, call: SlotsCall) => Slots;
  /** A lease that the object does not know is renewed as if it did. */
  readonly renewsBlindly?: boolean;
  /** The clients' timers stand still with their clocks, while their callers go on. */
  readonly stopsTimers?: boolean;
  /** Callers do not hear that a lease is lost. */
  readonly isSilent?: boolean;
}

export function randomPlan(seed: number, faults?: SlotsFaults): SlotsPlan {
  const random = seededRandom(seed * 7_919 + 1);
  const of = <Value>(...values: Value[]) => values[whole(random, values.length)] as Value;
  const limit = of(2, 5, 10, 30);
  const heldMs = of(20, 100, 400, 1_500);
  return {
    seed,
    limit,
    isolates: of(1, 2, 3, 5),
    processes: 0,
    standstills: 0,
    ttlMs: of(1_000, 3_000, 10_000),
    heldMs,
    callsPerS: Math.min(150, (1_000 * limit * of(0.3, 0.8, 1.5)) / heldMs),
    waitMs: of(0, 0, 500, 3_000),
    lost: of(0, 0, 0.05, 0.2),
    late: of(0, 0.02, 0.1),
    kills: of(0, 1, 4),
    restarts: of(0, 1, 3),
    freezes: of(0, 1, 3),
    cuts: of(0, 0, 2),
    resets: of(0, 0, 1, 3),
    drops: of(0, 0, 2, 6),
    elsewhere: of(0, 0.3, 0.8),
    abandoned: of(0, 0.05),
    seconds: 10,
    oneWayMs: of(1, 20, 60),
    ...(faults && { faults }),
  };
}

/** Most callers are in processes, and none of them waits: waiting calls call all slots home. */
export function processPlan(seed: number, faults?: SlotsFaults): SlotsPlan {
  const random = seededRandom(seed * 7_919 + 2);
  const of = <Value>(...values: Value[]) => values[whole(random, values.length)] as Value;
  const plan = randomPlan(seed, faults);
  const limit = of(5, 10, 30);
  const heldMs = of(20, 100, 400, 2_500);
  const callsPerS = Math.max(30, Math.min(150, (1_000 * limit * of(0.5, 1.5)) / heldMs));
  return {
    ...plan,
    limit,
    heldMs,
    callsPerS,
    isolates: 1,
    processes: of(1, 2, 3),
    standstills: of(0, 1, 3),
    waitMs: 0,
    oneWayMs: of(1, 10, 30),
  };
}

const CALLS_MS = 3_000;

/** Whether calls come at a time. */
export function isCalling({ restMs = 0 }: SlotsPlan, atMs: number): boolean {
  return atMs % (CALLS_MS + restMs) < CALLS_MS;
}

/** Long leases, which processes keep through long times without calls. */
export function restingPlan(seed: number, faults?: SlotsFaults): SlotsPlan {
  const plan = processPlan(seed, faults);
  const random = seededRandom(seed * 7_919 + 3);
  const of = <Value>(...values: Value[]) => values[whole(random, values.length)] as Value;
  const long = {
    seconds: 40,
    ttlMs: 20_000,
    heldMs: of(5_000, 20_000),
    callsPerS: 30,
    restMs: of(3_000, 9_000),
  };
  return { ...plan, ...long, processes: of(2, 3), cuts: of(0, 2, 6), freezes: of(0, 2), kills: of(0, 2) };
}

/** Calls that are too rare for a message each pace, of a limit of which some slots may rest. */
export function seldomPlan(seed: number, faults?: SlotsFaults): SlotsPlan {
  const plan = randomPlan(seed, faults);
  const random = seededRandom(seed * 7_919 + 4);
  const of = <Value>(...values: Value[]) => values[whole(random, values.length)] as Value;
  const isolates = of(1, 2, 4);
  return {
    ...plan,
    isolates,
    limit: of(10, 30, 60),
    seconds: 60,
    heldMs: of(5, 50, 300, 1_500),
    callsPerS: isolates * of(0.5, 1.5, 4),
  };
}

export interface SlotsOutcome {
  granted: number;
  /** By isolates themselves. */
  own: number;
  /** By processes themselves. */
  inProcesses: number;
  lost: number;
  denied: number;
  degraded: number;
  renewed: number;
  messages: number;
  /** Answers by which a holder may be silent for longer than its pace. */
  rests: number;
  rows: number;
}

export function noOutcome(): SlotsOutcome {
  const leases = { granted: 0, own: 0, inProcesses: 0, lost: 0, denied: 0, degraded: 0, renewed: 0 };
  return { ...leases, messages: 0, rests: 0, rows: 0 };
}

export function deploymentOf({ limit, ttlMs: ttl }: SlotsPlan) {
  const slots = { algorithm: "concurrency", limit, ttl, maxTtl: 60_000, order: "relaxed" };
  return parseDeployment({ policies: { slots } });
}
