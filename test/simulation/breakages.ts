/** Typical mistakes in the rule of holds. The laws have to find each of them. */
import { place, refund, settle } from "../../core/accounts/account.ts";
import type { Account, Hold } from "../../core/accounts/hold.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";
import { heldMs, MAX_MARGIN_MS } from "../../core/reservations/sizing.ts";
import type { Breakage } from "./schedule.ts";
import type { SimulatedObject } from "./simulated-object.ts";

const KEY = "key";
const FAR_MS = 1e12;

/** Units are debited when they are reserved, and unused ones are credited when they are settled. */
export function debitAtReservation(): Breakage {
  const debited = new Map<string, Hold>();
  return {
    after: (object, policy) =>
      eachAccount(object, policy, (rule, account, nowMs) => {
        for (const hold of account.holds) debited.set(`${rule.name} ${hold.id}`, hold);
        return account.holds.reduce(
          (current, { id, units }) => settle(rule, current, nowMs, id, units),
          account,
        );
      }),
    before: (object, policy) =>
      eachAccount(object, policy, (rule, account, nowMs) => {
        let current = account;
        for (const [name, hold] of debited) {
          if (!name.startsWith(`${rule.name} `)) continue;
          debited.delete(name);
          if (hold.expiresAtMs > nowMs) current = place(refund(rule, current, nowMs, hold.units), hold);
        }
        return current;
      }),
    atCrash: () => debited.clear(),
  };
}

/** Units that were not settled in time become free, as if unused. */
export function freeAtExpiry(): Breakage {
  const expiries = new Map<string, number>();
  return {
    after: (object, policy) =>
      eachAccount(object, policy, (_, { state, holds }) => {
        for (const { id, expiresAtMs } of holds) if (expiresAtMs < FAR_MS) expiries.set(id, expiresAtMs);
        return { state, holds: holds.map((hold) => ({ ...hold, expiresAtMs: FAR_MS })) };
      }),
    before: (object, policy) =>
      eachAccount(object, policy, (rule, account, nowMs) =>
        account.holds
          .filter(({ id }) => (expiries.get(id) ?? Infinity) <= nowMs)
          .reduce((current, { id }) => settle(rule, current, nowMs, id, 0), account),
      ),
  };
}

/** After a crash the object ignores the units that isolates still have. */
export function forgottenAtCrash(): Breakage {
  return {
    atCrash: ({ database }) => database.rewrite((rules) => rules.replaceAll(/"ahead":\d+/g, '"ahead":0')),
  };
}

/** A shorter lifetime also shortens that of kept units, though its answer may never reach the holder. */
export function shortenedWhenKept(): Breakage {
  return {
    after: (object, policy) =>
      eachAccount(object, policy, (_, { state, holds }, nowMs) => {
        const until = nowMs + heldMs(policy.reservation.leastMs);
        return {
          state,
          holds: holds.map((hold) => ({ ...hold, expiresAtMs: Math.min(hold.expiresAtMs, until) })),
        };
      }),
  };
}

/** What comes to buckets of holders comes to the object too. */
export function refilledTwice(): Breakage {
  return {
    after: (object, policy) =>
      eachAccount(object, policy, (_, { state, holds }) => ({
        state,
        holds: holds.map((hold) => ({ ...hold, rate: undefined })),
      })),
  };
}

/** Nothing is held for what comes to a bucket early, when its holder's clock is set forward. */
export function unheldWhenEarly(): Breakage {
  return {
    after: (object, policy) =>
      eachAccount(object, policy, (rule, account, nowMs) =>
        account.holds.reduce((current, hold) => {
          const { units: perWindow = 0, windowMs = 1 } = hold.rate ?? {};
          const units = Math.max(1, hold.units - Math.ceil((perWindow * MAX_MARGIN_MS) / windowMs));
          return place(settle(rule, current, nowMs, hold.id, 0), { ...hold, units });
        }, account),
      ),
  };
}

function eachAccount(
  object: SimulatedObject,
  policy: Policy,
  change: (rule: Rule, account: Account, nowMs: number) => Account,
): void {
  const keyState = object.open(policy, KEY);
  for (const ruleState of keyState.ruleStates)
    keyState.replaceAccount(ruleState, change(ruleState.rule, ruleState.account, object.nowMs));
}
