/**
 * The object of a region, for policies with a pool. Loaded when the first is asked for.
 *
 * Costs of rates are decided from the region's share (regional-limits.ts), leases are given in its slots
 * (regional-leases.ts), and what has to be known everywhere (holds, refunds, idempotency keys) is the pool's (regional-claims.ts).
 * When the pool does not answer, a policy with `onFailure = "local"` goes on with a part of its limit that is this region's
 * own; else the call fails, and the worker answers as the policy says.
 */
import type { Clerks } from "../call-router.ts";
import type { Entry } from "../keys/key-state.ts";
import type { Acquiring } from "../operations/leases.ts";
import { MISSING } from "../operations/claims.ts";
import { costOf } from "../../core/accounts/joint-decision.ts";
import type {
  AnswerText,
  Cost,
  Decided,
  HoldCall,
  Maybe,
  Peeked,
  ReserveCall,
  RuleDecision,
} from "../../core/protocol/messages.ts";
import { Exchange, PoolFailure, type ExchangeHost } from "./session.ts";
import { RegionalClaims } from "./pooled-claims.ts";
import { RegionalLeases } from "./pooled-leases.ts";
import { RegionalLimits } from "./pooled-limits.ts";
import { costsOf, freeUnits, leaseWaitMs } from "./share-units.ts";

/** What it needs of its object. */
export interface RegionalHost extends Clerks, ExchangeHost {
  /** The same key as the region has it alone. */
  openAlone(entry: Entry): [entry: Entry, nowMs: number];
}

export class Regional {
  readonly #host: RegionalHost;
  readonly #exchange: Exchange;
  readonly #limits: RegionalLimits;
  readonly #leases: RegionalLeases;
  readonly #claims: RegionalClaims;

  constructor(host: RegionalHost) {
    this.#host = host;
    this.#exchange = new Exchange(host);
    this.#limits = new RegionalLimits(this.#exchange, host.ledger, host.grants);
    this.#leases = new RegionalLeases(this.#exchange, host.room);
    this.#claims = new RegionalClaims(this.#exchange);
  }

  limit(entry: Entry, cost: Cost, idempotencyKey: string | undefined): Promise<AnswerText> {
    const isPlain = idempotencyKey === undefined && costsOf(entry, cost).some((units) => units > 0);
    const ask = async () =>
      JSON.stringify(
        await (isPlain ? this.#limits.limit(entry, cost) : this.#claims.limit(entry, cost, idempotencyKey)),
      );
    return this.#orAlone(entry, ask, (alone, nowMs) =>
      this.#host.limits.limit(alone, cost, idempotencyKey, nowMs),
    );
  }

  reserve(entry: Entry, call: Omit<ReserveCall, "policy" | "key">): Promise<AnswerText> {
    const ask = () => this.#limits.reserve(entry, call);
    // Alone nothing is reserved: every answer is to say that it is one.
    return this.#orAlone(entry, ask, (alone, nowMs) =>
      this.#host.limits.limit(alone, call.cost, undefined, nowMs),
    );
  }

  /** Units have come home from an isolate. */
  gaveBack(entry: Entry): void {
    this.#limits.gaveBack(entry);
  }

  refund(entry: Entry, units: Cost, idempotencyKey: string): Promise<AnswerText> {
    const ask = async () => JSON.stringify(await this.#claims.refund(entry, units, idempotencyKey));
    return this.#orAlone(entry, ask, (alone, nowMs) =>
      this.#host.limits.refund(alone, units, idempotencyKey, nowMs),
    );
  }

  hold(entry: Entry, call: Omit<HoldCall, "policy" | "key">): Promise<AnswerText> {
    const { lease } = entry.policy;
    const alone = (own: Entry, nowMs: number) => this.#host.holds.hold(own, call, nowMs);
    // Slots are held for as long as the lease; units of rates beside them for as long as the hold.
    const hasRates = entry.policy.rules.some((rule) => rule.lease === undefined);
    const ttlMs = Math.max(hasRates ? call.ttlMs : 0, lease?.ttlMs ?? 0);
    const ask = async () =>
      lease === undefined
        ? JSON.stringify(await this.#claims.hold(entry, call))
        : await this.#leases.withSlots(entry, call.cost, ttlMs, (nowMs) => alone(entry, nowMs));
    return this.#orAlone(entry, ask, alone);
  }

  async settle(entry: Entry, id: string, used: Cost): Promise<AnswerText> {
    const [own, nowMs] = this.#ownerOf(entry, id);
    if (own !== undefined) return this.#host.holds.settle(own, id, used, nowMs);
    return JSON.stringify(await this.#claims.settle(entry, id, used));
  }

  async cancel(entry: Entry, id: string): Promise<AnswerText> {
    const [own, nowMs] = this.#ownerOf(entry, id);
    if (own === undefined) return JSON.stringify(await this.#claims.cancel(entry, id));
    await this.#leases.adopt(entry);
    const answer = this.#host.holds.cancel(own, id, nowMs);
    this.#leases.serve(entry);
    return answer;
  }

  acquire(entry: Entry, call: Acquiring): Promise<AnswerText> {
    const acquire = (own: Entry, nowMs: number) => this.#host.leases.acquire(own, call, nowMs);
    const ask = () =>
      this.#leases.withSlots(entry, call.cost, call.ttlMs, (nowMs, rules) => {
        const answer = acquire(entry, nowMs);
        if (typeof answer !== "string" || rules === undefined) return answer;
        return withPoolsFigures(answer, sooner(entry, rules, call.cost, nowMs));
      });
    return this.#orAlone(entry, ask, acquire);
  }

  async renew(entry: Entry, id: string, ttlMs: number | undefined): Promise<AnswerText> {
    const [own, nowMs] = this.#ownerOf(entry, id);
    if (own?.claims.has(id) !== true) return MISSING;
    if (own !== entry) return this.#host.leases.renew(own, id, ttlMs, nowMs);
    const askedMs = ttlMs ?? entry.claims.get(id)?.ttlMs ?? 0;
    return await this.#leases.withSlots(entry, 0, askedMs, (atMs) => {
      if (atMs + askedMs > entry.endsByMs || entry.books.some((book) => freeUnits(book) < 0))
        throw new PoolFailure("the pool does not keep the slot for so long");
      return this.#host.leases.renew(entry, id, ttlMs, atMs);
    });
  }

  async release(entry: Entry, id: string): Promise<boolean> {
    await this.#leases.adopt(entry);
    const [own, nowMs] = this.#ownerOf(entry, id);
    const isReleased = own !== undefined && this.#host.leases.release(own, id, nowMs);
    this.#leases.serve(entry);
    return isReleased;
  }

  peek(entry: Entry): Promise<Peeked> {
    const nowMs = this.#host.toNow(entry);
    const [first] = this.#host.room.waitersOf(entry);
    return this.#claims.peek(entry, first === undefined ? 0 : nowMs - first.sinceMs);
  }

  /** Makes the key as new, here and in the pool; units that somebody may still be spending stay apart there. */
  async reset(entry: Entry): Promise<void> {
    if (entry.policy.onFailure === "local") this.#host.ledger.reset(...this.#host.openAlone(entry));
    // Of a rate nothing is stored, and what isolates have of the share is known.
    if (entry.policy.lease === undefined) return await this.#claims.reset(entry);
    await this.#leases.adopt(entry);
    this.#host.ledger.endClaims(entry, this.#host.toNow(entry));
    await this.#claims.reset(entry);
    this.#host.room.serve(entry);
    this.#leases.serve(entry);
  }

  /** Whose hold or lease it is that is not the pool's; rates' holds are the pool's, unless the region was alone. */
  #ownerOf(entry: Entry, id: string): [owner: Entry | undefined, nowMs: number] {
    const nowMs = this.#host.toNow(entry);
    if (entry.claims.has(id)) return [entry, nowMs];
    if (entry.policy.onFailure === "local") {
      const [alone, atMs] = this.#host.openAlone(entry);
      if (alone.claims.has(id)) return [alone, atMs];
    }
    return [entry.policy.lease === undefined ? undefined : entry, nowMs];
  }

  async #orAlone(
    entry: Entry,
    ask: () => Promise<AnswerText>,
    alone: (entry: Entry, nowMs: number) => Maybe<AnswerText>,
  ): Promise<AnswerText> {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof PoolFailure) || entry.policy.onFailure !== "local") throw error;
      const answer = await alone(...this.#host.openAlone(entry));
      return JSON.stringify({ ...(JSON.parse(answer) as Decided), source: "fallback" } satisfies Decided);
    }
  }
}

/** What the pool said, with the wait for slots that come free here before they are the pool's again. */
function sooner(
  entry: Entry,
  rules: readonly RuleDecision[],
  cost: Cost,
  nowMs: number,
): readonly RuleDecision[] {
  return rules.map((rule, index): RuleDecision => {
    const book = entry.books[index];
    if (rule.success || rule.retryAfterMs === null || book?.rule.lease === undefined) return rule;
    const hereMs = leaseWaitMs(book, costOf(book.rule, cost), nowMs) ?? Infinity;
    return { ...rule, retryAfterMs: Math.min(rule.retryAfterMs, hereMs) };
  });
}

/** The same answer in the pool's figures, which knows what is left and how long to wait. */
function withPoolsFigures(answer: AnswerText, rules: readonly RuleDecision[]): AnswerText {
  const decided = JSON.parse(answer) as Partial<Decided>;
  const isAdmission = (each: readonly RuleDecision[]) => each.every(({ success }) => success);
  if (decided.rules === undefined || isAdmission(decided.rules) !== isAdmission(rules)) return answer;
  return JSON.stringify({ ...decided, rules, source: "pool" });
}
