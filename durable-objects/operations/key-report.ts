import { outstandingOf } from "../../core/accounts/account.ts";
import type { Peeked, RuleDecision } from "../../core/protocol/answers.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Waiter } from "./waiter.ts";

/** What `peek` answers of a key: what its rules say, how many units are held, and how many callers wait. */
export function keyReport(
  keyState: KeyState,
  rules: readonly RuleDecision[],
  waiters: readonly Waiter[],
  nowMs: number,
): Peeked {
  const count = { hold: 0, lease: 0 };
  for (const { kind } of keyState.claims.values()) count[kind] += 1;
  const reclaimed = keyState.ruleStates.map(({ rule, account }) =>
    account.state === undefined ? 0 : (rule.algorithm.leasing?.reclaimed(account.state) ?? 0),
  );
  return {
    rules,
    outstanding: Math.max(...keyState.accounts.map(outstandingOf)),
    holds: count.hold,
    leases: count.lease,
    reclaimed: Math.max(...reclaimed),
    queueLength: waiters.length,
    longestWaitMs: waiters[0] === undefined ? 0 : nowMs - waiters[0].sinceMs,
  };
}
