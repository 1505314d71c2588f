/** What crashes cost that come one after the other: each costs what it costs, once. */
import { afterEach, expect, test } from "vitest";
import { outstandingOf } from "../../../core/accounts/account.ts";
import { MOST_TTL_MS } from "../../../core/policies/lifetimes.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { heldMs } from "../../../core/reservations/sizing.ts";
import { Database } from "../../simulation/database.ts";
import { SimulatedObject } from "../../simulation/simulated-object.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const KEY = "key";
const STEP_MS = 125;
const TTL_MS = 1_000;
const POLICIES = parsePolicies({
  window: { algorithm: "fixed-window", limit: 100, window: 2_000 },
  large: { algorithm: "fixed-window", limit: 500, window: 2_000 },
  bucket: { algorithm: "token-bucket", limit: 100, window: 1_000 },
  log: { algorithm: "sliding-log", limit: 100, window: 2_000 },
});
const database = new Database();
afterEach(() => database.clear());

/** Clients that spend what they have, and want as much as they may have, at an object that dies now and then. */
function run(policy: string, clients: number, isCrash: (atMs: number) => boolean, untilMs: number) {
  const clock = { ms: 1_000_000 };
  const object = new SimulatedObject(database, POLICIES, () => clock.ms);
  const holders = Array.from({ length: clients }, (_, index) => ({
    id: `h${index}`,
    turn: 0,
    used: 0,
    has: 0,
  }));
  const steps: { readonly atMs: number; readonly presumed: number; readonly granted: number }[] = [];
  for (let atMs = 0; atMs < untilMs; atMs += STEP_MS) {
    clock.ms = 1_000_000 + atMs;
    if (isCrash(atMs)) object.crash();
    let granted = 0;
    for (const holder of holders) {
      holder.used += holder.has;
      holder.turn += 1;
      const rules = { [policy]: { used: holder.used, kept: 0, wanted: 100 } };
      const call = { policy, key: KEY, cost: 0, holder: holder.id, turn: holder.turn, ttlMs: TTL_MS };
      const { reserved } = JSON.parse(object.reserve({ ...call, isShort: true, rules })) as Decided;
      holder.has = reserved?.units[policy] ?? 0;
      granted += holder.has;
    }
    const [account] = object.open({ name: policy }, KEY).accounts;
    const own = holders.reduce((sum, { has }) => sum + has, 0);
    steps.push({ atMs, presumed: account === undefined ? 0 : outstandingOf(account) - own, granted });
  }
  return steps;
}

const CLIENTS = 4;
/** By so many units memory may be ahead of storage. They are so few that they are presumed for longer. */
const AHEAD = 2;
const EVERY_MS = 2_500;
/** What is left of earlier deaths when an object dies again. */
const LEFT = AHEAD * Math.floor(heldMs(MOST_TTL_MS) / EVERY_MS);
/** What clients may have had when the object died, and what its memory may have been ahead. */
const COST = CLIENTS * 6 + AHEAD;

test.each(["window", "bucket", "log"])(
  "%s: however often an object dies, what it presumes is what one death costs, and is over as soon",
  (policy) => {
    const steps = run(policy, CLIENTS, (atMs) => atMs > 0 && atMs < 20_000 && atMs % EVERY_MS === 0, 24_000);
    for (const { atMs, presumed } of steps) {
      expect(presumed, `at ${atMs} ms`).toBeLessThanOrEqual(COST + LEFT);
      if (atMs % EVERY_MS > heldMs(TTL_MS)) expect(presumed, `at ${atMs} ms`).toBeLessThanOrEqual(LEFT);
    }
    expect(Math.max(...steps.map(({ presumed }) => presumed))).toBeGreaterThan(0);
  },
);

test("an object that dies every 3 s goes on granting most of each window", () => {
  const steps = run("large", 6, (atMs) => atMs > 0 && atMs < 30_000 && atMs % 3_000 === 0, 32_000);
  for (let window = 2; window < 15; window += 1) {
    const inWindow = steps.filter(({ atMs }) => Math.floor(atMs / 2_000) === window);
    expect(
      inWindow.reduce((sum, { granted }) => sum + granted, 0),
      `window ${window}`,
    ).toBeGreaterThan(200);
  }
});

test("deaths in quick succession add up to no more than there were units, and are over together", () => {
  const steps = run("bucket", CLIENTS, (atMs) => atMs >= 2_000 && atMs < 4_000 && atMs % 500 === 0, 10_000);
  const after = steps.filter(({ atMs }) => atMs > 3_500 + heldMs(TTL_MS));
  for (const { atMs, presumed } of after) expect(presumed, `at ${atMs} ms`).toBe(0);
});
