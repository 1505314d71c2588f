/** What holds in a random history of leases (slots.ts): which leases callers trust, their tokens, and who waits. */
import type { Ticks } from "../../bench/scale/ticks.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { law } from "./laws.ts";
import type { SlotsPlan } from "./slots-plan.ts";
import type { Holder, Trusted } from "./slots-process.ts";

/** Until it hears of a call that waits, an isolate may serve its own: a pace, and a way and back. If cut off, all its slots. */
const [OVERTAKEN_MS, OVERTAKEN_BY_CUT_OFF_MS] = [1_500, 2_500];
/** A lease is handed over after a pace, with the next message. */
const HANDED_MS = 1_500;

export class SlotsTruth {
  readonly trusted = new Set<Trusted>();
  readonly waiting = new Set<{ readonly by: Holder; readonly sinceMs: number }>();
  latestToken = 0;
  /** Leases that were asked for before then may be over. */
  resetAtMs = -Infinity;
  /** The longest rest of a holder so far. */
  restMs = 0;
  readonly #tokens = new Set<number>();
  readonly #plan: SlotsPlan;
  readonly #ticks: Pick<Ticks, "nowMs">;

  constructor(plan: SlotsPlan, ticks: Pick<Ticks, "nowMs">) {
    this.#plan = plan;
    this.#ticks = ticks;
  }

  /** @param above the latest token before the call, if the object has granted it */
  checkToken(token: number, above: number): void {
    law(!this.#tokens.has(token), () => `token ${token} was given out twice`);
    law(token > above, () => `a token of the object is below an earlier one`);
    this.#tokens.add(token);
    this.latestToken = Math.max(this.latestToken, token);
  }

  /** An isolate that has heard of it lets no call pass those that wait at the object for longer. */
  checkOrder(isolate: Holder, sentAtMs: number): void {
    const { lost, late, kills, restarts, freezes, standstills } = this.#plan;
    if (lost + late + kills + restarts + freezes + standstills > 0) return;
    const nowMs = this.#ticks.nowMs;
    for (const { by, sinceMs } of this.waiting) {
      // The object has not heard of a call from an isolate that is cut off.
      if (by === isolate || sinceMs >= sentAtMs || by.cutUntilMs > sinceMs) continue;
      const mostMs = this.restMs + (isolate.cutUntilMs > sinceMs ? OVERTAKEN_BY_CUT_OFF_MS : OVERTAKEN_MS);
      law(nowMs < sinceMs + mostMs, () => `a call was overtaken after ${nowMs - sinceMs} ms`);
    }
  }

  trust(trusted: Trusted): void {
    const nowMs = this.#ticks.nowMs;
    if (trusted.untilMs <= nowMs || trusted.sentAtMs <= this.resetAtMs) return;
    this.trusted.add(trusted);
    let units = 0;
    for (const other of this.trusted)
      if (other.untilMs <= nowMs) this.trusted.delete(other);
      else if (!other.isInProcess || nowMs > other.by.frozenUntilMs) units += other.units;
    const { limit } = this.#plan;
    law(units <= limit, () => `callers trust leases of ${units} of ${limit}`);
  }

  /** Of a lease that its holder has just granted, while no other one has callers, whose leases it may not know. */
  checkFigures({ remaining = Infinity, resetAfterMs = 0 }: Decision): void {
    const { isolates, processes, isServing, limit, lost, late, kills, restarts, freezes } = this.#plan;
    const calling = (isServing === true ? 0 : isolates) + processes;
    if (calling > 1 || lost + late + kills + restarts + freezes > 0) return;
    const nowMs = this.#ticks.nowMs;
    let left = limit;
    let lastEndMs = 0;
    for (const { units, untilMs } of this.trusted)
      if (untilMs > nowMs) {
        left -= units;
        lastEndMs = Math.max(lastEndMs, untilMs);
      }
    law(remaining <= left, () => `${remaining} of ${limit} are said to remain, and ${left} do`);
    law(
      nowMs + resetAfterMs >= lastEndMs,
      () => `${resetAfterMs} ms are said, and ${lastEndMs - nowMs} it takes`,
    );
  }

  /** A lease was not renewed: its holder has had no time to hand it over, or messages were in the way. */
  checkHanded(trusted: Trusted): void {
    const { lost, late, kills, restarts, freezes, cuts, resets, drops, oneWayMs } = this.#plan;
    if (lost + late + kills + restarts + freezes + cuts + resets + drops > 0) return;
    const ageMs = this.#ticks.nowMs - trusted.sentAtMs;
    const isTrusted = this.trusted.has(trusted) && trusted.untilMs > this.#ticks.nowMs;
    // Those of a process are renewed by itself alone.
    law(
      !isTrusted || trusted.isInProcess || ageMs < HANDED_MS + 8 * oneWayMs,
      () => `a lease of ${ageMs} ms was not renewed`,
    );
  }
}
