/** What a holder says with each message: what it used, keeps and wants (core/protocol/messages.ts). */
import { place, settle } from "../../core/accounts/account.ts";
import type { RuleAccount } from "../../core/accounts/joint-decision.ts";
import type { Reserving } from "../../core/protocol/messages.ts";
import type { Holder } from "../keys/holders.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Reserve } from "./operations.ts";

const NOTHING: Reserving = { used: 0, kept: 0, wanted: 0 };

/** A holder's message, taken note of: the accounts with what it used debited, and with only what it keeps held. */
export interface Noted {
  readonly ruleAccounts: readonly RuleAccount[];
  readonly holder: Holder;
  readonly kept: readonly number[];
  readonly isNew: boolean;
}

/**
 * Takes note of a message; `undefined`: a later one has been there before.
 *
 * @param isAgain it was noted before, and goes on now
 */
export function noteMessage(
  keyState: KeyState,
  { holder: id, turn, ttlMs, rules }: Pick<Reserve, "holder" | "turn" | "ttlMs" | "rules">,
  nowMs: number,
  isAgain = false,
): Noted | undefined {
  const { ruleStates, holders } = keyState;
  holders.forgetEnded(nowMs);
  const before = holders.get(id);
  if (before !== undefined && (isAgain ? turn < before.turn : turn <= before.turn)) return undefined;
  const said = ruleStates.map(({ rule, account }, index) => {
    const { used, kept, wanted } = rules[rule.name] ?? NOTHING;
    const reportedBefore = before?.used[index] ?? 0;
    const held = account.holds.find((hold) => hold.id === before?.hold);
    return { used: Math.max(used, reportedBefore), kept, wanted, held, delta: used - reportedBefore };
  });
  // It has, or used, units that this hold is not for (this object crashed, or an old message came late): those are covered
  // by what the object was restored with, or have been settled, and this hold is left to itself.
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
