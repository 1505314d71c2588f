import { decideTogether } from "../../core/accounts/joint-decision.ts";
import type { Entry } from "../keys/key-state.ts";
import type { Cost, RuleDecision } from "../../core/protocol/messages.ts";
import type { WaitingRoom } from "../operations/wait-queue.ts";
import { PoolFailure, type Exchange } from "./session.ts";
import type { Asking } from "./share-demand.ts";
import { costsOf } from "./share-units.ts";

/**
 * So often a region asks for slots that its callers wait for: nothing tells it that another region has given some back. The
 * half of it is what a slot is idle on its way from one region to another.
 */
const ASK_AGAIN_MS = 200;
const LEAST_WAIT_MS = 10;

/**
 * Slots of a pool: the region holds them, and its object leases them to callers, with the queue, sockets and stored leases
 * of any object (leases.ts). No lease outlives what the pool keeps apart (`endsByMs`).
 */
export class RegionalLeases {
  readonly #exchange: Exchange;
  readonly #room: WaitingRoom;
  readonly #asked = new Set<Entry>();
  readonly #pending = new Set<Pending>();

  constructor(exchange: Exchange, room: WaitingRoom) {
    this.#exchange = exchange;
    this.#room = room;
  }

  /**
   * Does something for which the region may need more slots, or for longer. When the pool has none it is done as well: what it
   * asks for is denied, or waits.
   *
   * @throws PoolFailure
   */
  async withSlots<Result>(
    entry: Entry,
    cost: Cost,
    ttlMs: number,
    work: (nowMs: number, rules?: readonly RuleDecision[]) => Result,
  ): Promise<Awaited<Result>> {
    const done = (nowMs: number, rules?: readonly RuleDecision[]) => {
      const result = work(nowMs, rules);
      this.#exchange.shareOf(entry).demand.noteLeases(nowMs);
      this.serve(entry);
      return result;
    };
    const share = this.#exchange.shareOf(entry);
    const pending: Pending = { entry, units: costsOf(entry, cost) };
    for (;;) {
      const nowMs = this.#exchange.toNow(entry);
      // Who comes later waits behind those who wait for the pool already.
      const isBehind = cost !== 0 && this.#room.waitersOf(entry).length > 0;
      if (isBehind || isCovered(entry, cost, ttlMs, nowMs)) return await done(nowMs);
      const message = share.messageAt(nowMs);
      if (message === undefined) {
        const call = asked(entry, cost, nowMs);
        return await this.#exchange.send(entry, call, this.#asking(entry, ttlMs), ({ rules }, atMs) =>
          done(atMs, rules),
        );
      }
      this.#pending.add(pending);
      await this.#exchange.follow(message, entry.policy.deadlineMs);
      this.#pending.delete(pending);
    }
  }

  /**
   * Says what an object that was not in memory still has, before any of it ends: slots that it does not speak of stay apart until
   * they expire, since messages of before may come late.
   */
  async adopt(entry: Entry): Promise<void> {
    if (!this.#exchange.shareOf(entry).isUnknown) return;
    await this.#exchange.tell(entry, { isGivingBack: true });
  }

  /** Slots may have come free, or somebody may have begun to wait for some. */
  serve(entry: Entry): void {
    const share = this.#exchange.shareOf(entry);
    const isWanted = this.#room.waitersOf(entry).length > 0;
    if (isWanted) void this.#askForWaiters(entry);
    else if (share.isContended && share.isHeld && !share.isAtRest)
      this.#exchange.refill(entry, { isGivingBack: true });
    this.#exchange.watch(entry);
  }

  async #askForWaiters(entry: Entry): Promise<void> {
    if (this.#asked.has(entry)) return;
    this.#asked.add(entry);
    const { time } = this.#exchange;
    try {
      for (;;) {
        const nowMs = time.nowMs();
        const [head] = this.#room.waitersOf(entry);
        if (head === undefined) return;
        const untilMs = Math.min(ASK_AGAIN_MS, Math.max(LEAST_WAIT_MS, head.untilMs - nowMs));
        await new Promise<void>((resolve) => time.after(untilMs, resolve));
        await this.#askFor(entry);
      }
    } finally {
      this.#asked.delete(entry);
    }
  }

  /** Asks for what the first in line waits for. */
  async #askFor(entry: Entry): Promise<void> {
    const [head] = this.#room.waitersOf(entry);
    const nowMs = this.#exchange.toNow(entry);
    if (head === undefined || this.#exchange.shareOf(entry).messageAt(nowMs) !== undefined) return;
    const call = asked(entry, head.cost, nowMs);
    try {
      await this.#exchange.send(entry, call, this.#asking(entry, head.ttlMs), (_, atMs) => {
        this.#room.serve(entry);
        this.#exchange.shareOf(entry).demand.noteLeases(atMs);
      });
    } catch (error) {
      // Who waits goes on waiting: the pool may be back before the time is over.
      if (!(error instanceof PoolFailure)) throw error;
    }
  }

  /** What all who wait for slots of a key want, so that one message brings slots for many. */
  #asking(entry: Entry, leaseTtlMs: number): { readonly asking: Asking } {
    const waiters = this.#room.waitersOf(entry);
    const wanted = [
      ...[...this.#pending].filter((each) => each.entry === entry).map(({ units }) => units),
      ...waiters.map(({ cost }) => costsOf(entry, cost)),
    ];
    const slots = entry.books.map((_, index) => wanted.reduce((sum, units) => sum + (units[index] ?? 0), 0));
    return { asking: { leaseTtlMs, slots } };
  }
}

/** A caller who waits for a message. */
interface Pending {
  readonly entry: Entry;
  readonly units: readonly number[];
}

/** What is missing of a cost; nothing, when only the time is too short. */
function asked(entry: Entry, cost: Cost, nowMs: number): { readonly op: "limit"; readonly cost: number[] } {
  const { admitted } = decideTogether(entry.books, nowMs, cost);
  return { op: "limit", cost: costsOf(entry, admitted ? 0 : cost) };
}

/** Whether there are slots for a lease of so long. */
function isCovered(entry: Entry, cost: Cost, ttlMs: number, nowMs: number): boolean {
  return nowMs + ttlMs <= entry.endsByMs && decideTogether(entry.books, nowMs, cost).admitted;
}
