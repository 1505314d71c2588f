/** The required answers of a pool's script, by the functions of objects. The model never loses writes. */
import {
  type NewHold,
  UNTOUCHED,
  decideTogether,
  outstandingOf,
  place,
  refund,
  settle,
  untouchedAtMs,
  withoutTaking,
} from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import { costOf, type Rule } from "../../core/policies/policy.ts";
import { grantedTogether, isSpare, type Wish } from "../../core/reservations/sizing.ts";
import { withRefunded } from "../../durable-objects/keys/idempotency.ts";
import type { PoolGrant, HolderMessage, PoolAnswer, PoolCall } from "../../durable-objects/pool/protocol.ts";
import { decide } from "./decide.ts";
import { surplus } from "./plain-accounts.ts";
import { type Holder, type Kept, type Own, PoolTerms } from "./pool-records.ts";
import { isAllOf, SIZING, type PartOfCall } from "./pools.ts";

export class PoolModel {
  /** By the plan of the call. */
  rules: readonly Rule[];
  nowMs = 0;
  readonly #terms = new PoolTerms();
  #accounts: readonly Account[];
  #holders: ReadonlyMap<string, Holder> = new Map();
  #fence = 0;
  #reclaimed = 0;
  readonly #answers = new Map<string, Kept>();
  readonly #ended = new Map<string, PoolAnswer | undefined>();
  /** When callers' holds end, by their ids; also of holds without units. */
  readonly #claims = new Map<string, number>();
  /** Whether the current call has changed anything. */
  #isChanged = false;

  constructor(rules: readonly Rule[]) {
    this.rules = rules;
    this.#accounts = rules.map(() => UNTOUCHED);
  }

  get ruleAccounts() {
    return this.rules.map((rule, index) => ({ rule, account: this.#accounts[index] ?? UNTOUCHED }));
  }

  call(part: PartOfCall, clockMs: number): PoolAnswer {
    const call: PoolCall & PartOfCall = { rules: [], cost: this.rules.map(() => 0), ...part };
    const before = [this.nowMs, this.#accounts, this.#holders, this.#reclaimed, this.#terms.since] as const;
    this.#isChanged = false;
    this.nowMs = Math.max(this.nowMs, clockMs);
    this.#advance();
    this.#isChanged = this.#terms.follow(this.rules, call, this.nowMs);
    const answer = this.#answer(call, part.answerName ?? "");
    // A call that changes nothing leaves nothing behind, not even its instant.
    if (!this.#isChanged)
      [this.nowMs, this.#accounts, this.#holders, this.#reclaimed, this.#terms.since] = before;
    return answer;
  }

  #advance(): void {
    // The script does not know of which capacity held units are: those of a larger bucket count in full.
    this.#accounts = this.#accounts.map(({ state, holds }) => ({
      state,
      holds: holds.map((hold) => ({ ...hold, capacity: undefined })),
    }));
    const leases = this.ruleAccounts.flatMap(({ rule, account }) => (rule.lease ? account.holds : []));
    const ended = leases.filter(({ id, expiresAtMs }) => id.startsWith("h:") && expiresAtMs <= this.nowMs);
    this.#reclaimed += new Set(ended.map(({ id }) => id)).size;
    this.#accounts = this.ruleAccounts.map(({ rule, account }, index) =>
      this.#terms.brought(rule, index, account, this.nowMs),
    );
    this.#holders = new Map([...this.#holders].filter(([, { mark }]) => mark.untilMs > this.nowMs));
  }

  #answer(call: PoolCall & PartOfCall, answerName: string): PoolAnswer {
    const { holding } = call;
    if (holding === undefined) return this.#decided(call, answerName);
    const record = this.#holders.get(holding.holder);
    if (record !== undefined && holding.turn <= record.turn) return this.#overtaken(call, record, answerName);
    const own = this.#note(holding, record);
    this.#isChanged = true;
    const tentative = {
      id: own.id,
      expiresAtMs: Math.max(this.nowMs + holding.lifetime.heldMs, own.beforeMs),
    };
    const answer = this.#decided(call, answerName, tentative);
    const isLeasing = this.#isLeasing(call, answer);
    const granted = this.#grant(holding, own, isLeasing);
    return { ...answer, granted, ...this.#next() };
  }

  #overtaken(call: PoolCall & PartOfCall, record: Holder, answerName: string): PoolAnswer {
    const { holding } = call;
    const held = this.#accounts.flatMap(({ holds }) => holds).find(({ id }) => id === record.hold);
    const untilMs = Math.max(held?.expiresAtMs ?? 0, this.nowMs + (holding?.lifetime.heldMs ?? 0));
    const answer = this.#decided(call, answerName, { id: record.hold, expiresAtMs: untilMs }, true);
    const token = this.#isLeasing(call, answer)
      ? { fencingToken: String(this.#tokens(SIZING.fencingTokens)) }
      : {};
    const granted: PoolGrant = {
      overtakenBy: record.turn,
      mark: record.mark,
      isNew: false,
      units: this.rules.map(() => 0),
      ttlMs: 0,
      isContended: this.#isContended(holding?.holder ?? ""),
      ...surplus(this.ruleAccounts, this.nowMs),
      ...token,
    };
    return { ...answer, granted, ...this.#next() };
  }

  #isLeasing(call: PoolCall, answer: PoolAnswer): boolean {
    const isAdmitted = answer.rules?.every(({ success }) => success) === true && this.#isFirst;
    const hasLeased = this.rules.some(
      ({ lease }, index) => lease !== undefined && (call.cost[index] ?? 0) > 0,
    );
    return isAdmitted && hasLeased && call.op === "limit";
  }

  #next(): Pick<PoolAnswer, "next"> {
    const next = withoutTaking(this.ruleAccounts, this.nowMs, 1);
    return next.some(({ success }) => !success) ? { next } : {};
  }

  /** Whether the answer was decided now, and not repeated. */
  #isFirst = true;

  #decided(call: PoolCall & PartOfCall, answerName: string, own?: NewHold, isOvertaken = false): PoolAnswer {
    const { op, request } = call;
    this.#isFirst = true;
    const units = Object.fromEntries(this.rules.map(({ name }, index) => [name, call.cost[index] ?? 0]));
    if (op === "settle" || op === "renew") return this.#claimed(call);
    if (op === "reset") return this.#reset();
    if (op === "peek")
      return { rules: withoutTaking(this.ruleAccounts, this.nowMs, units), report: this.#report() };
    const earlier = request === undefined ? undefined : this.#answers.get(answerName);
    if (earlier !== undefined && earlier.request !== request)
      return { conflict: { request: earlier.request ?? "" } };
    if (earlier !== undefined && earlier.isDenied !== true) {
      this.#isFirst = false;
      return op === "hold" ? this.#heldAgain(earlier.answer) : earlier.answer;
    }
    const remember = (answer: PoolAnswer, isDenied = false) => {
      const charged = { units, atMs: this.nowMs, rules: this.rules };
      const charge = op === "limit" && !isDenied ? { charge: charged } : {};
      if (request !== undefined) this.#answers.set(answerName, { request, answer, isDenied, ...charge });
    };
    if (op === "refund") return this.#refund(call, units, remember);
    return op === "hold"
      ? this.#hold(call, units, remember)
      : // A cost that is charged once is used at once.
        this.#limit(
          units,
          earlier !== undefined,
          remember,
          request === undefined && this.rules.some(({ lease }) => lease !== undefined) ? own : undefined,
          isOvertaken,
        );
  }

  #refund(
    { isNamed, chargeName = "" }: PartOfCall,
    units: Record<string, number>,
    remember: (answer: PoolAnswer) => void,
  ): PoolAnswer {
    const { charge, ...spent }: Kept = this.#answers.get(chargeName) ?? { request: "", answer: {} };
    if (isNamed && charge === undefined) return { missing: true };
    this.#isChanged = true;
    const isSome = Object.entries(charge?.units ?? {}).some(([name, most]) => most * (units[name] ?? 0) > 0);
    if (isNamed && isAllOf(charge?.units, units)) this.#answers.delete(chargeName);
    else if (isNamed && isSome) this.#answers.set(chargeName, spent);
    const before = this.ruleAccounts;
    this.#accounts = before.map(({ rule, account }, index) => {
      const most = costOf(rule, units);
      const taken = Math.min(most, charge?.units[rule.name] ?? 0);
      if (charge !== undefined && isNamed) {
        const returned = this.#terms.returned(index, charge.atMs, this.nowMs);
        return refund(rule, account, this.nowMs, taken, charge.atMs, charge.rules[index]?.capacity, returned);
      }
      return refund(rule, account, this.nowMs, most);
    });
    const rules = withoutTaking(this.ruleAccounts, this.nowMs, 0);
    const taken = Object.entries(charge?.units ?? {}).filter(([, most]) => most > 0);
    const named = isNamed
      ? Object.fromEntries(taken.map(([name, most]) => [name, { units: most, terms: "" }]))
      : undefined;
    const answer = { rules: withRefunded(rules, [before, this.ruleAccounts], units, named, this.nowMs) };
    remember(answer);
    return answer;
  }

  #hold(call: PoolCall, units: Record<string, number>, remember: (answer: PoolAnswer) => void): PoolAnswer {
    const hold = { id: `h:${call.id}`, expiresAtMs: this.nowMs + (call.ttlMs ?? 0) };
    const { admitted, accounts, rules } = decideTogether(this.ruleAccounts, this.nowMs, units, {
      hold,
      lease: hold,
    });
    if (accounts !== undefined) [this.#accounts, this.#isChanged] = [accounts, true];
    if (!admitted) return { rules };
    const leases = this.rules.some(({ lease, name }) => lease !== undefined && units[name] !== 0);
    const token = leases ? { fencingToken: String(this.#tokens(1)) } : {};
    const answer = { rules, hold: { id: call.id ?? "", expiresAfterMs: call.ttlMs ?? 0, ...token } };
    this.#ended.set(call.id ?? "", undefined);
    this.#claims.set(call.id ?? "", hold.expiresAtMs);
    remember(answer);
    return answer;
  }

  #limit(
    units: Record<string, number>,
    isCounted: boolean,
    remember: (answer: PoolAnswer, isDenied: boolean) => void,
    own: NewHold | undefined,
    isOvertaken: boolean,
  ): PoolAnswer {
    const taking = own === undefined ? {} : isOvertaken ? { lease: own } : { hold: own, lease: own };
    // Units that join a hold become one hold with it. A denial leaves that hold as it is.
    const isAdmitted = decideTogether(this.ruleAccounts, this.nowMs, units).admitted;
    const ruleAccounts = isAdmitted ? this.#joined(units, own, isOvertaken) : this.ruleAccounts;
    const { admitted, accounts, rules } = decideTogether(ruleAccounts, this.nowMs, units, taking);
    if (!admitted && isCounted) return { rules: withoutTaking(this.ruleAccounts, this.nowMs, units) };
    if (accounts === undefined || Object.values(units).every((each) => each === 0)) return { rules };
    this.#accounts = this.#merged(accounts, own);
    this.#isChanged = true;
    remember({ rules }, !admitted);
    return { rules };
  }

  /** The accounts with the holder's hold extended as if units had joined it. */
  #joined(units: Record<string, number>, own: NewHold | undefined, isOvertaken: boolean) {
    if (own === undefined) return this.ruleAccounts;
    const isAny = this.rules.some(({ name, lease }) => units[name] !== 0 && (!isOvertaken || lease));
    return this.ruleAccounts.map(({ rule, account }) => {
      const held = account.holds.find(({ id }) => id === own.id);
      if (held === undefined || !isAny) return { rule, account };
      const without = account.holds.filter((each) => each !== held);
      return {
        rule,
        account: place({ state: account.state, holds: without }, { ...held, expiresAtMs: own.expiresAtMs }),
      };
    });
  }

  #merged(accounts: readonly Account[], own: NewHold | undefined): Account[] {
    return accounts.map(({ state, holds }) => {
      const [first, ...others] = holds.filter(({ id }) => id === own?.id);
      if (first === undefined) return { state, holds };
      const units = others.reduce((sum, each) => sum + each.units, first.units);
      const without = holds.filter(({ id }) => id !== own?.id);
      return place({ state, holds: without }, { ...first, units });
    });
  }

  #claimed({ op, id = "", ttlMs = 0, used }: PoolCall): PoolAnswer {
    const holdId = `h:${id}`;
    const isThere = (this.#claims.get(id) ?? 0) > this.nowMs;
    if (!isThere && (op === "renew" || !this.#ended.has(id))) return { missing: true };
    if (!isThere) return this.#ended.get(id) ?? { rules: withoutTaking(this.ruleAccounts, this.nowMs, 0) };
    this.#isChanged = true;
    if (op === "renew") {
      const expiresAtMs = this.nowMs + ttlMs;
      this.#claims.set(id, expiresAtMs);
      this.#accounts = this.#accounts.map((account) => {
        const hold = account.holds.find((each) => each.id === holdId);
        const holds = account.holds.filter((each) => each !== hold);
        return hold === undefined ? account : place({ ...account, holds }, { ...hold, expiresAtMs });
      });
      return { expiresAfterMs: ttlMs };
    }
    this.#claims.delete(id);
    this.#accounts = this.ruleAccounts.map(({ rule, account }, index) => {
      const units = rule.lease === undefined ? (used?.[index] ?? 0) : 0;
      const settled = settle(rule, account, this.nowMs, holdId, units);
      if (settled !== account || units === 0) return settled;
      return { ...account, state: rule.algorithm.debit(rule.config, account.state, this.nowMs, units) };
    });
    const answer = { rules: withoutTaking(this.ruleAccounts, this.nowMs, 0) };
    this.#ended.set(id, answer);
    return answer;
  }

  #reset(): PoolAnswer {
    this.#isChanged = true;
    this.#accounts = this.#accounts.map(({ holds }) => ({
      state: undefined,
      holds: holds.filter(({ id }) => id.startsWith("r:")),
    }));
    this.#answers.clear();
    this.#ended.clear();
    this.#claims.clear();
    this.#reclaimed = 0;
    return { rules: withoutTaking(this.ruleAccounts, this.nowMs, 0) };
  }

  #report(): NonNullable<PoolAnswer["report"]> {
    const ofCallers = (isLeased: boolean) =>
      new Set(
        this.ruleAccounts
          .filter(({ rule }) => (rule.lease !== undefined) === isLeased)
          .flatMap(({ account }) => account.holds.map(({ id }) => id))
          .filter((id) => id.startsWith("h:")),
      ).size;
    const holders = [...this.#holders.values()];
    return {
      outstanding: Math.max(...this.#accounts.map(outstandingOf)),
      holds: ofCallers(false),
      leases: ofCallers(true) + holders.reduce((sum, { leases }) => sum + leases, 0),
      reclaimed: this.#reclaimed,
      queueLength: holders.reduce((sum, { queueLength }) => sum + queueLength, 0),
    };
  }

  #heldAgain(answer: PoolAnswer): PoolAnswer {
    const expiresAtMs = this.#claims.get(answer.hold?.id ?? "") ?? 0;
    if (answer.hold === undefined || expiresAtMs <= this.nowMs) return answer;
    return { ...answer, hold: { ...answer.hold, expiresAfterMs: expiresAtMs - this.nowMs } };
  }

  #tokens(count: number): number {
    const first = Math.max(this.#fence + 1, this.nowMs * 1_000);
    this.#fence = first + count - 1;
    return first;
  }

  #isContended(holder: string): boolean {
    return [...this.#holders].some(
      ([id, { untilMs, wanted, queueLength }]) =>
        id !== holder && untilMs > this.nowMs && (queueLength > 0 || wanted.some((units) => units > 0)),
    );
  }

  #note(holding: HolderMessage, record: Holder | undefined): Own {
    const { isFresh, seen, turn } = holding;
    const isOther =
      record === undefined || isFresh || (seen !== undefined && seen.turn < (record.begun ?? 0));
    const said = this.ruleAccounts.map(({ rule, account }, index) => {
      const before = isOther ? 0 : (record.used[index] ?? 0);
      const used = Math.max(holding.used[index] ?? 0, before);
      const held = account.holds.find(({ id }) => id === record?.hold);
      const wouldKeep = holding.kept[index] ?? 0;
      const isOver = rule.lease !== undefined && record !== undefined;
      const lacking = isOver ? Math.max(0, wouldKeep - (held?.units ?? 0)) : 0;
      return { used, delta: used - before, kept: wouldKeep - lacking, held, lacking };
    });
    const isNew =
      isOther ||
      said.some(
        ({ delta, kept, held }, index) =>
          this.rules[index]?.lease === undefined &&
          (held === undefined ? kept > 0 : delta + kept > held.units),
      );
    const holdAtMs = Math.max(0, ...said.map(({ held }) => held?.expiresAtMs ?? 0));
    const keepsLeases = said.some(({ kept }, index) => this.rules[index]?.lease !== undefined && kept > 0);
    const beforeMs = !isNew || keepsLeases ? holdAtMs : 0;
    const id = isNew ? `r:${holding.holder}.${turn}` : record.hold;
    const expiresAtMs = Math.max(beforeMs, this.nowMs + holding.lifetime.heldMs);
    this.#accounts = this.ruleAccounts.map(({ rule, account }, index) => {
      const { held, delta = 0, kept = 0 } = said[index] ?? {};
      if (rule.lease === undefined && (isNew || held === undefined)) return account;
      const taken = rule.lease === undefined ? delta : 0;
      const settled = held === undefined ? account : settle(rule, account, this.nowMs, held.id, taken);
      const left = isOther && held !== undefined ? Math.max(0, held.units - kept) : 0;
      const after = left > 0 && held !== undefined ? place(settled, { ...held, units: left }) : settled;
      return kept === 0 ? after : place(after, { id, units: kept, expiresAtMs });
    });
    const kept = said.map((each, index) => (isNew && this.rules[index]?.lease === undefined ? 0 : each.kept));
    return {
      id,
      isNew,
      used: said.map(({ used }) => used),
      kept,
      lacking: said.map(({ lacking }) => lacking),
      beforeMs,
      rememberMs: record?.mark.untilMs ?? 0,
      begun: isOther ? turn : (record.begun ?? 0),
    };
  }

  #grant(holding: HolderMessage, own: Own, isLeasing: boolean): PoolGrant {
    const { units, lifetime } = this.#sized(holding, own);
    const expiresAtMs = Math.max(own.beforeMs, this.nowMs + lifetime.heldMs);
    this.#accounts = this.#accounts.map((account, index) => {
      const held = account.holds.find(({ id }) => id === own.id);
      const holds = account.holds.filter((each) => each !== held);
      const all = (held?.units ?? 0) + (units[index] ?? 0);
      const without = { state: account.state, holds };
      return all === 0 ? without : place(without, { id: own.id, units: all, expiresAtMs });
    });
    const mark = {
      turn: holding.turn,
      atMs: this.nowMs,
      untilMs: Math.max(own.rememberMs, expiresAtMs + SIZING.rememberedMs),
      wholeMs: Math.max(
        ...this.ruleAccounts.map(({ rule, account }) => untouchedAtMs(rule, account, this.nowMs)),
      ),
    };
    const { turn, wanted, leases, queueLength } = holding;
    const { id: hold, used, begun } = own;
    const record = { turn, begun, hold, used, wanted, untilMs: expiresAtMs, mark };
    this.#holders = new Map(this.#holders).set(holding.holder, { ...record, leases, queueLength });
    const isLeased = this.rules.some(({ lease }, index) => lease !== undefined && (units[index] ?? 0) > 0);
    const token = isLeasing || isLeased ? { fencingToken: String(this.#tokens(SIZING.fencingTokens)) } : {};
    const isContended = this.#isContended(holding.holder);
    const change = units.map((each, index) => each - (own.lacking[index] ?? 0));
    const over = surplus(this.ruleAccounts, this.nowMs);
    return { mark, isNew: own.isNew, units: change, ...over, ttlMs: lifetime.ttlMs, isContended, ...token };
  }

  #sized(holding: HolderMessage, own: Own) {
    const { lifetime, shortest } = holding;
    const admits = this.rules.every(
      ({ algorithm, config, lease }) => lease !== undefined || algorithm.localDecisions(config).admits,
    );
    if (!admits) return { units: this.rules.map(() => 0), lifetime: shortest };
    const others = [...this.#holders].filter(
      ([id, { untilMs }]) => id !== holding.holder && untilMs > this.nowMs,
    );
    const wishes = this.ruleAccounts.map(({ rule, account }, index): Wish => ({
      wanted: holding.wanted[index] ?? 0,
      kept: own.kept[index] ?? 0,
      free: decide(rule, account, this.nowMs, 0).remaining,
      max: rule.capacity * SIZING.mostShare,
      heldByOthers: account.holds
        .filter(({ id }) => id.startsWith("r:") && id !== own.id)
        .reduce((sum, { units }) => sum + units, 0),
      wantedByOthers: others.reduce((sum, [, { wanted }]) => sum + (wanted[index] ?? 0), 0),
      isShort: holding.isShort,
    }));
    const units = grantedTogether(wishes);
    const isSpared = wishes.every(({ kept, free }, index) => isSpare(kept + (units[index] ?? 0), free));
    if (lifetime.ttlMs <= shortest.ttlMs || isSpared) return { units, lifetime };
    const part = shortest.ttlMs / lifetime.ttlMs;
    const shorter = wishes.map((wish) => ({ ...wish, wanted: Math.floor(wish.wanted * part) }));
    return { units: grantedTogether(shorter), lifetime: shortest };
  }
}
