/**
 * Calls for what their policy does not have any more. A policy may go from units of a rate to slots that are leased, or
 * back, while a call is under way: its isolate has not heard of it yet, or it has waited in line since. Such a call can
 * never have what it asked for, and must not pass: nobody would count it.
 */
import { withoutTaking } from "../../core/accounts/joint-decision.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { KeyState } from "../keys/key-state.ts";

/** What a call asks for: units of rates, which it uses, or slots, which it leases. */
export type Kind = "units" | "slots";

/** The denial of a call that asks for the other kind; `undefined`: its policy has what it asks for. */
export function deniedByKind(keyState: KeyState, kind: Kind, nowMs: number): Decided | undefined {
  const has: Kind = keyState.policy.lease === undefined ? "units" : "slots";
  if (has === kind) return undefined;
  const rules = withoutTaking(keyState.seenBy(), nowMs, 0).map(
    (rule) => ({ ...rule, success: false, retryAfterMs: null, reason: "cost-over-limit" }) as const,
  );
  return { rules };
}
