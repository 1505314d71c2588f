/**
 * Leases that a client grants by itself, from slots of hot keys that it has for a while: a pair of acquire and release
 * costs no message. durable-objects/operations/slots.ts has the protocol.
 *
 * Callers of an isolate of the limiter trust their leases until their ends, also when the isolate has gone. These callers
 * live in the holder's process, so they lose their leases with it: the object keeps no slot for longer than the holder's
 * time, and each lease has a signal that is aborted when it is lost. So leases are not handed over, however old.
 *
 * Not in a worker: there a lease outlives its request, and nothing would keep its slot.
 */
import { HolderClock, randomId, type Time } from "../../core/clock.ts";
import type { Lease, Slots } from "../../core/protocol/answers.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { withMark } from "../../core/protocol/names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { DescribedPolicy, HeldMessage } from "../../core/protocol/reservation-messages.ts";
import { type HeldCall, KeySlots, SlotsByKey, type YoungLease } from "../key-slots.ts";
import { toDecision } from "../read-answer.ts";
import { pause } from "../reservation-cache.ts";

/** The clock may be set back by so much unseen. */
const MARGIN_MS = 100;
/**
 * How often the clock, the ends of leases and due messages are looked at. A clock that stands still is seen within three
 * steps, which is what the object allows for.
 */
const STEP_MS = 100;

interface ProcessParts {
  readonly time: Time;
  readonly inBackground: (work: Promise<unknown>) => void;
  /** Sends a message; `undefined`: no answer. It does not reject. */
  readonly send: (policy: DescribedPolicy, message: HeldMessage) => Promise<Slots | Problem | undefined>;
}

interface ProcessLease extends YoungLease {
  /** Absent: it goes on. */
  ended?: "released" | "lost";
  /** Tells the caller, where another request may do that. */
  onLost?: () => void;
}

class ProcessKeySlots extends KeySlots<DescribedPolicy> {
  /** Leases that it had granted and ended, when it sent the last message. */
  #said = 0;

  override message(wanted: number, nowMs: number): HeldCall {
    this.#said = this.granted + this.released;
    return super.message(wanted, nowMs);
  }

  /** A message that gets lost costs no lease: there is time for a further one. */
  protected override everyMs(nowMs: number): number {
    const everyMs = super.everyMs(nowMs);
    if (this.missed > 0) return nowMs < this.spendableUntilMs ? Math.min(everyMs, this.lifeMs / 4) : everyMs;
    const isSame = this.granted + this.released === this.#said;
    // It only keeps its leases.
    return isSame && this.calls === 0 && this.idle === 0 ? Math.max(everyMs, this.lifeMs / 3) : everyMs;
  }

  protected override remove(lease: ProcessLease, nowMs: number): void {
    super.remove(lease, nowMs);
    lease.ended ??= "lost";
    lease.onLost?.();
  }

  /** Its leases that have ended are over, and all of them when its own time is over. */
  check(nowMs: number): void {
    this.endExpired(nowMs);
    if (nowMs >= this.spendableUntilMs) this.endAll(nowMs);
  }

  endAll(nowMs: number): void {
    for (const id of this.young.keys()) this.end(id, nowMs);
  }
}

/** The slots of a process, by policy and key. */
export class ProcessSlots {
  readonly #parts: ProcessParts;
  readonly #keys = new SlotsByKey<ProcessKeySlots, DescribedPolicy>();
  readonly #clock = new HolderClock(MARGIN_MS);
  #isRunning = false;

  constructor(parts: ProcessParts) {
    this.#parts = parts;
  }

  /** Whether slots may have to be given back. Those that are leased end with the process. */
  get isHolding(): boolean {
    return [...this.#keys.all].some(({ idle }) => idle > 0);
  }

  /** Grants a lease from a free slot; `undefined`: the limiter decides. @param ttlMs absent: the policy's */
  acquire(policy: DescribedPolicy, key: string, units: number, ttlMs?: number): Decision | undefined {
    const { slots: terms, rules } = policy;
    const [rule] = rules;
    const forMs = ttlMs ?? terms?.ttlMs ?? 0;
    if (terms === undefined || rule === undefined || !isTtl(forMs, terms.maxTtlMs)) return undefined;
    const nowMs = this.#now();
    const slots = this.#keys.open(policy, key, () => new ProcessKeySlots(policy, key, nowMs));
    if (slots === undefined) return undefined;
    slots.check(nowMs);
    slots.called(units, nowMs);
    const isFree = slots.hasFree(units, nowMs);
    const id = isFree ? withMark(randomId(), slots.holder) : "";
    const lease = { id, units, ttlMs: forMs, caller: undefined };
    const granted = isFree ? slots.grant(rule, lease, nowMs, 0) : undefined;
    this.#sendIfDue(slots, nowMs);
    if (granted === undefined) return undefined;
    const decision = toDecision(policy, key, granted, "isolate");
    this.#watch(slots, slots.young.get(id) as ProcessLease, decision.lease as Lease);
    return decision;
  }

  /** Ends a lease of its own. @returns whether it was one; otherwise the limiter is to end it */
  release(policy: string, key: string, id: string): boolean {
    const [slots, lease, nowMs] = this.#find(policy, key, id);
    if (slots === undefined || lease === undefined) return false;
    lease.ended = "released";
    delete lease.onLost;
    slots.end(id, nowMs);
    slots.released += 1;
    this.#sendIfDue(slots, nowMs);
    return true;
  }

  /** Prolongs a lease of its own; `undefined`: the limiter is to do it, or to refuse it. */
  renew(policy: string, key: string, id: string, ttlMs?: number): Omit<Lease, "id"> | undefined {
    const [slots, lease, nowMs] = this.#find(policy, key, id);
    const forMs = ttlMs ?? lease?.ttlMs ?? 0;
    if (lease === undefined || !isTtl(forMs, slots?.policy.slots?.maxTtlMs ?? lease.ttlMs)) return undefined;
    slots?.prolong(lease, nowMs + forMs);
    return { fencingToken: lease.fencingToken, expiresAfterMs: forMs };
  }

  /** The limiter has answered an acquire. @param sent as in `SaidFigures` */
  heard({ policy, key, remaining, resetAfterMs = 0 }: Decision, sent: number): void {
    if (remaining !== undefined)
      this.#keys.find(policy, key)?.said.hear(remaining, this.#now() + resetAfterMs, sent);
  }

  /** Gives back the free slots of a key, if these and those that remain at the object are as many. */
  async giveIdle(policy: string, key: string, units: number, remaining: number): Promise<boolean> {
    const nowMs = this.#now();
    const slots = this.#keys.find(policy, key);
    if (slots?.suffices(units, remaining, nowMs) !== true) return false;
    await this.#send(slots, nowMs, 0);
    return true;
  }

  /** Gives back all slots that are not leased. @param isClosing all leases are lost, and theirs too */
  async giveBack(isClosing: boolean): Promise<void> {
    const nowMs = this.#now();
    const all = [...this.#keys.all];
    if (isClosing) for (const slots of all) slots.endAll(nowMs);
    const holding = all.filter(({ isHolding }) => isHolding);
    await Promise.all(holding.map((slots) => this.#send(slots, nowMs, 0)));
  }

  #now(readMs = this.#parts.time.nowMs()): number {
    // After the clock is set back, slots would be leased for longer than the object expects.
    if (this.#clock.read(readMs)) this.#restart();
    return this.#clock.latestMs;
  }

  #restart(): void {
    for (const slots of this.#keys.all) {
      slots.restart(this.#clock.latestMs);
      slots.endAll(this.#clock.latestMs);
    }
  }

  #find(policy: string, key: string, id: string) {
    const nowMs = this.#now();
    const slots = this.#keys.find(policy, key);
    slots?.check(nowMs);
    const lease: ProcessLease | undefined = slots?.young.get(id);
    return [slots, lease, nowMs] as const;
  }

  /** Gives a lease its signal, which is made when it is read. */
  #watch(slots: ProcessKeySlots, own: ProcessLease, lease: Lease): void {
    let controller: AbortController | undefined;
    const tell = () => {
      if (own.ended === "lost") controller?.abort(new Error(`the lease ${lease.id} is lost`));
    };
    const get = () => {
      controller ??= new AbortController();
      slots.check(this.#now());
      tell();
      return controller.signal;
    };
    Object.defineProperty(lease, "signal", { get });
    own.onLost = tell;
    this.#keep();
  }

  #keep(): void {
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#parts.inBackground(this.#run().finally(() => (this.#isRunning = false)));
  }

  async #run(): Promise<void> {
    const { time } = this.#parts;
    const step = this.#clock.steps();
    step(0, time.nowMs());
    while ([...this.#keys.all].some(({ isHolding }) => isHolding)) {
      let stepMs = STEP_MS;
      // A lease is told to be lost when it is, and not a step later.
      for (const { young, spendableUntilMs } of this.#keys.all)
        if (young.size > 0) stepMs = Math.min(stepMs, Math.max(1, spendableUntilMs - this.#clock.latestMs));
      await pause(time, stepMs);
      const readMs = time.nowMs();
      if (step(stepMs, readMs)) this.#restart();
      const nowMs = this.#now(readMs);
      for (const slots of this.#keys.all) {
        slots.check(nowMs);
        if (slots.isHolding) this.#sendIfDue(slots, nowMs);
      }
    }
  }

  #sendIfDue(slots: ProcessKeySlots, nowMs: number): void {
    if (!slots.needsMessage(nowMs)) return;
    const isHeld = slots.policy.slots !== undefined;
    // All leases of its own count as in use: none of them is handed over.
    const wanted = isHeld ? slots.estimate(nowMs, slots.leased) : 0;
    this.#parts.inBackground(this.#send(slots, nowMs, wanted));
  }

  /** Says all that it has, and asks for what its leases need. */
  async #send(slots: ProcessKeySlots, sentAtMs: number, wanted: number): Promise<void> {
    slots.check(sentAtMs);
    const { policy, key } = slots;
    const call = slots.message(wanted, sentAtMs);
    const answer = await this.#parts.send(policy, { policy: policy.name, key, ...call });
    if (slots.turn !== call.turn) return;
    const nowMs = this.#now();
    slots.answered(call, answer instanceof Problem ? {} : answer, sentAtMs, nowMs);
    slots.check(nowMs);
    if (slots.isHolding) this.#keep();
    this.#sendIfDue(slots, nowMs);
  }
}

function isTtl(ms: number, maxMs: number): boolean {
  return Number.isInteger(ms) && ms >= 1 && ms <= maxMs;
}
