/**
 * Accounts: for one key and one rule, the algorithm's state and the holds. A hold is units that are set apart for a
 * holder (an isolate or a caller).
 *
 * Every level holds units of the level beneath it, spends them without asking, and settles later. Units that are held
 * are not in the algorithm's state. They are `outstanding`, and what can be admitted is what the state offers minus
 * what is outstanding. A debit happens only when a hold is settled or expires: at that instant, with the units that
 * were really used (at expiry: all of them). So units that were held and not used come back without a credit.
 *
 * Why no bound is exceeded: the units used in any interval are, at its end, either debited or still outstanding. Both
 * together never exceed what the algorithm offers in that interval. Late messages, the order of holders and crashes
 * do not change that.
 *
 * A lease is a hold too. Its units are occupied and not used up, so they are free when it is settled or expires: the
 * debit of its algorithm takes no units.
 *
 * Pure: values in, values out, and time is an argument.
 */
import type { AlgorithmDecision, Allowed, Denial, Forecast, Outcome, Uses } from "../algorithms/algorithm.ts";
import type { Rule } from "../policies/policy.ts";
import { heldUnits, type Hold, holdWith, indexAfter, usesOf, withHold, withoutHold } from "./hold.ts";

/** One rule's state and holds, for one key. */
export interface Account {
  /** `undefined`: an untouched quota. */
  readonly state: unknown;
  /** In the order in which they expire. */
  readonly holds: readonly Hold[];
}

/** The account of a key that was never used. */
export const UNTOUCHED: Account = { state: undefined, holds: [] };

/** What a rule says of a cost, with the new account if it has changed. */
export type AccountDecision =
  | (Omit<Allowed<unknown>, "state"> & { readonly allowed: true; readonly account: Account })
  | (Denial & {
      readonly allowed: false;
      /** Present when the rule counts denials: the account with this denial, and the figures of that account. */
      readonly counted?: Denial & { readonly account: Account };
    });

/** Decides on `cost` units. The account must have been advanced to `nowMs`. */
export function decide(rule: Rule, account: Account, nowMs: number, cost: number): AccountDecision {
  const outstanding = outstandingOf(account);
  const decision = decideState(rule, account.state, nowMs, cost, outstanding);
  // The figures of a share are the pool's, and the pool knows of the units that are held here.
  const isExact = outstanding === 0 || rule.algorithm.isShare === true;
  if (decision.allowed) {
    const { state, remaining, quotaRemaining, delayMs: delay } = decision;
    const after = cost === 0 ? account : { state, holds: account.holds };
    const resetAfterMs = isExact ? decision.resetAfterMs : resetAtMs(rule, after, nowMs) - nowMs;
    return {
      allowed: true,
      account: after,
      remaining,
      ...(quotaRemaining !== undefined && { quotaRemaining }),
      resetAfterMs,
      ...(delay !== undefined && { delayMs: delay }),
    };
  }
  const { counted, ...denied } = decision;
  /** The denial with figures for the case that every hold is used when it expires. */
  const withHolds = (of: Account, denial: Denial): Denial =>
    isExact
      ? denial
      : {
          ...denial,
          retryAfterMs: waitMs(rule, of, nowMs, cost),
          resetAfterMs: resetAtMs(rule, of, nowMs) - nowMs,
        };
  if (counted === undefined) return { ...withHolds(account, denied), allowed: false };
  const { state, ...countedDenial } = counted;
  const after = { state, holds: account.holds };
  return {
    ...withHolds(account, denied),
    allowed: false,
    counted: { ...withHolds(after, countedDenial), account: after },
  };
}

/** How long a caller should wait that was just admitted; `undefined`: it goes on at once. */
export function delayMs(rule: Rule, account: Account, nowMs: number, cost: number): number | undefined {
  const decision = decideState(rule, account.state, nowMs, cost, outstandingOf(account));
  return decision.allowed ? decision.delayMs : undefined;
}

/** The account after a cost is taken, as `decide` says it but without the figures; `undefined`: the cost is denied. */
export function admit(
  rule: Rule,
  { state, holds }: Account,
  nowMs: number,
  cost: number,
): Account | undefined {
  const decision = decideState(rule, state, nowMs, cost, heldUnits(holds).all);
  return decision.allowed ? { state: decision.state, holds } : undefined;
}

/** Whether a cost would pass if no call on several keys held units. */
export function admitsUnprovisional(rule: Rule, account: Account, nowMs: number, cost: number): boolean {
  const { all, provisional } = heldUnits(account.holds);
  return decideState(rule, account.state, nowMs, cost, all - provisional).allowed;
}

/** The largest cost that would pass now. */
export function remainingOf(rule: Rule, account: Account, nowMs: number): number {
  return decideState(rule, account.state, nowMs, 0, outstandingOf(account)).remaining;
}

/**
 * The exact wait in milliseconds for a cost, if every hold is used when it expires; `null`: the cost never passes.
 */
export function waitMs(rule: Rule, { state, holds }: Account, nowMs: number, cost: number): number | null {
  const passesAtMs = new Outlook(rule, state, holds).passesAtMs(nowMs, cost);
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

/** Debits every hold that has expired by `nowMs`, each at the instant when it expired. */
export function advance(rule: Rule, account: Account, nowMs: number): Account {
  const { holds } = account;
  let [state, expired] = [account.state, 0];
  for (let next = holds[0]; next !== undefined && next.expiresAtMs <= nowMs; next = holds[expired]) {
    state = rule.algorithm.debit(rule.config, state, next.expiresAtMs, next.units);
    expired += 1;
  }
  return expired === 0 ? account : { state, holds: holds.slice(expired) };
}

/** Adds a hold. It does not check that there are enough units: ask `decide` first. */
export function place({ state, holds }: Account, hold: Hold): Account {
  return { state, holds: withHold(holds, hold) };
}

/** Adds a hold of a rate, and lets the algorithm note the instant of the call (`noteHold`). */
export function placeNoted(rule: Rule, account: Account, nowMs: number, hold: Hold): Account {
  const state = rule.algorithm.noteHold(rule.config, account.state, nowMs);
  return place({ state, holds: account.holds }, hold);
}

/** Moves the expiry of a hold. An unknown id changes nothing. */
export function extend(account: Account, id: string, expiresAtMs: number): Account {
  const hold = holdWith(account.holds, id);
  if (hold === undefined) return account;
  return place({ state: account.state, holds: withoutHold(account.holds, id) }, { ...hold, expiresAtMs });
}

/** Ends a hold with the units really used, which may be more than were held. An unknown id changes nothing. */
export function settle(rule: Rule, account: Account, nowMs: number, id: string, used: number): Account {
  const holds = withoutHold(account.holds, id);
  if (holds === account.holds) return account;
  return { state: rule.algorithm.debit(rule.config, account.state, nowMs, used), holds };
}

/** Gives back units that were taken and not used. */
export function refund(rule: Rule, account: Account, nowMs: number, units: number): Account {
  return { state: rule.algorithm.credit(rule.config, account.state, nowMs, units), holds: account.holds };
}

/** Gives back units of a charge that was made at `atMs`: those of them that time has not given back since. */
export function uncharge(rule: Rule, account: Account, nowMs: number, units: number, atMs: number): Account {
  return {
    state: rule.algorithm.uncharge(rule.config, account.state, nowMs, units, atMs),
    holds: account.holds,
  };
}

/** The units of all holds. */
export function outstandingOf({ holds }: Account): number {
  return heldUnits(holds).all;
}

/** The units of holds that are in memory only. */
export function unstoredOf({ holds }: Account): number {
  return heldUnits(holds).unstored;
}

/** The units of holds that stand for what was given out before a crash. */
export function restoredOf({ holds }: Account): number {
  return heldUnits(holds).restored;
}

/** The last instant at which a holder may spend units that this memory has given it; -Infinity: none has any. */
export function spendableUntilMs({ holds }: Account): number {
  let untilMs = -Infinity;
  for (const { isStored, isRestored, expiresAtMs, spendableUntilMs: spentMs = expiresAtMs } of holds)
    if (isStored !== true && isRestored !== true) untilMs = Math.max(untilMs, spentMs);
  return untilMs;
}

/** The first instant, `nowMs` or later, from which the account equals an untouched one if no call comes before. */
export function wholeAtMs(rule: Rule, account: Account, nowMs: number): number {
  const fullAtMs = resetAtMs(rule, account, nowMs);
  // What a limit has learned outlasts the leases.
  if (rule.algorithm.limitNow === undefined) return fullAtMs;
  return Math.max(fullAtMs, rule.algorithm.wholeAtMs(rule.config, account.state));
}

/** The first instant, `nowMs` or later, from which all units are there if no call comes before. */
function resetAtMs(rule: Rule, { state, holds }: Account, nowMs: number): number {
  const last = holds.at(-1)?.expiresAtMs ?? nowMs;
  // An expired lease leaves no unit behind.
  if (rule.lease !== undefined) return Math.max(last, nowMs);
  return Math.max(last, nowMs, emptyAtMs(rule, state, holds));
}

/** A call asks twice: for its answer, and for what it writes. So the last answer for a list of holds is kept. */
const known = new WeakMap<readonly Hold[], { rule: Rule; state: unknown; atMs: number }>();

/** The instant from which a rule's state is whole, if every hold is used when it expires. */
function emptyAtMs(rule: Rule, state: unknown, holds: readonly Hold[]): number {
  const earlier = known.get(holds);
  if (earlier?.rule === rule && earlier.state === state) return earlier.atMs;
  const atMs = rule.algorithm.wholeAtMs(rule.config, state, usesOf(holds));
  known.set(holds, { rule, state, atMs });
  return atMs;
}

/**
 * What a rule says of a cost, beside units that are held. Units that it keeps for more important calls (`Rule.apart`)
 * count as held too. A denial that they alone cause has the reason `shed`.
 */
function decideState(
  rule: Rule,
  state: unknown,
  nowMs: number,
  cost: number,
  held: number,
): AlgorithmDecision<unknown> {
  const { algorithm, config, apart } = rule;
  if (apart === undefined) return algorithm.decide(config, state, nowMs, cost, held);
  const decision = algorithm.decide(config, state, nowMs, cost, held + apart);
  const plain = () => algorithm.decide(config, state, nowMs, cost, held);
  if (decision.allowed) return decision.delayMs === undefined ? decision : withDelayOf(decision, plain());
  // Such a denial is not the caller's doing, so it does not count either.
  const { counted: _, ...denied } = decision;
  if (cost > rule.capacity) return { ...denied, reason: "cost-over-limit" };
  return plain().allowed ? { ...denied, reason: "shed" } : decision;
}

/** Units that are only kept delay nobody: they are not on their way. */
function withDelayOf(decision: Allowed<unknown>, plain: AlgorithmDecision<unknown>): Allowed<unknown> {
  const plainDelayMs = plain.allowed ? plain.delayMs : undefined;
  const told = Object.entries(decision).filter(([field]) => field !== "delayMs");
  return {
    ...(Object.fromEntries(told) as typeof decision),
    ...(plainDelayMs !== undefined && { delayMs: plainDelayMs }),
  };
}

/**
 * One account as it will be, if every hold is used when it expires, every lease runs to its end, and no call comes.
 *
 * Time moves on in it, and never back. So each hold is met once, however many questions are asked on the way.
 */
export class Outlook {
  readonly #rule: Rule;
  readonly #forecast: Forecast;
  readonly #holds: Uses;
  #nextHold = 0;
  /** The ends and the units of leases that begin on the way, in the order of their ends. */
  readonly #leasesEndMs: number[] = [];
  readonly #leased: number[] = [];
  #nextLease = 0;
  #outstanding: number;

  constructor(rule: Rule, state: unknown, holds: readonly Hold[]) {
    this.#rule = rule;
    this.#forecast = rule.algorithm.forecast(rule.config, state);
    this.#holds = usesOf(holds);
    this.#outstanding = heldUnits(holds).all;
  }

  /**
   * The first instant, `fromMs` or later, at which a cost passes. `Infinity`: there is none, or none up to `untilMs`;
   * it may also be a later one. Time moves on, at most to that instant or to `untilMs`.
   *
   * @param apart units that are kept for more important calls; absent: as the rule says
   */
  passesAtMs(fromMs: number, cost: number, untilMs = Infinity, apart = this.#rule.apart ?? 0): number {
    // What a share says is the pool's word, and the pool knows of the units that are held here.
    if (this.#rule.algorithm.isShare === true)
      return this.#forecast.passesAtMs(fromMs, cost, this.#outstanding + apart);
    const fitsAtMs = cost === 0 ? fromMs : this.#fitsAtMs(fromMs, cost + apart, untilMs);
    // Units that are leased are all that a lease waits for, where the limit stays as it is.
    const isFixed = this.#rule.algorithm.limitNow === undefined;
    if (fitsAtMs === Infinity || (this.#rule.lease !== undefined && isFixed)) return fitsAtMs;
    for (let atMs = fitsAtMs; ; atMs = this.#nextMs()) {
      this.moveTo(atMs);
      const taken = this.#outstanding + apart;
      const passesAtMs = this.#forecast.passesAtMs(atMs, cost, taken);
      const isCertain = passesAtMs <= this.#nextMs() || this.#forecast.isCertain(atMs, taken);
      if (isCertain) return passesAtMs;
      if (this.#nextMs() > untilMs) return Infinity;
    }
  }

  /** The first instant at which the capacity has room for a cost beside what is outstanding. */
  #fitsAtMs(fromMs: number, cost: number, untilMs: number): number {
    const { endsMs, units } = this.#holds;
    const [leasesEndMs, leased] = [this.#leasesEndMs, this.#leased];
    const { capacity, apart = 0 } = this.#rule;
    let missing = cost + this.#outstanding - capacity - apart;
    let atMs = fromMs;
    let hold = this.#nextHold;
    let lease = this.#nextLease;
    let leaseMs = leasesEndMs[lease] ?? Infinity;
    while (missing > 0) {
      const holdMs = hold < endsMs.length ? (endsMs[hold] ?? Infinity) : Infinity;
      atMs = holdMs < leaseMs ? holdMs : leaseMs;
      if (atMs === Infinity || atMs > untilMs) return Infinity;
      if (holdMs === atMs) {
        missing -= units[hold] ?? 0;
        hold += 1;
      } else {
        missing -= leased[lease] ?? 0;
        lease += 1;
        leaseMs = leasesEndMs[lease] ?? Infinity;
      }
    }
    return atMs;
  }

  /** Ends what expires at this instant or before. */
  moveTo(atMs: number): void {
    const { endsMs, units } = this.#holds;
    const from = this.#nextHold;
    let [to, ended] = [from, 0];
    for (; to < endsMs.length && (endsMs[to] ?? 0) <= atMs; to += 1) ended += units[to] ?? 0;
    this.#forecast.debit(this.#holds, from, to);
    this.#outstanding -= ended;
    this.#nextHold = to;
    for (; (this.#leasesEndMs[this.#nextLease] ?? Infinity) <= atMs; this.#nextLease += 1)
      this.#outstanding -= this.#leased[this.#nextLease] ?? 0;
  }

  /** Takes a cost that passes at this instant. If the rule leases, the units are free again at `endsAtMs`. */
  take(atMs: number, units: number, endsAtMs: number): void {
    if (units === 0) return;
    this.#forecast.take(atMs, units);
    if (this.#rule.lease === undefined) return;
    const index = indexAfter(this.#leasesEndMs, endsAtMs);
    this.#leasesEndMs.splice(index, 0, endsAtMs);
    this.#leased.splice(index, 0, units);
    this.#outstanding += units;
  }

  #nextMs(): number {
    return Math.min(
      this.#holds.endsMs[this.#nextHold] ?? Infinity,
      this.#leasesEndMs[this.#nextLease] ?? Infinity,
    );
  }
}

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
