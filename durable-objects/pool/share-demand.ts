import { outstandingOf } from "../../core/accounts/account.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import { Demand, type Wanted } from "../../core/reservations/demand.ts";
import type { KeyState } from "../keys/key-state.ts";
import { lentUnits, type Lending } from "./share-units.ts";

/** What a message asks for, beside the call that it goes with. */
export interface Asking {
  /** Units for an isolate that asks. */
  readonly lending?: Lending;
  /** How long the lease that a caller waits for has to last, in milliseconds. */
  readonly leaseTtlMs?: number;
  /** By rule: slots that callers wait for. */
  readonly slots?: readonly number[];
  /** How many callers wait in this region's queue. */
  readonly queueLength?: number;
  /** The region gives back everything that it can spare. */
  readonly isGivingBack?: boolean;
}

/** How many units of one key the region's callers and isolates ask for. */
export class ShareDemand {
  readonly #keyState: KeyState;
  readonly #ruleStates: KeyState["ruleStates"];
  readonly #direct: Demand;
  /** By rule: the most units that were leased at one time since the last message. */
  #peak: readonly number[];
  #leasedAtMs = -Infinity;

  constructor(keyState: KeyState, nowMs: number) {
    this.#keyState = keyState;
    this.#ruleStates = keyState.ruleStates;
    this.#direct = new Demand(keyState.policy, nowMs);
    this.#peak = keyState.ruleStates.map(() => 0);
  }

  /** Whether the key is asked for so often that the region should hold units, for its callers or for an isolate. */
  get isHot(): boolean {
    return this.#direct.isHot || this.#keyState.holders.size > 0;
  }

  /** The instant of the last grant of a lease. */
  get leasedAtMs(): number {
    return this.#leasedAtMs;
  }

  /** Notes that a caller asks for this much. */
  note(cost: Cost, nowMs: number): void {
    this.#direct.note(cost, nowMs);
  }

  /** Notes that a call waits for the message under way. */
  miss(): void {
    this.#direct.miss();
  }

  /** Notes how many units are leased, after a lease was granted. */
  noteLeases(nowMs: number): void {
    this.#leasedAtMs = nowMs;
    this.#peak = this.#ruleStates.map(({ account }, index) =>
      Math.max(this.#peak[index] ?? 0, outstandingOf(account)),
    );
  }

  /**
   * What to ask for now. Of rates: what callers ask for, and twice what isolates want, since isolates renew before
   * their units end. Of slots: as many as were in use lately. From here on demand is measured anew.
   */
  want({ lending, isGivingBack, slots }: Asking, isContended: boolean, nowMs: number): Wanted {
    const measured = this.#direct.want(nowMs);
    const { admits } = this.#keyState.policy.localDecisions;
    const lent = lentUnits(this.#keyState, nowMs, lending);
    const units = this.#ruleStates.map(({ rule, account }, index) => {
      if (isGivingBack === true) return 0;
      if (admits) return Math.min(rule.capacity, (measured.units[index] ?? 0) + 2 * (lent[index] ?? 0));
      const leased = outstandingOf(account);
      if (rule.lease === undefined) return leased;
      return Math.max(leased + (slots?.[index] ?? 0), isContended ? 0 : (this.#peak[index] ?? 0));
    });
    this.#peak = this.#ruleStates.map(({ account }) => outstandingOf(account));
    const low = measured.low.map((each, index) => Math.max(each, Math.floor((lent[index] ?? 0) / 2)));
    return { ...measured, units, low };
  }
}
