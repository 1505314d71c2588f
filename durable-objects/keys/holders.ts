import { callerIn } from "../../core/protocol/names.ts";
import { type GivenRate, UNKNOWN_RATES } from "./given-rates.ts";

interface HolderUnits {
  readonly used: number;
  readonly wanted: number;
  /** Wanted units in a millisecond. */
  readonly demand: number;
  /** Of its bucket: the most units that it had after its last message, if it used none since it began. */
  readonly mayHave: number;
  /** Of a region's bucket of a log or window: the rates that it had. */
  readonly rates?: readonly GivenRate[] | undefined;
}

/** An isolate, or a client in another process, with reserved units. A crash forgets it (write-behind.ts). */
export interface KnownHolder {
  /** The number of the last accepted message. Others up to it are late or repeated, and ignored. */
  readonly turn: number;
  /** When that message came. */
  readonly atMs: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** Its hold before it claimed units that were not held for it. Until that ends, it is granted no other. */
  readonly replaced?: string | undefined;
  /** Whose calls it decides, where groups share a rule. */
  readonly group?: string | undefined;
  /** Of a region's object: its holders. */
  readonly count?: number | undefined;
  /** Of a region's object without a bucket: it has heard of few calls. */
  readonly knowsFew?: boolean | undefined;
  /** By name: another version of the policy may have other rules, or another order. */
  readonly rules: ReadonlyMap<string, HolderUnits>;
  /** Until then its requests count when units are divided, unless it sends another. */
  readonly untilMs: number;
}

/** The most holders of one key, at about 300 bytes each. Further isolates always call the object. */
const MAX_HOLDERS = 4_000;
/** The part of a key that the clients of one caller may hold together while others want some of it. */
export const MAX_SHARE_OF_CALLER = 1 / 2;
/** The most clients of one caller: they cannot keep isolates from reserving. */
const MAX_HOLDERS_OF_CALLER = 500;
/** A caller's clients together want at most as much as this many holders that each want their maximum. */
const MAX_WISHES_OF_CALLER = 4;
/** How long a holder is kept after its end, in milliseconds: its messages may arrive late. */
const REMEMBERED_MS = 5_000;
/** With fewer calls a second, one object costs less than ten, however many holders make them. */
const MIN_CALLS = 50;
/** Messages are counted over about so long. */
const MESSAGES_MS = 150;
/** So many that come at once fill the object: those behind them wait, and far more may come. */
const RUSH_HOLDERS = 128;
const RUSH_MS = 200;
/** Holders that were sent to their regions are counted there, and a region's object reports them soon, but not at once. */
const FIRST_REPORTS_MS = 5_000;
/** An isolate whose client has asked counts as a holder for so long. */
const FIRST_MS = 2_000;
/** About the bytes of memory of a holder without its hold. */
export const HOLDER_BYTES = 300;

export class Holders extends Map<string, KnownHolder> {
  /** By rule, what each needs of those that wait for their first answer: they come next. */
  expected: ReadonlyMap<string, ReadonlyMap<string, number>> = new Map();
  /** Of a region's object: so many were sent to it, and some of them have still to come. */
  sentHere = 0;
  #regionalUntilMs = -Infinity;
  /** By isolate, when a client of it has asked last. */
  readonly #firsts = new Map<string, number>();
  /** Those that were sent to their regions since these have been asked, and where that is. */
  readonly #sent = new Map<string, string | undefined>();
  /** Those longer ago count less. */
  #messagesPerSecond = 0;
  #messageAtMs = -Infinity;
  #wasBehind = false;

  hasRoomFor(id: string): boolean {
    if (this.has(id) || this.size < MAX_HOLDERS_OF_CALLER) return true;
    const caller = callerIn(id);
    if (this.size >= MAX_HOLDERS) return false;
    return caller === undefined || this.#countOfCaller(caller) < MAX_HOLDERS_OF_CALLER;
  }

  /** Whether as many come at once as one caller's clients may be: parts of their own would come late. */
  areTooManyAtOnce(nowMs: number): boolean {
    return this.firstsAt(nowMs) >= MAX_HOLDERS_OF_CALLER;
  }

  #countOfCaller(caller: string): number {
    let count = 0;
    for (const id of this.keys()) if (callerIn(id) === caller) count += 1;
    return count;
  }

  /** Those that hold units, or whose requests count when units are divided. */
  countAt(nowMs: number): number {
    let count = 0;
    for (const { untilMs } of this.values()) if (untilMs > nowMs) count += 1;
    return count;
  }

  /** Those, with those that ask objects in regions. */
  countWithRegions(nowMs: number): number {
    let count = 0;
    for (const { untilMs, count: there = 1 } of this.values()) if (untilMs > nowMs) count += there;
    return count;
  }

  /** Whether some ask objects in regions. */
  areInRegions(nowMs: number): boolean {
    for (const { untilMs, count } of this.values()) if (untilMs > nowMs && count !== undefined) return true;
    return false;
  }

  /**
   * The units of a rule that calls need in a millisecond: as holders say, or at first as many as messages come.
   * @param rate of the rule: a client may say anything, and counts as a few that have equal parts of it
   */
  demandOf(rule: string, rate: number, nowMs: number): number {
    const most = (MAX_WISHES_OF_CALLER * rate) / this.size;
    let demand = 0;
    for (const { untilMs, rules } of this.values())
      if (untilMs > nowMs) demand += Math.min(most, rules.get(rule)?.demand ?? 0);
    return Math.max(demand, this.#messagesPerSecond / 1_000);
  }

  /** A client of this isolate has asked for a decision alone. */
  noteFirst(isolate: string, nowMs: number): void {
    this.#firsts.delete(isolate);
    if (this.firstsAt(nowMs) < MAX_HOLDERS) this.#firsts.set(isolate, nowMs);
  }

  /** How many isolates a client has asked through lately. */
  firstsAt(nowMs: number): number {
    for (const [isolate, atMs] of this.#firsts) {
      if (nowMs < atMs + FIRST_MS) break;
      this.#firsts.delete(isolate);
    }
    return this.#firsts.size;
  }

  /** How many there are, of the group if one is given. */
  countOf(group: string | undefined): number {
    if (group === undefined) return this.size;
    let count = 0;
    for (const holder of this.values()) if (holder.group === group) count += 1;
    return count;
  }

  /**
   * Whether there are so many, with so many calls, that they ask objects in their regions. While those have holders, half of
   * both is enough, and at first they need time to say how many they have, so that they do not come and go.
   * @param areCutByWindow of a log or window: many that come at once are not enough
   */
  areForRegions(most: number, areCutByWindow: boolean, nowMs: number): boolean {
    let [all, regional, calls, rushing] = [0, 0, 0, 0];
    for (const { atMs, untilMs, count, rules } of this.values()) {
      if (untilMs <= nowMs) continue;
      all += count ?? 1;
      if (atMs > nowMs - RUSH_MS) rushing += 1;
      if (count === undefined) continue;
      regional += count;
      calls += 1_000 * Math.max(...[...rules.values()].map(({ demand }) => demand));
    }
    const firsts = this.firstsAt(nowMs);
    // Otherwise its clients would count with their isolates, and all leave when they are half as many (leaving.ts).
    all = areCutByWindow ? Math.max(all, firsts) : all + firsts;
    // Of isolates it is not known how many calls they have, but how many messages come.
    this.#messagesPerSecond *= Math.exp(Math.min(0, this.#messageAtMs - nowMs) / MESSAGES_MS);
    this.#messagesPerSecond += 1_000 / MESSAGES_MS;
    this.#messageAtMs = nowMs;
    if (nowMs < this.#regionalUntilMs) return true;
    if (regional > 0) return all >= most / 2 && calls >= MIN_CALLS / 2;
    const isRush = !areCutByWindow && rushing >= RUSH_HOLDERS;
    if ((all < most && !isRush) || this.#messagesPerSecond < MIN_CALLS) return false;
    this.#regionalUntilMs = nowMs + FIRST_REPORTS_MS;
    this.#sent.clear();
    return true;
  }

  /** A holder asks the object in its region from now on. */
  noteLeaving(id: string, near: string | undefined, nowMs: number): void {
    if (nowMs < this.#regionalUntilMs && this.#sent.size < MAX_HOLDERS) this.#sent.set(id, near);
  }

  /** Of the holders that were sent to their regions lately: how many, and how many of them to this one. */
  sentTo(near: string | undefined, nowMs: number): { readonly all: number; readonly there: number } {
    if (near === undefined || nowMs >= this.#regionalUntilMs) return { all: 0, there: 0 };
    let there = 0;
    for (const each of this.#sent.values()) if (each === near) there += 1;
    return { all: this.#sent.size, there };
  }

  /**
   * How many times as many holders were sent to regions, or to this one, as have been heard by now. What those need that have
   * not asked yet is left for them: otherwise the first ones take all.
   * @param own those that are heard by this message, of a holder which is not counted by its id
   */
  unheardFactor(id: string, own: number, nowMs: number): number {
    const isRegion = this.sentHere > 0;
    if (!isRegion && nowMs >= this.#regionalUntilMs) return 1;
    let heard = own + this.expected.size;
    for (const [each, { untilMs, count = isRegion ? 1 : 0 }] of this)
      if (each !== id && untilMs > nowMs) heard += count;
    return Math.max(1, (isRegion ? this.sentHere : this.#sent.size) / Math.max(1, heard));
  }

  /** The holder's requests count until this instant at least, unless it has ended or asks its region by now. */
  stay(id: string, untilMs: number, nowMs: number): void {
    const known = this.get(id);
    if (known !== undefined && known.untilMs > nowMs && known.untilMs < untilMs)
      this.set(id, { ...known, untilMs });
  }

  /** Deletes holders that ended long enough ago that no message of theirs can still arrive. */
  forgetEnded(nowMs: number): void {
    for (const [id, { untilMs }] of this) if (untilMs + REMEMBERED_MS <= nowMs) this.delete(id);
  }

  /** @param isBehind the object's clock was put back: nobody knows how long holders have had their rates */
  noteClock(isBehind: boolean): void {
    if (isBehind || this.#wasBehind) this.#forgetRates();
    this.#wasBehind = isBehind;
  }

  #forgetRates(): void {
    for (const [id, known] of this) {
      const rules = [...known.rules].map(
        ([name, units]) => [name, { ...units, rates: units.rates && UNKNOWN_RATES }] as const,
      );
      this.set(id, { ...known, rules: new Map(rules) });
    }
  }

  /** What other holders of a rule want, up to `max` each. @param group present: only those of this group */
  others(id: string | undefined, rule: string, max: number, nowMs: number, group?: string) {
    const own = id === undefined ? undefined : callerIn(id);
    const wishes = new Map<string, number>();
    let [wanted, demand] = [0, 0];
    let isContested = false;
    for (const [each, { rules, untilMs, group: ofOther }] of this) {
      const units = rules.get(rule);
      if (each === id || units === undefined || untilMs <= nowMs) continue;
      if (group !== undefined && group !== ofOther) continue;
      const caller = callerIn(each);
      demand += units.demand;
      if (caller === undefined) wanted += units.wanted;
      else wishes.set(caller, (wishes.get(caller) ?? 0) + units.wanted);
      if (own === undefined || caller !== own) isContested ||= units.wanted > 0;
    }
    for (const [caller, wish] of wishes)
      wanted += caller === own ? wish : Math.min(wish, MAX_WISHES_OF_CALLER * max);
    return { wanted, isContested, demand };
  }

  /**
   * The part of a rule's rate that is a holder's, by what calls need. A caller's clients may say anything: together they
   * count as at most half of the rate, or as much as all isolates.
   *
   * @param said what the holder says that its calls need in a millisecond, as the `rate` of the rule
   * @param each of that what a holder in its region needs, if it knows: those in regions that know few calls need as much
   */
  shareOf(
    id: string,
    rule: string,
    { said, rate, each: need = 0 }: { said: number; rate: number; each?: number },
    nowMs: number,
  ) {
    const own = callerIn(id);
    const ofCallers = new Map<string, number>();
    let [ofIsolates, ofOwn] = [own === undefined ? said : 0, said];
    let isContested = false;
    for (const [each, { rules, untilMs, count = 0, knowsFew }] of this) {
      const units = rules.get(rule);
      if (each === id || units === undefined || untilMs <= nowMs) continue;
      const caller = callerIn(each);
      const least = knowsFew === true ? count * need : 0;
      if (caller === undefined) ofIsolates += Math.max(least, units.demand);
      else if (caller === own) ofOwn += units.demand;
      else ofCallers.set(caller, (ofCallers.get(caller) ?? 0) + units.demand);
      if (own !== undefined && caller !== own) isContested ||= units.wanted > 0;
    }
    for (const [each, demand] of this.expected) if (each !== id) ofIsolates += demand.get(rule) ?? 0;
    if (own !== undefined) ofCallers.set(own, ofOwn);
    const max = Math.max(MAX_SHARE_OF_CALLER * rate, ofIsolates);
    let [demand, counted] = [ofIsolates, ofIsolates];
    for (const each of ofCallers.values()) {
      demand += each;
      counted += Math.min(each, max);
    }
    if (own === undefined) return { demand, share: said / counted, isContested };
    const ofCaller = Math.min(ofOwn, max) / counted;
    const part = isContested ? Math.min(ofCaller, MAX_SHARE_OF_CALLER) : ofCaller;
    return { demand, share: (part * said) / ofOwn, isContested };
  }
}
