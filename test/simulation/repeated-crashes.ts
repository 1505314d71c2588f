/** One key of some clients that hold units, and of an object that crashes repeatedly, in virtual time. */
import { ReservationCache } from "../../client/reservation-cache.ts";
import { heldUnits } from "../../core/accounts/hold.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Policies, Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { Database } from "./database.ts";
import { Oracles } from "./laws.ts";
import { SimulatedObject } from "./simulated-object.ts";

const KEY = "key";
const STEP_MS = 5;

export interface Crashing {
  readonly fields: object;
  readonly clients: number;
  /** Of all clients together. */
  readonly callsPerSecond: number;
  readonly everyMs: number;
  readonly crashes: number;
  /** The time after the last crash, in milliseconds. */
  readonly restMs: number;
}

/** Observations between two crashes. */
export interface AfterCrash {
  /** Units that were granted, or might be without a write, at a crash: the most that it can cost. */
  readonly unknown: number;
  /** Units that the started object presumed to be granted. */
  readonly presumed: number;
  /** The last instant at which it presumed any, from the crash on. */
  readonly presumedMs: number;
  readonly admitted: number;
  /** The longest time without an admission. */
  readonly nothingMs: number;
}

/** @throws BrokenLaw when more is admitted than the policy allows */
export function crashRepeatedly(
  { fields, clients, callsPerSecond, everyMs, crashes, restMs }: Crashing,
  database: Database,
  atCrash: (database: Database) => void = () => undefined,
): AfterCrash[] {
  const policies: Policies = parsePolicies({ p: fields });
  const policy = policies.get("p") as Policy;
  let nowMs = 1_000_000;
  database.clear();
  const object = new SimulatedObject(database, policies, () => nowMs);
  const oracles = new Oracles(policy);
  const all: AfterCrash[] = [];
  const admit = () => {
    oracles.admit(1, nowMs, undefined, { nowMs, backMs: 0 });
    current.admitted += 1;
    current.nothingMs = Math.max(current.nothingMs, nowMs - current.lastMs);
    current.lastMs = nowMs;
  };
  const caches = Array.from({ length: clients }, (_, index) => new ReservationCache(() => `client-${index}`));
  const call = (cache: ReservationCache) => {
    const reservation = cache.open(policy, KEY, nowMs);
    reservation.note(1, nowMs);
    if (reservation.spend(1, nowMs)) {
      admit();
      if (reservation.needsRefill(nowMs)) reserve(cache, 0);
      return;
    }
    if (reservation.deny(1, nowMs, true) !== undefined) return;
    if (reservation.isWorthUnits) return reserve(cache, 1);
    const decided = JSON.parse(object.limit("p", KEY, 1)) as Decided;
    reservation.learn(1, decided, nowMs);
    if (decided.rules.every(({ success }) => success)) admit();
  };
  const reserve = (cache: ReservationCache, cost: number) => {
    const reservation = cache.open(policy, KEY, nowMs);
    const message = reservation.ask(cost, nowMs);
    cache.hold(reservation);
    const decided = JSON.parse(object.reserve(message.call)) as Decided;
    reservation.answered(message, decided, nowMs);
    if (cost > 0 && decided.rules.every(({ success }) => success)) admit();
  };
  const begin = (unknown: number) => ({
    unknown,
    presumed: 0,
    presumedMs: 0,
    admitted: 0,
    nothingMs: 0,
    lastMs: nowMs,
  });
  const presumedNow = () =>
    Math.max(...object.open(policy, KEY).accounts.map(({ holds }) => heldUnits(holds).restored));
  const unknownNow = () =>
    Math.max(
      ...object.open(policy, KEY).ruleStates.map(({ account, stored }) => {
        const { unstored, restored } = heldUnits(account.holds);
        return Math.max(unstored, stored?.ahead ?? 0) - restored;
      }),
    );
  let current = begin(0);
  const everyCallMs = 1_000 / callsPerSecond;
  let [calls, startMs] = [0, nowMs];
  for (let crash = 0; crash <= crashes; crash += 1) {
    const untilMs = nowMs + (crash === crashes ? restMs : everyMs);
    while (nowMs < untilMs) {
      for (; startMs + calls * everyCallMs <= nowMs; calls += 1)
        call(caches[calls % clients] as ReservationCache);
      const presumed = presumedNow();
      if (presumed > 0) current.presumedMs = nowMs - untilMs + (crash === crashes ? restMs : everyMs);
      current.presumed = Math.max(current.presumed, presumed);
      for (const cache of caches)
        for (const { returned } of cache.endDue(nowMs)) object.giveBack("p", [returned]);
      nowMs += STEP_MS;
    }
    current.nothingMs = Math.max(current.nothingMs, nowMs - current.lastMs);
    all.push(current);
    current = begin(unknownNow());
    atCrash(database);
    if (crash < crashes) object.crash();
  }
  return all;
}
