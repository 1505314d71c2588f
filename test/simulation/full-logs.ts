/** Random histories of few far isolates on one log that is full now and then: production reservations, and an object. */
import type { Policy } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import { Reservation } from "../../core/reservations/reservation.ts";
import { parsePolicies } from "../support/milliseconds.ts";
import { pick, seededRandom, whole } from "../support/random.ts";
import type { Database } from "./database.ts";
import { SimulatedObject } from "./simulated-object.ts";

const LIMIT = 600;
const WINDOW_MS = 800;
const POLICIES = parsePolicies({
  log: {
    algorithm: "sliding-log",
    limit: LIMIT,
    window: WINDOW_MS,
    reservation: { ttl: 800 },
    deadlineMs: 400,
  },
});
const POLICY = POLICIES.get("log") as Policy;
const KEY = "key";
const LENGTH_MS = 12_000;
/** So far a clock may be set forward (docs/guarantees.md), once in a window. */
const MAX_FORWARD_MS = 250;

interface Isolate {
  held: Reservation;
  aheadMs: number;
  jumpedAtMs: number;
}

/** What happened in a history, or in several. */
export interface Happened {
  /** Units beyond the limit in the worst window. */
  over: number;
  admitted: number;
  /** Buckets of holders that had units, and those that were given up for units. */
  cut: number;
  ended: number;
  /** The most units that one window had. */
  most: number;
}

export function fullLogs(seed: number, database: Database): Happened {
  const random = seededRandom(seed);
  database.clear();
  let nowMs = 0;
  let objectMs = 1_000_000;
  const object = new SimulatedObject(database, POLICIES, () => nowMs + objectMs);
  const happened: Happened = { over: 0, admitted: 0, cut: 0, ended: 0, most: 0 };
  const log = new Int32Array(WINDOW_MS);
  let inWindow = 0;
  const admit = () => {
    log[nowMs % WINDOW_MS] = (log[nowMs % WINDOW_MS] ?? 0) + 1;
    inWindow += 1;
    happened.admitted += 1;
    happened.most = Math.max(happened.most, inWindow);
    happened.over = Math.max(happened.over, inWindow - LIMIT);
  };
  const later = new Map<number, (() => void)[]>();
  const after = (ms: number, what: () => void) => {
    const atMs = nowMs + Math.max(1, ms);
    later.set(atMs, [...(later.get(atMs) ?? []), what]);
  };
  let started = 0;
  const start = (): Isolate => ({
    held: new Reservation(POLICY, KEY, `isolate ${(started += 1)}`, nowMs),
    aheadMs: 0,
    jumpedAtMs: -Infinity,
  });
  const isolates = Array.from({ length: 1 + whole(random, 4) }, start);
  const isFaulty = random() < 0.7;
  const wayMs = () => 15 + whole(random, 60) + (isFaulty && random() < 0.03 ? whole(random, 600) : 0);
  const isLost = () => isFaulty && random() < 0.03;
  const send = (isolate: Isolate, cost: number) => {
    const { held, aheadMs } = isolate;
    const message = held.ask(cost, nowMs + aheadMs);
    const hear = () => {
      const answer = JSON.parse(object.reserve(message.call)) as Decided;
      // What it decided itself is admitted, also if nobody hears of it.
      if (cost > 0 && answer.rules.every(({ success }) => success)) admit();
      if (isLost()) return;
      after(wayMs(), () => {
        const hadBucket = held.buckets.length > 0;
        held.answered(message, answer, nowMs + isolate.aheadMs);
        const hasBucket = held.buckets.length > 0;
        if (hasBucket && !hadBucket) happened.cut += 1;
        if (hadBucket && !hasBucket) happened.ended += 1;
      });
    };
    if (!isLost()) after(wayMs(), hear);
    if (isFaulty && random() < 0.02) after(wayMs() + wayMs(), hear);
    after(POLICY.deadlineMs, () => held.unanswered(nowMs + isolate.aheadMs, message));
  };
  const call = (isolate: Isolate) => {
    const { held } = isolate;
    const ownMs = nowMs + isolate.aheadMs;
    held.note(1, ownMs);
    if (held.spend(1, ownMs)) {
      admit();
      if (held.needsRefill(ownMs)) send(isolate, 0);
    } else if (held.messageAt(ownMs) === undefined && held.deny(1, ownMs, true) === undefined)
      send(isolate, 1);
  };
  const fault = (isolate: Isolate) => {
    const what = pick(random, ["crash", "kill", "clock", "clock", "give back"]);
    if (what === "crash") object.crash();
    if (what === "kill") isolates[isolates.indexOf(isolate)] = start();
    if (what === "clock" && nowMs >= isolate.jumpedAtMs + WINDOW_MS) {
      isolate.aheadMs += whole(random, MAX_FORWARD_MS + 1);
      isolate.jumpedAtMs = nowMs;
    }
    if (what === "give back") {
      const returned = isolate.held.giveBack();
      if (returned !== undefined) after(wayMs(), () => object.giveBack(POLICY.name, [returned]));
    }
  };
  let loads: readonly number[] = [];
  for (; nowMs < LENGTH_MS; nowMs += 1) {
    inWindow -= log[nowMs % WINDOW_MS] ?? 0;
    log[nowMs % WINDOW_MS] = 0;
    if (nowMs % 1_000 === 0) loads = isolates.map(() => pick(random, [0, 0.1, 0.3, 1, 1, 3]));
    const acts = later.get(nowMs) ?? [];
    later.delete(nowMs);
    for (const act of acts) act();
    for (const [index, isolate] of isolates.entries()) {
      const perMs = ((loads[index] ?? 0) * LIMIT) / WINDOW_MS;
      for (let calls = Math.floor(perMs + random()); calls > 0; calls -= 1) call(isolate);
      if (random() < 0.0005) for (let burst = whole(random, 200); burst > 0; burst -= 1) call(isolate);
      if (isFaulty && random() < 0.0005) fault(isolate);
    }
  }
  return happened;
}
