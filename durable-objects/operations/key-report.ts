import { outstandingOf } from "../../core/accounts/account.ts";
import type { Peeked, RuleDecision } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Waiter } from "./wait-queue.ts";

/** What `peek` answers of a key: what its rules say, how many units are held, and how many callers wait. */
export function keyReport(
  keyState: KeyState,
  rules: readonly RuleDecision[],
  waiters: readonly Waiter[],
  nowMs: number,
): Peeked {
  const kinds = [...keyState.claims.values()].map(({ kind }) => kind);
  const reclaimed = keyState.ruleStates.map(({ rule, account }) =>
    account.state === undefined ? 0 : (rule.algorithm.leasing?.reclaimed(account.state) ?? 0),
  );
  return {
    rules,
    outstanding: Math.max(...keyState.accounts.map(outstandingOf)),
    holds: kinds.filter((kind) => kind === "hold").length,
    leases: kinds.filter((kind) => kind === "lease").length,
    reclaimed: Math.max(...reclaimed),
    queueLength: waiters.length,
    longestWaitMs: waiters[0] === undefined ? 0 : nowMs - waiters[0].sinceMs,
  };
}
