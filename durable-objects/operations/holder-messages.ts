/** What a holder says with each message: what it used, keeps and wants (core/protocol/messages.ts). */
import { place, settle } from "../../core/accounts/account.ts";
import { holdWith } from "../../core/accounts/hold.ts";
import type { RuleAccount } from "../../core/accounts/joint-decision.ts";
import type { Rule } from "../../core/policies/policy.ts";
import { callerIn } from "../../core/protocol/caller-keys.ts";
import type { Reserving } from "../../core/protocol/messages.ts";
import { mostUnits } from "../../core/reservations/sizing.ts";
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
  const said = ruleStates.map(({ rule, account }) => {
    const { used, kept, wanted } = (Object.hasOwn(rules, rule.name) && rules[rule.name]) || NOTHING;
    const reportedBefore = before?.rules.get(rule.name)?.used ?? 0;
    const held = before && holdWith(account.holds, before.hold);
    const wish = wishOf(id, rule, { kept, wanted });
    return { used: Math.max(used, reportedBefore), kept, wish, held, delta: used - reportedBefore };
  });
  // The holder keeps or has used units that its hold here does not have: this object crashed, or an old message came
  // late. The restored record covers those units, or they have been settled. An old hold stays until it expires.
  const isNew =
    before === undefined ||
    said.some(({ kept, delta, held }) =>
      held === undefined ? kept > 0 : Math.max(0, delta) + kept > held.units,
    );
  const isHeld = (hold: string) =>
    ruleStates.some(({ account }) => holdWith(account.holds, hold) !== undefined);
  const replaced = isNew && before !== undefined && isHeld(before.hold) ? before.hold : before?.replaced;
  const holder: Holder = {
    turn,
    hold: isNew ? `${id}.${turn}` : before.hold,
    ...(replaced !== undefined && isHeld(replaced) && { replaced }),
    rules: new Map(
      ruleStates.map(({ rule }, index) => {
        const { used = 0, wish = 0 } = said[index] ?? {};
        return [rule.name, { used, wanted: wish, held: 0 }];
      }),
    ),
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

/** The units that a holder wants. An isolate says what it needs; a client may say anything, and wants what it may have. */
export function wishOf(id: string, rule: Rule, { kept, wanted }: Pick<Reserving, "kept" | "wanted">): number {
  if (callerIn(id) === undefined) return wanted;
  return Math.min(wanted, Math.max(kept, Math.floor(mostUnits(rule))));
}
