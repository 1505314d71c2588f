import { slotTermsOf } from "../algorithms/fair/fair-slots.ts";
/**
 * Whose turn it is where groups share slots (core/algorithms/fair/slot-shares.ts): the first caller of the group that comes first,
 * as in start-time fair queueing (Goyal, Vin and Cheng, 1996), with slots in place of packets.
 *
 * A group that with its call stays within its part comes before one that does not. Among those the group comes first that
 * has had the fewest slots for its weight, in slot-milliseconds, since it began to wait: its tag. One that begins to wait
 * starts with the least tag of those that wait already, if its own is less, so it is owed nothing for the time before.
 * So of groups that always wait each holds the same for its weight on average, also where there are fewer slots than
 * groups. Nothing is known here when nobody waits, and nothing is stored.
 */
import { rateWeightsOf } from "../algorithms/fair/fair.ts";
import { type HeldByName, namesOf, type SlotTerms } from "../algorithms/fair/slot-shares.ts";
import { costOf, type NamingPlan, type Rule } from "../policies/policy.ts";
import { heldByGroup, heldUnits, type RuleAccount } from "./hold.ts";
import type { QueuedCost } from "./queue-waits.ts";

type Queued = Pick<QueuedCost, "cost" | "group" | "inForce">;

/** A call in a line. */
export interface QueuedCall extends QueuedCost {
  /** It waits only for calls on several keys (turns.ts): where nothing is leased, others may pass it. */
  readonly isBrief?: boolean | undefined;
  /** `undefined`: the caller is answered. Otherwise the time to the next try; Infinity: unknown. */
  attempt(nowMs: number): number | undefined;
  /** @param isPushedOut a full line has no place for it any more (`makeRoom`) */
  giveUp(nowMs: number, isPushedOut?: boolean): void;
}

/** A key whose line it is. Its accounts change as calls are served. */
export interface LineOwner {
  readonly ruleStates: readonly RuleAccount[];
  /** As calls of a plan see them, in the same order. */
  seenBy(call: NamingPlan): readonly RuleAccount[];
}

/** A group that waits, with its first call. */
interface Head<Call extends Queued> {
  readonly group: string;
  readonly first: Call;
  readonly isWithin: boolean;
  readonly tag: number;
  /** Slots for its weight. */
  readonly level: number;
}

interface FairRule {
  readonly rule: Rule;
  readonly terms: SlotTerms;
  /** The limit of the plan that a call names. */
  readonly limitFor: (call: NamingPlan) => number;
  readonly held: HeldByName;
}

/** The rule of whose slots groups have parts, with what they hold. */
function fairRuleOf(owner: LineOwner): FairRule | undefined {
  for (const [index, { rule, account }] of owner.ruleStates.entries()) {
    const terms = slotTermsOf(rule.config);
    if (terms === undefined) continue;
    const limitFor = ({ inForce }: NamingPlan) =>
      slotTermsOf(owner.seenBy({ inForce })[index]?.rule.config ?? rule.config)?.limit ?? terms.limit;
    return { rule, terms, limitFor, held: heldByGroup(account.holds) };
  }
  return undefined;
}

/** What groups share: slots, or a rate. `undefined`: nothing, and calls are served as they come. */
export function sharedIn({
  ruleStates,
}: Pick<LineOwner, "ruleStates">):
  | { readonly isRate: boolean; readonly weightOf: SlotTerms["weightOf"] }
  | undefined {
  for (const { rule } of ruleStates) {
    const rate = rateWeightsOf(rule.config);
    const weightOf = rate ?? slotTermsOf(rule.config)?.weightOf;
    if (weightOf !== undefined) return { isRate: rate !== undefined, weightOf };
  }
  return undefined;
}

/** Whether the rules that lease have as many units free: then only its share can deny a call. */
function fits(owner: LineOwner, { cost, inForce }: Pick<Queued, "cost" | "inForce">): boolean {
  return owner
    .seenBy({ inForce })
    .every(
      ({ rule, account }) =>
        rule.lease === undefined || heldUnits(account.holds).all + costOf(rule, cost) <= rule.capacity,
    );
}

export class FairLine {
  #tags = new Map<string, number>();
  #waiting: ReadonlySet<string> = new Set();
  /** Since `#atMs`. */
  #held: HeldByName = new Map();
  #atMs = 0;

  /**
   * Answers callers in turn. Only what the share of a group denies is passed: a call that needs more units than are free
   * waits for them first. Returns when the next can be served without returned units; Infinity: none.
   */
  serve<Call extends QueuedCall>(owner: LineOwner, waiters: Call[], nowMs: number): number {
    for (;;) {
      const served = this.#serveNext(owner, waiters, nowMs);
      if (served === true) continue;
      endOverdue(waiters, nowMs);
      return waiters.length === 0 ? Infinity : served;
    }
  }

  /** @returns true: one has left the line. Otherwise when the next can be served */
  #serveNext<Call extends QueuedCall>(owner: LineOwner, waiters: Call[], nowMs: number): true | number {
    const fair = fairRuleOf(owner);
    let nextMs = Infinity;
    for (const { first } of fair === undefined ? [] : this.#heads(fair, waiters, nowMs)) {
      const waitMs = first.attempt(nowMs);
      if (waitMs === undefined || first.untilMs <= nowMs) {
        waiters.splice(waiters.indexOf(first), 1);
        if (waitMs !== undefined) first.giveUp(nowMs);
        return true;
      }
      nextMs = Math.min(nextMs, nowMs + waitMs);
      if (!fits(owner, first)) break;
    }
    return nextMs;
  }

  /** The first call of each group that waits, in the order in which they are served. */
  #heads<Call extends Queued>(fair: FairRule, waiters: readonly Call[], nowMs: number): Head<Call>[] {
    this.#note(fair, waiters, nowMs);
    return headsOf(fair, waiters, (group) => this.#tags.get(group) ?? 0);
  }

  /** The calls of other groups that are served before this one. Nothing is noted: it may not wait. */
  before<Call extends Queued>(
    owner: LineOwner,
    waiters: readonly Call[],
    call: Queued,
    nowMs: number,
  ): ReadonlySet<Call> {
    const fair = fairRuleOf(owner);
    if (fair === undefined) return new Set();
    this.#note(fair, waiters, nowMs);
    const own = nameOf(call);
    const tag = this.#waiting.has(own) ? this.#tags.get(own) : this.#startOf(own, this.#waiting);
    const others = waiters.filter((waiter) => nameOf(waiter) !== own);
    const heads = headsOf(fair, [...others, call], (group) =>
      group === own ? (tag ?? 0) : (this.#tags.get(group) ?? 0),
    );
    const names = heads.map(({ group }) => group);
    const before = new Set(names.slice(0, names.indexOf(own)));
    return new Set(waiters.filter((waiter) => before.has(nameOf(waiter))));
  }

  #note({ terms, held }: FairRule, waiters: readonly Queued[], nowMs: number): void {
    const waiting = new Set(waiters.map(nameOf));
    const wereWaiting = this.#waiting.size > 0;
    if (!wereWaiting) this.#tags.clear();
    if (wereWaiting)
      for (const [group, units] of this.#held) {
        const more = (units * Math.max(0, nowMs - this.#atMs)) / terms.weightOf(group);
        this.#tags.set(group, (this.#tags.get(group) ?? 0) + more);
      }
    const still = new Set([...waiting].filter((group) => this.#waiting.has(group)));
    for (const group of waiting) if (!still.has(group)) this.#tags.set(group, this.#startOf(group, still));
    for (const group of this.#tags.keys())
      if (!waiting.has(group) && held.get(group) === undefined) this.#tags.delete(group);
    this.#waiting = waiting;
    this.#held = held;
    this.#atMs = nowMs;
  }

  #startOf(group: string, waiting: ReadonlySet<string>): number {
    let least = Infinity;
    for (const each of waiting) least = Math.min(least, this.#tags.get(each) ?? 0);
    const own = this.#tags.get(group) ?? 0;
    return least === Infinity ? own : Math.max(own, least);
  }
}

export function nameOf({ group = "" }: Pick<QueuedCost, "group">): string {
  return group;
}

/** The first call of each group. */
export function firstsOf<Call extends Pick<QueuedCost, "group">>(
  waiters: readonly Call[],
): ReadonlyMap<string, Call> {
  const firsts = new Map<string, Call>();
  for (const waiter of waiters) if (!firsts.has(nameOf(waiter))) firsts.set(nameOf(waiter), waiter);
  return firsts;
}

function headsOf<Call extends Queued>(
  { rule, terms: { weightOf }, limitFor, held }: FairRule,
  waiters: readonly Call[],
  tagOf: (group: string) => number,
): Head<Call>[] {
  const firsts = firstsOf(waiters);
  const active = new Set([...firsts.keys(), ...namesOf(held)]);
  let weights = 0;
  for (const group of active) weights += weightOf(group);
  const heads = [...firsts].map(([group, first]): Head<Call> => {
    const weight = weightOf(group);
    const units = held.get(group) ?? 0;
    const isWithin = units + costOf(rule, first.cost) <= (limitFor(first) * weight) / weights + 1e-9;
    return { group, first, isWithin, tag: tagOf(group), level: units / weight };
  });
  return heads.toSorted(
    (one, other) =>
      Number(other.isWithin) - Number(one.isWithin) || one.tag - other.tag || one.level - other.level,
  );
}

/** Callers behind one that still waits get their last answer when their own wait is over. */
export function endOverdue(waiters: QueuedCall[], nowMs: number): void {
  const over = waiters.filter(({ untilMs }) => untilMs <= nowMs);
  if (over.length > 0) waiters.splice(0, waiters.length, ...waiters.filter(({ untilMs }) => untilMs > nowMs));
  for (const waiter of over) waiter.giveUp(nowMs);
}

/** Of a full line: the last caller of the group that has most callers there for its weight, if that is another group. */
export function lastOfLongest<Call extends Pick<QueuedCost, "group">>(
  weightOf: SlotTerms["weightOf"],
  waiters: readonly Call[],
  call: Pick<QueuedCost, "group">,
): Call | undefined {
  const counts = new Map<string, number>();
  for (const waiter of waiters) counts.set(nameOf(waiter), (counts.get(nameOf(waiter)) ?? 0) + 1);
  const lengthOf = (group: string, more = 0) => ((counts.get(group) ?? 0) + more) / weightOf(group);
  let longest = nameOf(call);
  for (const group of counts.keys()) if (lengthOf(group) > lengthOf(longest)) longest = group;
  if (lengthOf(longest) <= lengthOf(nameOf(call), 1)) return undefined;
  return waiters.findLast((waiter) => nameOf(waiter) === longest);
}
