/** The laws between a pool, the regions that have units of it, and their isolates. */
import { outstandingOf } from "../../core/accounts/account.ts";
import type { Hold } from "../../core/accounts/hold.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { Reservation } from "../../core/reservations/reservation.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { freeUnits, stateOf } from "../../durable-objects/pool/share-algorithm.ts";
import { law } from "./laws.ts";
import type { Stored } from "./pools-server.ts";

/** A pool's rule at an instant, computed from storage, without the script. */
export interface Level {
  /** Used units in parts: `partsPerUnit` parts are one unit. */
  readonly usedParts: number;
  readonly partsPerUnit: number;
  readonly outstanding: number;
  readonly free: number;
}

export function levelOf({ fields, holds, logs }: Stored, rule: Rule, index: number, nowMs: number): Level {
  const live = holds.filter(({ atMs }) => atMs > nowMs);
  const expired = holds.filter(({ atMs }) => atMs <= nowMs);
  const outstanding = sumOf(live, rule.name);
  if (rule.lease !== undefined)
    return { usedParts: 0, partsPerUnit: 1, outstanding, free: Math.max(0, rule.capacity - outstanding) };
  const windowMs = rule.quota.windowMs ?? 1;
  const state = fields[`s:${rule.name}`]?.split(" ") ?? [];
  if (rule.algorithm.name === "sliding-log") {
    const used =
      loggedIn(state, logs[index] ?? [], fields[`g:${rule.name}`], windowMs, nowMs) +
      recent(expired, rule.name, windowMs, nowMs);
    const free = Math.max(0, rule.capacity - used - outstanding);
    return { usedParts: used, partsPerUnit: 1, outstanding, free };
  }
  let [parts, atMs] = [Number(state[1] ?? 0), Number(state[4] ?? 0)];
  const leakTo = (toMs: number) => {
    parts = Math.max(0, parts - rule.quota.units * Math.max(0, toMs - atMs));
    atMs = Math.max(atMs, toMs);
  };
  for (const hold of expired) {
    leakTo(hold.atMs);
    parts += (hold.units[rule.name] ?? 0) * windowMs;
  }
  leakTo(nowMs);
  const free = Math.max(0, Math.floor(rule.capacity - outstanding - parts / windowMs));
  return { usedParts: parts, partsPerUnit: windowMs, outstanding, free };
}

/**
 * Conservation at the pool: used, outstanding and free units add up to the capacity. With `isOverdrawn` they
 * may exceed it: writes were lost, and everything counts as used.
 */
export function checkPool(stored: Stored, rules: readonly Rule[], nowMs: number, isOverdrawn: boolean): void {
  for (const [index, rule] of rules.entries()) {
    const { usedParts, partsPerUnit, outstanding, free } = levelOf(stored, rule, index, nowMs);
    const said = (stored.fields[`o:${rule.name}`] ?? "0 0").split(" ").map(Number);
    const regional = stored.holds.filter(({ id }) => id.startsWith("r:"));
    law(
      said[0] === sumOf(stored.holds, rule.name) && said[1] === sumOf(regional, rule.name),
      () => `the pool counts ${said.join(" and ")} units of ${rule.name} outstanding, and its holds do not`,
    );
    const sumParts = usedParts + (outstanding + free) * partsPerUnit;
    const isWhole = Math.floor(sumParts / partsPerUnit) <= rule.capacity;
    law(
      isOverdrawn || (isWhole && sumParts > (rule.capacity - 1) * partsPerUnit),
      () =>
        `at the pool used ${usedParts / partsPerUnit} + outstanding ${outstanding} + free ${free} of ${rule.name} ` +
        `is not the capacity of ${rule.capacity}`,
    );
  }
}

export interface Having {
  readonly name: string;
  /** Absent: the region has vanished. */
  readonly entry?: KeyState;
  readonly nowMs: number;
  /** The latest instant that the region has seen: before a crash its clock may have been ahead. */
  readonly latestMs: number;
  readonly isolates: readonly { readonly reservation: Reservation | undefined; readonly nowMs: number }[];
}

/** The pool reserves all units that a region and its isolates may still spend or have leased. */
export function checkRegion(stored: Stored, rules: readonly Rule[], having: Having, poolMs: number): void {
  const holds = stored.holds.filter(({ id, atMs }) => id.startsWith(`r:${having.name}.`) && atMs > poolMs);
  const isLive = ({ expiresAtMs }: Hold) => expiresAtMs > having.latestMs;
  for (const [index, rule] of rules.entries()) {
    const kept = sumOf(holds, rule.name);
    const ruleState = having.entry?.ruleStates[index];
    let units = 0;
    if (ruleState !== undefined && rule.lease !== undefined)
      units = outstandingOf({ ...ruleState.account, holds: ruleState.account.holds.filter(isLive) });
    else if (ruleState !== undefined && having.nowMs < stateOf(ruleState).endsAtMs)
      units = Math.max(0, freeUnits(ruleState));
    for (const { reservation, nowMs } of having.isolates)
      units += reservation?.spendableAt(nowMs)[index] ?? 0;
    law(
      units <= kept,
      () => `region ${having.name} has ${units} units of ${rule.name}, and the pool keeps ${kept} for it`,
    );
  }
}

/** The script's answer to a peek follows from storage. */
export function checkPeek(
  remaining: readonly number[],
  stored: Stored,
  rules: readonly Rule[],
  nowMs: number,
): void {
  for (const [index, rule] of rules.entries()) {
    const { free } = levelOf(stored, rule, index, nowMs);
    // Nothing is leased for a while after writes were lost.
    const isBlocked = rule.lease !== undefined && Number(stored.fields["blocked"] ?? 0) > nowMs;
    const said = remaining[index] ?? 0;
    law(
      said === (isBlocked ? 0 : free),
      () => `the pool says that ${said} units of ${rule.name} remain, and they are ${free}`,
    );
  }
}

function sumOf(holds: Stored["holds"], name: string): number {
  return holds.reduce((sum, { units }) => sum + (units[name] ?? 0), 0);
}

/** Units of expired holds in the window, which a log that was not written since lacks. */
function recent(expired: Stored["holds"], name: string, windowMs: number, nowMs: number): number {
  return sumOf(
    expired.filter(({ atMs }) => atMs > nowMs - windowMs),
    name,
  );
}

/** The counted units of a stored log: runs in the window, minus refunds by name (`holes`). */
function loggedIn(
  state: readonly string[],
  runs: readonly string[],
  holes: string | undefined,
  windowMs: number,
  nowMs: number,
): number {
  if (state.length === 0) return 0;
  const [total = 0, , gone = 0, openMs = 0] = state.slice(1).map(Number);
  if (openMs <= nowMs - windowMs) return 0;
  let left = gone;
  for (const run of runs) {
    const [atMs = 0, units = 0] = run.split(":").map(Number);
    if (atMs <= nowMs - windowMs) left = Math.max(left, units);
  }
  const from = Math.min(total, left);
  const [of, list = ""] = holes?.split("|") ?? [];
  const given = of === state.join(" ") ? list.split(" ").map(Number) : [];
  let units = total - from;
  for (let at = 0; at < given.length; at += 2)
    units -= Math.max(0, (given[at + 1] ?? 0) - Math.max(from, given[at] ?? 0));
  return units;
}
