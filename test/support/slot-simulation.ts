/** Groups that share slots, in virtual time: calls at random that hold a slot for a while, with the accounts of an object. */
import { advance, decideTogether, endLease, UNTOUCHED } from "../../core/accounts/account.ts";
import { type Account, heldByGroup, heldUnits, seenByGroup } from "../../core/accounts/hold.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import { seededRandom } from "./random.ts";
import { ruleOf } from "./rules.ts";

export const START_MS = 1_760_000_000_000;

/** A key with leases. */
export class SharedSlots {
  readonly rule: Rule;
  account: Account = UNTOUCHED;
  /** The most that was held at any instant. */
  most = 0;
  #leases = 0;

  constructor(fields: object) {
    this.rule = ruleOf({ algorithm: "concurrency", ttl: 3_600_000, fair: true, ...fields });
  }

  /** The decision, which changes nothing. @param ttlMs how long the lease lasts unless it is released */
  ask(nowMs: number, group: string, cost = 1, ttlMs = 3_600_000) {
    const account = advance(this.rule, this.account, START_MS + nowMs);
    const rule = seenByGroup(this.rule, group);
    const id = `lease ${this.#leases}`;
    const lease = { id, group, expiresAtMs: START_MS + nowMs + ttlMs };
    const { accounts, rules } = decideTogether([{ rule, account }], START_MS + nowMs, cost, { lease });
    return { ...(rules[0] as RuleDecision), account: accounts?.[0] ?? account, id };
  }

  /** @returns the decision, with the id of the lease if it was granted */
  acquire(nowMs: number, group: string, cost = 1, ttlMs?: number) {
    const { account, ...said } = this.ask(nowMs, group, cost, ttlMs);
    this.account = account;
    this.#leases += 1;
    this.most = Math.max(this.most, heldUnits(account.holds).all);
    return said;
  }

  release(nowMs: number, id: string): void {
    const account = advance(this.rule, this.account, START_MS + nowMs);
    this.account = endLease(this.rule, account, START_MS + nowMs, id, { outcome: "ok" });
  }

  held(nowMs: number): ReadonlyMap<string, number> {
    this.account = advance(this.rule, this.account, START_MS + nowMs);
    return new Map(heldByGroup(this.account.holds));
  }
}

/** What each group held on average, of the limit, and which part of its calls was admitted: without anybody waiting. */
export function playSlots(
  fields: { readonly limit: number; readonly weights?: Readonly<Record<string, number>> },
  wants: readonly number[],
  { meanMs = 100, turns, seed }: { readonly meanMs?: number; readonly turns: number; readonly seed: number },
) {
  const random = seededRandom(seed);
  const slots = new SharedSlots(fields);
  const after = (mean: number) => -Math.log(1 - random()) * mean;
  const nextMs = wants.map((want) => after(meanMs / want));
  const ends: { atMs: number; id: string; group: number }[] = [];
  const fromMs = 20 * meanMs;
  const untilMs = fromMs + turns * meanMs;
  const [held, area, asked, got] = [
    wants.map(() => 0),
    wants.map(() => 0),
    wants.map(() => 0),
    wants.map(() => 0),
  ];
  let atMs = 0;
  const add = (list: number[], group: number, by: number) => void (list[group] = (list[group] ?? 0) + by);
  while (atMs < untilMs) {
    ends.sort((one, other) => one.atMs - other.atMs);
    const [first] = ends;
    const callMs = Math.min(...nextMs);
    const now = Math.min(callMs, first?.atMs ?? Infinity);
    if (atMs >= fromMs) for (const [group, units] of held.entries()) add(area, group, units * (now - atMs));
    atMs = now;
    if (first !== undefined && first.atMs <= callMs) {
      ends.shift();
      slots.release(Math.floor(now), first.id);
      add(held, first.group, -1);
      continue;
    }
    const group = nextMs.indexOf(callMs);
    nextMs[group] = now + after(meanMs / (wants[group] ?? 1));
    const { success, id } = slots.acquire(Math.floor(now), `g${group}`);
    if (now >= fromMs) add(asked, group, 1);
    if (!success) continue;
    if (now >= fromMs) add(got, group, 1);
    add(held, group, 1);
    ends.push({ atMs: now + after(meanMs), id, group });
  }
  const means = area.map((each) => each / (untilMs - fromMs));
  return {
    most: slots.most,
    used: means.reduce((sum, each) => sum + each, 0) / fields.limit,
    held: means,
    success: got.map((count, group) => count / Math.max(1, asked[group] ?? 0)),
  };
}

/** Jain's index of fairness: 1 if all parts are equal. */
export function jain(parts: readonly number[]): number {
  const sum = parts.reduce((total, part) => total + part, 0);
  return sum ** 2 / (parts.length * parts.reduce((total, part) => total + part ** 2, 0));
}
