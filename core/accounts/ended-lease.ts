import type { Outcome } from "../algorithms/algorithm.ts";
import type { Rule } from "../policies/policy.ts";
import { outstandingOf, settle, type Account } from "./account.ts";
import { holdWith } from "./hold.ts";

/** What is known of a call whose lease has ended. */
export interface Report {
  readonly outcome: Outcome;
  /** How long the call took, in milliseconds; absent: it is not known, so the report teaches nothing. */
  readonly durationMs?: number | undefined;
}

/** Ends a lease that its holder has released, and lets the algorithm learn of it. An unknown id changes nothing. Pure. */
export function endLease(rule: Rule, account: Account, nowMs: number, id: string, report: Report): Account {
  if (holdWith(account.holds, id) === undefined) return account;
  const inFlight = outstandingOf(account);
  const ended = settle(rule, account, nowMs, id, 0);
  const { outcome, durationMs } = report;
  const { leasing } = rule.algorithm;
  if (leasing?.released === undefined || durationMs === undefined) return ended;
  const state = leasing.released(rule.config, ended.state, nowMs, { outcome, durationMs, inFlight });
  return { state, holds: ended.holds };
}
