/** What a holder says with each message: what it used, keeps and wants (core/protocol/messages.ts). */
import { place, settle } from "../../core/accounts/account.ts";
import { holdWith } from "../../core/accounts/hold.ts";
import type { RuleAccount } from "../../core/accounts/joint-decision.ts";
import type { Reserving } from "../../core/protocol/messages.ts";
import type { Holder } from "../keys/holders.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Reserve } from "./operations.ts";

const NOTHING: Reserving = { used: 0, kept: 0, wanted: 0 };

/** A holder's message and its effect: in `ruleAccounts`, what it used is debited and only what it keeps is held. */
export interface Noted {
  readonly ruleAccounts: readonly RuleAccount[];
  readonly holder: Holder;
  readonly kept: readonly number[];
  /** The holder gets a new hold, and must not spend what it kept: see `Reserved.isNew`. */
  readonly isNew: boolean;
}

/**
 * Reads a holder's message. It changes nothing but the list of holders, from which old ones go.
 *
 * @param isAgain this message was read before, by `bringHome`
 * @returns `undefined`: a later message of the holder was here before
 */
export function noteMessage(
  keyState: KeyState,
  {
    holder: id,
    turn,
    ttlMs,
    rules,
    priority,
  }: Pick<Reserve, "holder" | "turn" | "ttlMs" | "rules" | "priority">,
  nowMs: number,
  isAgain = false,
): Noted | undefined {
  const { holders } = keyState;
  const ruleStates = keyState.seenBy(priority);
  holders.forgetEnded(nowMs);
  const before = holders.get(id);
  if (before !== undefined && (isAgain ? turn < before.turn : turn <= before.turn)) return undefined;
  const said = ruleStates.map(({ rule, account }, index) => {
    const { used, kept, wanted } = rules[rule.name] ?? NOTHING;
    const reportedBefore = before?.used[index] ?? 0;
    const held = before && holdWith(account.holds, before.hold);
    return { used: Math.max(used, reportedBefore), kept, wanted, held, delta: used - reportedBefore };
  });
  // The holder keeps or has used units that its hold here does not have: this object crashed, or an old message came
  // late. The restored record covers those units, or they have been settled. An old hold stays until it expires.
  const isNew =
    before === undefined ||
    said.some(({ kept, delta, held }) =>
      held === undefined ? kept > 0 : Math.max(0, delta) + kept > held.units,
    );
  const holder: Holder = {
    turn,
    hold: isNew ? `${id}.${turn}` : before.hold,
    used: said.map(({ used }) => used),
    wanted: said.map(({ wanted }) => wanted),
    untilMs: nowMs + ttlMs,
  };
  const ruleAccounts = ruleStates.map(({ rule, account }, index): RuleAccount => {
    const { held, delta = 0, kept = 0 } = said[index] ?? {};
    if (isNew || held === undefined) return { rule, account };
    const settled = settle(rule, account, nowMs, held.id, Math.max(0, delta));
    return { rule, account: kept === 0 ? settled : place(settled, { ...held, units: kept }) };
  });
  return { ruleAccounts, holder, kept: said.map(({ kept }) => (isNew ? 0 : kept)), isNew };
}
