/**
 * What clients in other processes say, and what they may have. An isolate's numbers are trusted; a client's count as far as
 * they can be true, so one that lies takes from what its caller has, and not from others.
 *
 * - *Wants*: up to its maximum, and the rate that it needs as in `Holders.shareOf`.
 * - *Has*: what is held for it. One that claims more gets a new hold, and the old one ends by itself.
 * - *Returns*: what it was given, and what has come at its rate, less what it returned before.
 * - *All clients of one caller*: half of a key, while others want some of it.
 *
 * Slots are bound alike: a client keeps what it was given, while it says so in time, and has a part by what it wants.
 *
 * A client that returns what it has spent is over the limit, as with units: the scope `reserve` trusts it in that.
 */
import type { Account, Hold } from "../../core/accounts/hold.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { Reserving, SlotsCall } from "../../core/protocol/calls.ts";
import { callerIn } from "../../core/protocol/names.ts";
import { type KnownHolder, MAX_SHARE_OF_CALLER } from "../keys/holders.ts";

/** An isolate's number is trusted; a client's counts up to its maximum. */
export function wishOf(
  id: string,
  { kept, wanted }: Pick<Reserving, "kept" | "wanted">,
  max: number,
): number {
  if (callerIn(id) === undefined) return wanted;
  return Math.min(wanted, Math.max(kept, Math.floor(max)));
}

/** What a holder says of its bucket, or of its units. */
interface Having {
  readonly kept: number;
  readonly rate: number;
  readonly level: number;
  readonly left: number;
}

/** The most units that the holder of a bucket has: as if it had used none. Parts of units count too. */
export function mayHave(rule: Rule, held: Hold | undefined, before: KnownHolder | undefined, nowMs: number) {
  if (held === undefined || before === undefined) return 0;
  if (held.rate === undefined) return held.units;
  const { mayHave: had = 0 } = before.rules.get(rule.name) ?? {};
  const came = (held.rate.units * Math.max(0, nowMs - before.atMs)) / held.rate.windowMs;
  return Math.min(held.units, had + came);
}

/** What a holder returns, as far as it can be true. One that says that its bucket is full gets that much less. */
export function returnedBy(id: string, { left, level }: Having, most: number): number {
  if (callerIn(id) === undefined) return left;
  return Math.min(left, Math.max(0, Math.floor(most) - level));
}

/** What the object counts. */
interface Counted {
  /** Units used since the last message. */
  readonly delta: number;
  /** `mayHave`. */
  readonly most: number;
  /** What would be held for what it keeps. */
  readonly stays: number;
}

/** Whether a holder has more than is held for it: another hold, or none, is known here. */
export function claimsMore(
  id: string,
  { kept, delta, rate, most, stays }: Having & Counted,
  held: Hold | undefined,
): boolean {
  if (held === undefined) return kept > 0;
  if (held.rate === undefined) return rate > 0 || delta + kept > held.units;
  if (kept > held.units || rate > held.rate.units) return true;
  if (callerIn(id) === undefined) return false;
  // Without its rate it keeps units, which it must have.
  return rate === 0 ? kept > most : stays > held.units;
}

/**
 * What the clients of a holder's caller may hold beside what they hold, its own hold not counted, while others want some of
 * it. Their holds count until they end, also if their holders are forgotten.
 */
export function roomOfCaller(
  { account, rule }: { readonly account: Account; readonly rule: Rule },
  perWindows: number,
  { id, hold }: { readonly id: string; readonly hold: string },
) {
  const caller = callerIn(id);
  let [units, rate] = [MAX_SHARE_OF_CALLER * rule.capacity, MAX_SHARE_OF_CALLER * perWindows];
  for (const each of account.holds) {
    if (each.id === hold || each.isStored === true || callerIn(each.id) !== caller) continue;
    units -= each.units;
    rate -= each.rate?.units ?? 0;
  }
  return { units: Math.floor(units), rate: Math.floor(rate) };
}

/** This part of the slots stays at the object for the calls of others, of a limit from 10 on. */
const KEPT_PART = 0.1;
const KEPT_FROM = 10;

interface WantsSlots {
  readonly wanted: number;
  readonly resting: number;
  /** Then it has none any more. */
  readonly aliveUntilMs: number;
}

/**
 * Whether a holder may have slots that it does not give back before a rest is over: all those that rest together have a
 * tenth of the slots at most, and a further tenth is free.
 *
 * @param others slots that are not the holder's
 */
export function mayRestWith(
  holders: ReadonlyMap<string, WantsSlots>,
  { holder, rest }: Pick<SlotsCall, "holder" | "rest">,
  { others, capacity }: { readonly others: number; readonly capacity: number },
  nowMs: number,
): boolean {
  if (rest === undefined || capacity < KEPT_FROM) return false;
  let resting = rest.units;
  for (const [name, other] of holders)
    if (name !== holder && nowMs < other.aliveUntilMs) resting += other.resting;
  return resting <= KEPT_PART * capacity && others + rest.units <= (1 - KEPT_PART) * capacity;
}

/**
 * The part of a holder: what it needs, or of what there is as much as the others. What the clients of a caller want counts
 * together as half of the slots at most, or as much as all isolates want.
 */
export function partOfSlots(
  holders: ReadonlyMap<string, WantsSlots>,
  { holder, wanted }: Pick<SlotsCall, "holder" | "wanted">,
  { account, capacity }: { readonly account: Account; readonly capacity: number },
  nowMs: number,
): number {
  const own = callerIn(holder);
  const most = capacity - (capacity < KEPT_FROM ? 0 : Math.ceil(capacity * KEPT_PART));
  const said = own === undefined ? wanted : Math.min(wanted, most);
  const wishes = new Map([[own, said]]);
  for (const [name, other] of holders)
    if (name !== holder && nowMs < other.aliveUntilMs) {
      const caller = callerIn(name);
      const wish = caller === undefined ? other.wanted : Math.min(other.wanted, most);
      wishes.set(caller, (wishes.get(caller) ?? 0) + wish);
    }
  const isContested = [...wishes].some(([caller, wish]) => caller !== own && wish > 0);
  const ofIsolates = wishes.get(undefined) ?? 0;
  const max = isContested ? Math.max(MAX_SHARE_OF_CALLER * capacity, ofIsolates) : Infinity;
  const counted = (caller: string | undefined, wish: number) =>
    caller === undefined ? wish : Math.min(wish, max);
  let all = 0;
  for (const [caller, wish] of wishes) all += counted(caller, wish);
  const ofOwn = wishes.get(own) ?? said;
  if (all === 0 || ofOwn === 0) return 0;
  if (all <= most && counted(own, ofOwn) === ofOwn && !isContested) return said;
  // As a fraction of whole numbers: a rounding error would take a slot.
  const part = Math.floor((said * counted(own, ofOwn) * Math.min(all, most)) / (ofOwn * all));
  if (own === undefined || !isContested) return part;
  let room = MAX_SHARE_OF_CALLER * capacity;
  for (const { id, units } of account.holds) if (id !== holder && callerIn(id) === own) room -= units;
  return Math.max(0, Math.min(part, Math.floor(room)));
}
