/** The rule of holds, broken in the ways that are easy to break it: the laws have to find each. */
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { place, refund, settle, type Hold } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/parse-policies.ts";
import { heldMs } from "../../core/reservations/sizing.ts";
import type { Breakage } from "./schedule.ts";
import type { SimulatedObject } from "./simulated-object.ts";

const KEY = "key";
const FAR_MS = 1e12;

/** Units are debited when they are reserved, and what was not used is credited when it is settled. */
export function debitAtReservation(): Breakage {
  const debited = new Map<string, Hold>();
  return {
    after: (object, policy) =>
      eachBook(object, policy, (ruleState, nowMs) => {
        for (const hold of ruleState.account.holds) {
          debited.set(`${ruleState.rule.name} ${hold.id}`, hold);
          ruleState.account = settle(ruleState.rule, ruleState.account, nowMs, hold.id, hold.units);
        }
      }),
    before: (object, policy) =>
      eachBook(object, policy, (ruleState, nowMs) => {
        for (const [name, hold] of debited) {
          if (!name.startsWith(`${ruleState.rule.name} `)) continue;
          debited.delete(name);
          if (hold.expiresAtMs > nowMs)
            ruleState.account = place(refund(ruleState.rule, ruleState.account, nowMs, hold.units), hold);
        }
      }),
    atCrash: () => debited.clear(),
  };
}

/** Units that were not settled in time are free again, as if nobody had used them. */
export function freeAtExpiry(): Breakage {
  const expiries = new Map<string, number>();
  return {
    after: (object, policy) =>
      eachBook(object, policy, (ruleState) => {
        const { state, holds } = ruleState.account;
        for (const { id, expiresAtMs } of holds) if (expiresAtMs < FAR_MS) expiries.set(id, expiresAtMs);
        ruleState.account = { state, holds: holds.map((hold) => ({ ...hold, expiresAtMs: FAR_MS })) };
      }),
    before: (object, policy) =>
      eachBook(object, policy, (ruleState, nowMs) => {
        for (const { id } of ruleState.account.holds)
          if ((expiries.get(id) ?? Infinity) <= nowMs)
            ruleState.account = settle(ruleState.rule, ruleState.account, nowMs, id, 0);
      }),
  };
}

/** After a crash nobody knows of units that isolates still have. */
export function forgottenAtCrash(): Breakage {
  return {
    atCrash: ({ database }) => database.rewrite((rules) => rules.replaceAll(/"ahead":\d+/g, '"ahead":0')),
  };
}

/** A message that shortens a lifetime shortens it also for units whose holder does not hear of it. */
export function shortenedWhenKept(): Breakage {
  return {
    after: (object, policy) =>
      eachBook(object, policy, (ruleState, nowMs) => {
        const { state, holds } = ruleState.account;
        const until = nowMs + heldMs(policy.reservation.leastMs);
        ruleState.account = {
          state,
          holds: holds.map((hold) => ({ ...hold, expiresAtMs: Math.min(hold.expiresAtMs, until) })),
        };
      }),
  };
}

function eachBook(
  object: SimulatedObject,
  policy: Policy,
  change: (ruleState: KeyState["ruleStates"][number], nowMs: number) => void,
): void {
  for (const ruleState of object.open(policy, KEY).ruleStates) change(ruleState, object.nowMs);
}
