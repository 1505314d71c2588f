import { decide, place, settle, unstoredOf } from "../../core/accounts/account.ts";
import { decideTogether, withoutTaking, type RuleAccount } from "../../core/accounts/joint-decision.ts";
import { LEAST_USEFUL_TTL_MS } from "../../core/policies/lifetimes.ts";
import type { Answer, Decided, Reserved, Reserving, Returned } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import { grantedTogether, heldMs, isSpare, type Wish } from "../../core/reservations/sizing.ts";
import type { Holder, KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { isProvisionallyBlocked } from "./contention.ts";
import type { Limits } from "./limits.ts";
import type { Reserve } from "./operations.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The most holders of one key, at about 300 bytes each. Further isolates reserve nothing and ask each time. */
const MOST_HOLDERS = 1_000;
/** A holder is remembered for this long after its end, in milliseconds: messages that it has sent may arrive later. */
const REMEMBERED_MS = 5_000;

const NOTHING: Reserving = { used: 0, kept: 0, wanted: 0 };

/** The units that isolates reserve, and later settle with what they have used. */
export class Reservations {
  readonly #store: KeyStore;
  readonly #limits: Limits;
  readonly #queue: WaitQueue;

  constructor(store: KeyStore, limits: Limits, queue: WaitQueue) {
    this.#store = store;
    this.#limits = limits;
    this.#queue = queue;
  }

  /** Settles what the holder used, decides on a cost, and reserves units for it. */
  reserve(keyState: KeyState, call: Reserve, nowMs: number): Maybe<Answer> {
    const { cost } = call;
    const noted = noteMessage(keyState, call, nowMs);
    // A later message was here before. The caller behind this one is answered, and nothing is reserved.
    if (noted === undefined) return this.#limits.limit(keyState, cost, undefined, nowMs);
    const { admitted, accounts, rules } = decideTogether(noted.ruleAccounts, nowMs, cost);
    if (!admitted && isProvisionallyBlocked(keyState, cost, nowMs)) {
      this.#commit(keyState, call.holder, noted, nowMs);
      return this.#limits.limit(keyState, cost, undefined, nowMs);
    }
    const ruleAccounts = noted.ruleAccounts.map(({ rule, account }, index) => ({
      rule,
      account: (cost === 0 ? undefined : accounts?.[index]) ?? account,
    }));
    const reserved = this.#grant(keyState, call, { ...noted, ruleAccounts }, nowMs);
    const next = withoutTaking(keyState.ruleStates, nowMs, 1);
    const answer: Decided = { rules, reserved };
    return next.some(({ success }) => !success) ? { ...answer, next } : answer;
  }

  /**
   * The first half of `reserve`, for an object that has to ask its pool in between: settles what the holder used, and
   * reserves again what it keeps. `grantNoted` is the second half.
   *
   * @returns what the holder has now; `undefined`: a later message of the holder was here before
   */
  bringHome(keyState: KeyState, call: Reserve, nowMs: number): Reserved | undefined {
    const rules = Object.entries(call.rules).map(([name, { used, kept }]): [string, Reserving] => [
      name,
      { used, kept, wanted: kept },
    ]);
    const home = { ...call, rules: Object.fromEntries(rules) };
    const noted = noteMessage(keyState, home, nowMs);
    return noted && this.#grant(keyState, home, noted, nowMs);
  }

  /**
   * The second half: reserves what the message wants, also from units that have come from the pool meanwhile.
   *
   * @returns `undefined`: a later message of the holder was here before
   */
  grantNoted(keyState: KeyState, call: Reserve, nowMs: number): Reserved | undefined {
    const noted = noteMessage(keyState, call, nowMs, true);
    return noted && this.#grant(keyState, call, noted, nowMs);
  }

  /** Ends a holder's reservation with what the holder used. A message that is late or repeated changes nothing. */
  giveBack(keyState: KeyState, { holder, turn, used }: Returned, nowMs: number): void {
    const rules = Object.fromEntries(
      Object.entries(used).map(([name, units]) => [name, { used: units, kept: 0, wanted: 0 }]),
    );
    const noted = noteMessage(keyState, { holder, turn, ttlMs: 0, rules }, nowMs);
    if (noted === undefined) return;
    this.#commit(keyState, holder, noted, nowMs);
    this.#queue.serve(keyState);
  }

  /** Reserves the units that can be granted, beside those that the holder keeps. */
  #grant(keyState: KeyState, call: Reserve, noted: Noted, nowMs: number): Reserved {
    const { ttlMs, units } = granted(keyState, call, noted, nowMs);
    const { hold } = noted.holder;
    // Kept units never expire sooner than was said before: if this answer is lost, the holder relies on that.
    const keptHolds = noted.ruleAccounts.flatMap(({ account }) =>
      account.holds.filter(({ id }) => id === hold),
    );
    const expiresAtMs = Math.max(nowMs + heldMs(ttlMs), ...keptHolds.map((each) => each.expiresAtMs));
    const ruleAccounts = noted.ruleAccounts.map(({ rule, account }, index) => {
      const kept = noted.kept[index] ?? 0;
      const holding = { id: hold, units: kept + (units[index] ?? 0), expiresAtMs };
      const without = kept === 0 ? account : settle(rule, account, nowMs, hold, 0);
      return { rule, account: holding.units === 0 ? without : place(without, holding) };
    });
    const holder = { ...noted.holder, untilMs: expiresAtMs };
    this.#commit(keyState, call.holder, { ruleAccounts, holder }, nowMs);
    this.#queue.serve(keyState);
    const named = Object.fromEntries(ruleAccounts.map(({ rule }, index) => [rule.name, units[index] ?? 0]));
    return { ttlMs, isNew: noted.isNew, units: named };
  }

  #commit(
    keyState: KeyState,
    id: string,
    { ruleAccounts, holder }: Pick<Noted, "ruleAccounts" | "holder">,
    nowMs: number,
  ): void {
    const accounts = ruleAccounts.map(({ account }) => account);
    // A call that changes nothing does not commit: a commit could write, and would make the key hot.
    if (keyState.ruleStates.some(({ account }, index) => account !== accounts[index]))
      this.#store.commit(keyState, { accounts }, nowMs);
    if (hasRoom(keyState, id)) keyState.putHolder(id, holder);
  }
}

function hasRoom({ holders }: KeyState, id: string): boolean {
  return holders.has(id) || holders.size < MOST_HOLDERS;
}

/** A holder's message and its effect: in `ruleAccounts`, what it used is debited and only what it keeps is held. */
interface Noted {
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
function noteMessage(
  keyState: KeyState,
  { holder: id, turn, ttlMs, rules }: Pick<Reserve, "holder" | "turn" | "ttlMs" | "rules">,
  nowMs: number,
  isAgain = false,
): Noted | undefined {
  const { ruleStates, holders } = keyState;
  keyState.forgetHolders(nowMs - REMEMBERED_MS);
  const before = holders.get(id);
  if (before !== undefined && (isAgain ? turn < before.turn : turn <= before.turn)) return undefined;
  const said = ruleStates.map(({ rule, account }, index) => {
    const { used, kept, wanted } = rules[rule.name] ?? NOTHING;
    const reportedBefore = before?.used[index] ?? 0;
    const held = account.holds.find((hold) => hold.id === before?.hold);
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

/** How many units to grant, and for how long: longer than the shortest lifetime only if they can be spared. */
function granted(
  keyState: KeyState,
  { holder: id, rules, ttlMs: askedMs, isShort }: Reserve,
  { kept, ruleAccounts }: Noted,
  nowMs: number,
): { readonly ttlMs: number; readonly units: readonly number[] } {
  const { holders, policy } = keyState;
  const { leastMs, mostMs } = policy.reservation;
  const ttlMs = Math.min(askedMs, mostMs, keyState.endsByMs - nowMs);
  if (
    !policy.localDecisions.admits ||
    !hasRoom(keyState, id) ||
    ttlMs < Math.min(askedMs, LEAST_USEFUL_TTL_MS)
  )
    return { ttlMs: Math.max(0, ttlMs), units: ruleAccounts.map(() => 0) };
  const wishes = ruleAccounts.map(({ rule, account }, index): Wish => {
    const keeps = kept[index] ?? 0;
    let wantedByOthers = 0;
    for (const [each, { wanted, untilMs }] of holders)
      if (each !== id && untilMs > nowMs) wantedByOthers += wanted[index] ?? 0;
    return {
      wanted: rules[rule.name]?.wanted ?? 0,
      kept: keeps,
      free: decide(rule, account, nowMs, 0).remaining,
      capacity: rule.capacity,
      heldByOthers: unstoredOf(account) - keeps,
      wantedByOthers,
      isShort,
    };
  });
  const units = grantedTogether(wishes);
  const isSpared = wishes.every(({ kept: keeps, free }, index) => isSpare(keeps + (units[index] ?? 0), free));
  if (ttlMs <= leastMs || isSpared) return { ttlMs, units };
  const part = leastMs / askedMs;
  const shorter = wishes.map((wish) => ({ ...wish, wanted: Math.floor(wish.wanted * part) }));
  return { ttlMs: leastMs, units: grantedTogether(shorter) };
}
