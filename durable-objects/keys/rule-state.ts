import { UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import type { Hold } from "../../core/accounts/hold.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";
import { seenBy } from "../../core/policies/seen-by.ts";
import type { Claim, StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { restore } from "../storage/write-behind.ts";

/** One rule of a key: its account, and its part of the key's record (`undefined`: storage has none). */
export interface RuleState {
  readonly rule: Rule;
  readonly account: Account;
  readonly stored: StoredAccount | undefined;
}

/** Reads the rules of a key from storage, in the order of its policy. */
export function readRuleStates(
  storage: Storage,
  policy: Policy,
  key: string,
  claims: ReadonlyMap<string, Claim>,
  nowMs: number,
): RuleState[] {
  const stored = storage.read(key)?.rules ?? {};
  return policy.rules.map((rule) => {
    const found = Object.hasOwn(stored, rule.name) ? stored[rule.name] : undefined;
    const segments = found === undefined ? [] : storage.segments(key, rule.name);
    const restored = restore(rule, found, segments, nowMs, policy.reservation.mostMs);
    const account = withClaims(rule, restored, claims);
    return { rule, account, stored: restored === UNTOUCHED ? undefined : found };
  });
}

/** The account with a hold for each claim that has units of its rule. They are sorted once: there may be thousands. */
function withClaims(rule: Rule, restored: Account, claims: ReadonlyMap<string, Claim>): Account {
  const holds: Hold[] = [...restored.holds];
  const leasesOfProvisional = new Set<string>();
  for (const { lease, isProvisional } of claims.values())
    if (lease !== undefined && isProvisional === true) leasesOfProvisional.add(lease);
  for (const { id, units: byRule, expiresAtMs, isProvisional } of claims.values()) {
    const units = Object.hasOwn(byRule, rule.name) ? (byRule[rule.name] ?? 0) : 0;
    if (units === 0) continue;
    const mark = (isProvisional === true || leasesOfProvisional.has(id)) && { isProvisional: true };
    holds.push({ id, units, expiresAtMs, isStored: true, ...mark });
  }
  if (holds.length === restored.holds.length) return restored;
  return { state: restored.state, holds: holds.toSorted((a, b) => a.expiresAtMs - b.expiresAtMs) };
}

/** The states with their rules as calls of this priority see them: see core/policies/priorities.ts. */
export function statesSeenBy(
  policy: Policy,
  states: readonly RuleState[],
  priority: string | undefined,
): readonly RuleState[] {
  const { rules } = seenBy(policy, priority);
  if (rules === policy.rules) return states;
  return states.map((state, index) => ({ ...state, rule: rules[index] ?? state.rule }));
}
