/** Keys in memory. */
import type { Holder } from "../operations/reservations.ts";
import { place, UNTOUCHED, wholeAtMs, type Account } from "../../core/accounts/account.ts";
import type { Policy, Rule } from "../../core/policies/parse-policies.ts";
import type { Claim, Storage } from "../storage/storage.ts";
import { restore, type StoredAccount } from "../storage/write-behind.ts";

/** One key in memory. */
export interface KeyState {
  readonly key: string;
  readonly policy: Policy;
  /** One per rule, in the policy's order. */
  readonly ruleStates: readonly RuleState[];
  /** Holds and leases that callers have, as storage has them too. */
  readonly claims: Map<string, Claim>;
  /** Isolates that hold units of it, or asked for some lately, by their ids. */
  readonly holders: Map<string, Holder>;
  /** Those that expired and whose rows are still there. */
  expired: Claim[];
  /** How many callers wait for this key: it stays in memory. */
  waiting: number;
  /** When units were last taken, to tell a hot key from a quiet one. */
  takenAtMs: number;
  /** Used since the last search for something to drop. */
  touched: boolean;
  /**
   * Whatever is passed on of it has to end by then: of a region's share, the instant until which the pool keeps units apart.
   */
  endsByMs: number;
  /** What its states take, beside that. */
  bytes: number;
  /** How many answers storage remembers of it, at most; `undefined`: not counted yet. */
  answers: number | undefined;
}

/** One rule of a key: its account, and what storage has of it (`undefined`: nothing). */
export interface RuleState {
  readonly rule: Rule;
  account: Account;
  stored: StoredAccount | undefined;
}

/** What storage has of a key. */
export function readEntry(
  storage: Storage,
  policy: Policy,
  key: string,
  nowMs: number,
): Pick<KeyState, "ruleStates" | "claims"> {
  const stored = storage.read(key)?.rules ?? {};
  const claims = new Map(storage.claims(key).map((claim) => [claim.id, claim]));
  const ruleStates = policy.rules.map((rule) => {
    const found = Object.hasOwn(stored, rule.name) ? stored[rule.name] : undefined;
    const segments = found === undefined ? [] : storage.segments(key, rule.name);
    let account = restore(rule, found, segments, nowMs, policy.reservation.mostMs);
    const isFound = account !== UNTOUCHED;
    for (const { id, units: byRule, expiresAtMs } of claims.values()) {
      const units = Object.hasOwn(byRule, rule.name) ? (byRule[rule.name] ?? 0) : 0;
      if (units > 0) account = place(account, { id, units, expiresAtMs, isStored: true });
    }
    return { rule, account, stored: isFound ? found : undefined };
  });
  return { ruleStates, claims };
}

export function accountsOf({ ruleStates }: KeyState): Account[] {
  return ruleStates.map(({ account }) => account);
}

/** When all of these accounts are whole. */
export function latestWholeMs(
  ruleStates: readonly RuleState[],
  accounts: readonly Account[],
  nowMs: number,
): number {
  return Math.max(
    ...ruleStates.map(({ rule }, index) => wholeAtMs(rule, accounts[index] ?? UNTOUCHED, nowMs)),
  );
}
