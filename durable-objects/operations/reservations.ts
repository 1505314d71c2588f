import { isProvisionallyBlocked } from "./contention.ts";
import { decideTogether, withoutTaking, type RuleAccount } from "../../core/accounts/joint-decision.ts";
import type { KeyState } from "../keys/key-state.ts";
import { decide, place, settle, unstoredOf } from "../../core/accounts/account.ts";
import type { KeyStore } from "../keys/key-store.ts";
import type { Limits } from "./limits.ts";
import type { AnswerText, Decided, ReserveCall, Reserving, Returned } from "../../core/protocol/messages.ts";
import {
  grantedTogether,
  heldMs,
  isSpare,
  LEAST_USEFUL_TTL_MS,
  type Wish,
} from "../../core/reservations/sizing.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** What the object knows of somebody who reserves units of a key: in memory only, its units are covered by write-ahead. */
export interface Holder {
  /** The last message that counted; earlier ones that arrive later do not. */
  readonly turn: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** By rule: units it has reported as used since it began, and those it wanted last. */
  readonly used: readonly number[];
  readonly wanted: readonly number[];
  /** It competes with others for units until then, unless it asks again. */
  readonly untilMs: number;
}

/** More isolates than that find no room to reserve, and ask for each decision. About 200 bytes each. */
const MOST_HOLDERS = 1_000;
/** A holder is remembered for so long after its end, since messages that it sent before may come later. */
const REMEMBERED_MS = 5_000;

type Reserve = Omit<ReserveCall, "policy" | "key">;

const NOTHING: Reserving = { used: 0, kept: 0, wanted: 0 };

/** Units that isolates reserve, and settle with what they used. */
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
  reserve(keyState: KeyState, call: Reserve, nowMs: number): AnswerText | Promise<AnswerText> {
    const { cost } = call;
    const reported = report(keyState, call.holder, call, nowMs);
    // It was overtaken. Whoever waits for it is answered, and nothing is reserved.
    if (reported === undefined) return this.#limits.limit(keyState, cost, undefined, nowMs);
    const decision = decideTogether(reported.ruleAccounts, nowMs, cost);
    if (!decision.admitted && isProvisionallyBlocked(keyState, cost, nowMs)) {
      this.#commit(keyState, call.holder, reported, nowMs);
      return this.#limits.limit(keyState, cost, undefined, nowMs);
    }
    const accounts = cost === 0 ? undefined : decision.accounts;
    const ruleAccounts = reported.ruleAccounts.map(({ rule, account }, index) => ({
      rule,
      account: accounts?.[index] ?? account,
    }));
    const { ttlMs, units } = grant(keyState, ruleAccounts, reported, call, nowMs);
    const { hold } = reported.holder;
    // Units that are kept are never let go sooner than was said before: this answer may be lost.
    const keptHolds = ruleAccounts.flatMap(({ account }) => account.holds.filter(({ id }) => id === hold));
    const expiresAtMs = Math.max(nowMs + heldMs(ttlMs), ...keptHolds.map((each) => each.expiresAtMs));
    const reserved = ruleAccounts.map(({ rule, account }, index) => {
      const kept = reported.kept[index] ?? 0;
      const holding = { id: hold, units: kept + (units[index] ?? 0), expiresAtMs };
      const without = kept === 0 ? account : settle(rule, account, nowMs, hold, 0);
      return { rule, account: holding.units === 0 ? without : place(without, holding) };
    });
    const holder = { ...reported.holder, untilMs: expiresAtMs };
    this.#commit(keyState, call.holder, { ruleAccounts: reserved, holder }, nowMs);
    this.#queue.serve(keyState);
    const next = withoutTaking(reserved, nowMs, 1);
    const named = Object.fromEntries(ruleAccounts.map(({ rule }, index) => [rule.name, units[index] ?? 0]));
    return JSON.stringify({
      rules: decision.rules,
      reserved: { ttlMs, isNew: reported.isNew, units: named },
      ...(next.some(({ success }) => !success) && { next }),
    } satisfies Decided);
  }

  /** Ends a holder's reservation with what it used. Late or again, it changes nothing. */
  giveBack(keyState: KeyState, { holder, turn, used }: Returned, nowMs: number): void {
    const rules = Object.fromEntries(
      Object.entries(used).map(([name, units]) => [name, { used: units, kept: 0, wanted: 0 }]),
    );
    const reported = report(keyState, holder, { turn, ttlMs: 0, rules }, nowMs);
    if (reported === undefined) return;
    this.#commit(keyState, holder, reported, nowMs);
    this.#queue.serve(keyState);
  }

  #commit(
    keyState: KeyState,
    id: string,
    { ruleAccounts, holder }: Pick<Reported, "ruleAccounts" | "holder">,
    nowMs: number,
  ): void {
    const accounts = ruleAccounts.map(({ account }) => account);
    // A denial that changes nothing writes nothing, and makes no key hot.
    if (keyState.ruleStates.some(({ account }, index) => account !== accounts[index]))
      this.#store.commit(keyState, { accounts }, nowMs);
    if (hasRoom(keyState, id)) keyState.holders.set(id, holder);
  }
}

function hasRoom({ holders }: KeyState, id: string): boolean {
  return holders.has(id) || holders.size < MOST_HOLDERS;
}

/** A holder's message, taken note of: the accounts with what it used debited and only what it keeps held. */
interface Reported {
  readonly ruleAccounts: readonly RuleAccount[];
  readonly holder: Holder;
  readonly kept: readonly number[];
  readonly isNew: boolean;
}

/** `undefined`: a later message has been there before. */
function report(
  keyState: KeyState,
  id: string,
  { turn, ttlMs, rules }: Pick<ReserveCall, "turn" | "ttlMs" | "rules">,
  nowMs: number,
): Reported | undefined {
  const { ruleStates, holders } = keyState;
  for (const [each, { untilMs }] of holders) if (untilMs + REMEMBERED_MS <= nowMs) holders.delete(each);
  const before = holders.get(id);
  if (before !== undefined && turn <= before.turn) return undefined;
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

/** How many units of each rule, and for how long: for longer than the shortest lifetime only what can be spared. */
function grant(
  keyState: KeyState,
  ruleAccounts: readonly RuleAccount[],
  { kept }: Reported,
  { holder: id, rules, ttlMs: askedMs, isShort }: Reserve,
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
