import { decideTogether } from "../../core/accounts/joint-decision.ts";
import type { Entry } from "../keys/key-state.ts";
import type { Grants } from "../operations/reservations.ts";
import type { Ledger } from "../keys/key-store.ts";
import type { AnswerText, Cost, Decided, Maybe, ReserveCall } from "../../core/protocol/messages.ts";
import { mostUnits } from "../../core/reservations/sizing.ts";
import type { Exchange } from "./session.ts";
import { costsOf, freeUnits, stateOf, type Lending } from "./share-units.ts";

/** Between one message of an isolate, which is taken note of in two parts, and the next. */
const HALF_A_TURN = 0.5;

type Reserve = Omit<ReserveCall, "policy" | "key">;

/** Costs of rates: decided from the region's share, and by the pool when that has not enough. */
export class RegionalLimits {
  readonly #exchange: Exchange;
  readonly #ledger: Ledger;
  readonly #grants: Grants;

  constructor(exchange: Exchange, ledger: Ledger, grants: Grants) {
    this.#exchange = exchange;
    this.#ledger = ledger;
    this.#grants = grants;
  }

  /** @throws PoolFailure */
  async limit(entry: Entry, cost: Cost): Promise<Decided> {
    const { policy } = entry;
    const share = this.#exchange.shareOf(entry);
    share.demand.note(cost, this.#exchange.toNow(entry));
    const here = await this.#untilHere(entry, cost, (nowMs) => this.#decideHere(entry, cost, nowMs));
    if (here !== undefined) return here;
    const asked = { op: "limit", cost: costsOf(entry, cost) } as const;
    const isHolding = policy.elsewhere.admits && (share.demand.isHot || share.isHeld);
    return this.#exchange.send(entry, asked, isHolding ? { asking: {} } : {}, (answer, nowMs) => {
      const { rules = [], next } = answer;
      if (!isAllowed({ rules })) share.denials.learn(policy, cost, rules, nowMs);
      return { rules, source: "pool", ...(next && { next }) };
    });
  }

  /**
   * Decides on a cost, and passes units on to an isolate.
   *
   * @throws PoolFailure
   */
  async reserve(entry: Entry, call: Reserve): Promise<AnswerText> {
    const { cost, holder, rules } = call;
    const share = this.#exchange.shareOf(entry);
    share.demand.note(0, this.#exchange.toNow(entry));
    const units = entry.policy.rules.map(({ name }) => rules[name]?.wanted ?? 0);
    const lending: Lending = { holder, units };
    const here = await this.#untilHere(entry, cost, (nowMs) => {
      const isHere = decideTogether(entry.books, nowMs, cost).admitted && !isPoor(entry, call, nowMs);
      if (!isHere) return this.#denyAgain(entry, call, nowMs);
      const reserved = this.#grants.reserve(entry, call, nowMs);
      if (share.needsRefill(nowMs)) this.#exchange.refill(entry, { lending });
      return reserved;
    });
    if (here !== undefined) return withoutNext(here);
    return await this.#reserveOfPool(entry, call, lending);
  }

  async #reserveOfPool(entry: Entry, call: Reserve, lending: Lending): Promise<AnswerText> {
    const { policy } = entry;
    const { cost } = call;
    const share = this.#exchange.shareOf(entry);
    // What the isolate has comes home first, so that the pool decides on everything there is.
    const noted = JSON.parse(
      await this.#grants.reserve(entry, homecoming(call), this.#exchange.toNow(entry)),
    ) as Decided;
    if (noted.reserved === undefined) return JSON.stringify(await this.limit(entry, cost));
    const { isNew } = noted.reserved;
    const asked = { op: "limit", cost: costsOf(entry, cost) } as const;
    return await this.#exchange.send(entry, asked, { asking: { lending } }, async (answer, nowMs) => {
      const { rules = [], next } = answer;
      if (!isAllowed({ rules })) share.denials.learn(policy, cost, rules, nowMs);
      // The pool has charged the cost itself.
      const goingOn = { ...call, cost: 0, turn: call.turn + HALF_A_TURN };
      const reserved = JSON.parse(await this.#grants.reserve(entry, goingOn, nowMs)) as Decided;
      const granted = reserved.reserved && { ...reserved.reserved, isNew: isNew || reserved.reserved.isNew };
      return JSON.stringify({
        rules,
        source: "pool",
        ...(granted && { reserved: granted }),
        ...(next && { next }),
      } satisfies Decided);
    });
  }

  /** Units come home from an isolate; if others want them, they go on to the pool at once. */
  gaveBack(entry: Entry): void {
    const share = this.#exchange.shareOf(entry);
    if (share.isContended && share.messageAt(this.#exchange.toNow(entry)) === undefined)
      this.#exchange.refill(entry);
  }

  /** Tries to decide here, again after each message under way. */
  async #untilHere<Result>(
    entry: Entry,
    cost: Cost,
    decide: (nowMs: number) => Result | undefined,
  ): Promise<Result | undefined> {
    const { policy } = entry;
    const share = this.#exchange.shareOf(entry);
    const mostMs = policy.deadlineMs / 4;
    const sinceMs = this.#exchange.toNow(entry);
    let nowMs = sinceMs;
    for (;;) {
      const decided = decide(nowMs);
      if (decided !== undefined) return decided;
      const message = share.messageAt(nowMs);
      const leftMs = sinceMs + mostMs - nowMs;
      if (leftMs <= 0 || message === undefined) return undefined;
      // Also when there is no place for it in what was asked for: a denial would answer it too.
      if (message.promise(policy, cost)) share.demand.miss();
      await this.#exchange.follow(message, Math.min(mostMs, leftMs));
      nowMs = this.#exchange.toNow(entry);
    }
  }

  /** What the share admits, or the pool has denied before; `undefined`: the pool has to be asked. */
  #decideHere(entry: Entry, cost: Cost, nowMs: number): Decided | undefined {
    const share = this.#exchange.shareOf(entry);
    const decided = this.#spend(entry, cost, nowMs);
    if (decided === undefined) return this.#deny(entry, cost, nowMs);
    if (share.needsRefill(nowMs)) this.#exchange.refill(entry);
    return decided;
  }

  /** What the pool has denied before. */
  #deny(entry: Entry, cost: Cost, nowMs: number): Decided | undefined {
    const { policy, books } = entry;
    const { denials } = this.#exchange.shareOf(entry);
    return denials.find(policy, cost, books.map(freeUnits), nowMs, (_, index) => {
      const book = books[index];
      return book === undefined ? 0 : Math.max(0, stateOf(book).wholeAtMs - nowMs);
    });
  }

  /** The same for an isolate, of which note is taken; what it gives back may be of use to the next. */
  #denyAgain(entry: Entry, call: Reserve, nowMs: number): Maybe<AnswerText> | undefined {
    const denied = call.cost === 0 ? undefined : this.#deny(entry, call.cost, nowMs);
    if (denied === undefined) return undefined;
    const { rules } = denied;
    const reserved = this.#grants.reserve(entry, { ...call, cost: 0 }, nowMs);
    const withDenial = (text: AnswerText) => JSON.stringify({ ...(JSON.parse(text) as Decided), rules });
    return typeof reserved === "string" ? withDenial(reserved) : reserved.then(withDenial);
  }

  /** Uses units of the share; `undefined`: there are not so many. */
  #spend(entry: Entry, cost: Cost, nowMs: number): Decided | undefined {
    const { admitted, accounts, rules } = decideTogether(entry.books, nowMs, cost);
    if (!admitted || accounts === undefined) return undefined;
    this.#ledger.commit(entry, { accounts }, nowMs);
    return { rules };
  }
}

/** Whether so little is here of what an isolate wants that the pool is asked first, unless it has just said that there is none. */
function isPoor(entry: Entry, { rules }: Reserve, nowMs: number): boolean {
  return entry.books.some((book) => {
    const { wanted = 0, kept = 0 } = rules[book.rule.name] ?? {};
    const missing = Math.min(wanted, mostUnits(book.rule.capacity)) - kept;
    return 2 * freeUnits(book) < missing && stateOf(book).retryAtMs <= nowMs;
  });
}

function isAllowed({ rules }: Pick<Decided, "rules">): boolean {
  return rules.every(({ success }) => success);
}

/** The same message, which takes nothing and is granted nothing yet. */
function homecoming(call: Reserve): Reserve {
  const rules = Object.entries(call.rules).map(([name, { used, kept }]) => [
    name,
    { used, kept, wanted: kept },
  ]);
  return { ...call, cost: 0, rules: Object.fromEntries(rules) as Reserve["rules"] };
}

/** What is not here may be in the pool, so that nothing is left here says nothing. */
function withoutNext(reserved: AnswerText): AnswerText {
  const { next: _, ...decided } = JSON.parse(reserved) as Decided;
  return JSON.stringify(decided);
}
