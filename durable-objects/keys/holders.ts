import { callerIn } from "../../core/protocol/names.ts";

/** What a holder has reported of one rule, and has of it. */
export interface HolderUnits {
  /** Units that it has reported as used since it began. */
  readonly used: number;
  /** Units that it wanted last. */
  readonly wanted: number;
  /** Units that were held for it after its last message. */
  readonly held: number;
}

/**
 * An isolate, or a client in its caller's process, that reserves units of a key. It is in memory only: a crash forgets it,
 * and the units that it has reserved are covered by the key's record (storage/write-behind.ts).
 */
export interface Holder {
  /** The number of the last message that was accepted. One that is not higher is late or repeated, and is ignored. */
  readonly turn: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** The hold that it had before it claimed units that are not in it. Until that ends, it is granted no other. */
  readonly replaced?: string | undefined;
  /** By the name of the rule: another version of the policy may have other rules, or the same in another order. */
  readonly rules: ReadonlyMap<string, HolderUnits>;
  /** Until this instant its wishes count when units are shared out, unless it asks again. */
  readonly untilMs: number;
}

/** The other holders of a key, as one of them meets them. */
export interface OtherHolders {
  /** Units that they want. */
  readonly wanted: number;
  /** Units that the other clients of the same caller have; 0 for an isolate. */
  readonly heldByOwn: number;
  /** Whether a holder of another caller wants units. */
  readonly isContested: boolean;
}

/** The most holders of one key, at about 300 bytes each. Further isolates reserve nothing and ask each time. */
const MAX_HOLDERS = 1_000;
/** Of those, the most clients of one caller: it cannot keep isolates from reserving. */
const MAX_HOLDERS_OF_CALLER = 500;
/** The clients of one caller together want no more than this many holders that want all they may have. */
const MAX_WISHES_OF_CALLER = 4;
/** A holder is remembered for this long after its end, in milliseconds: messages that it has sent may arrive later. */
const REMEMBERED_MS = 5_000;
/** About the bytes of memory that a holder takes, beside its hold. */
export const HOLDER_BYTES = 300;

/** The holders of one key, by their ids. */
export class Holders extends Map<string, Holder> {
  /** Whether there is room to remember a holder. */
  hasRoomFor(id: string): boolean {
    if (this.has(id) || this.size < MAX_HOLDERS_OF_CALLER) return true;
    return this.size < MAX_HOLDERS && this.#countOfCaller(callerIn(id)) < MAX_HOLDERS_OF_CALLER;
  }

  #countOfCaller(caller: string | undefined): number {
    if (caller === undefined) return 0;
    let count = 0;
    for (const id of this.keys()) if (callerIn(id) === caller) count += 1;
    return count;
  }

  /** Forgets the holders whose end was so long ago that no message of theirs can still arrive. */
  forgetEnded(nowMs: number): void {
    for (const [id, { untilMs }] of this) if (untilMs + REMEMBERED_MS <= nowMs) this.delete(id);
  }

  /**
   * What the others want and have of a rule.
   *
   * @param id the holder that asks; `undefined`: one that holds nothing
   * @param max the most units of the rule that one holder may have
   */
  others(id: string | undefined, rule: string, max: number, nowMs: number): OtherHolders {
    const own = id === undefined ? undefined : callerIn(id);
    const wishes = new Map<string, number>();
    let [wanted, heldByOwn] = [0, 0];
    let isContested = false;
    for (const [each, { rules, untilMs }] of this) {
      const units = rules.get(rule);
      if (each === id || units === undefined || untilMs <= nowMs) continue;
      const caller = callerIn(each);
      if (caller === undefined) wanted += units.wanted;
      else wishes.set(caller, (wishes.get(caller) ?? 0) + units.wanted);
      if (own !== undefined && caller === own) heldByOwn += units.held;
      else isContested ||= units.wanted > 0;
    }
    for (const wish of wishes.values()) wanted += Math.min(wish, MAX_WISHES_OF_CALLER * max);
    return { wanted, heldByOwn, isContested };
  }
}
