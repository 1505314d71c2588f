import { Outbox } from "./outbox.ts";

/** The most outboxes, at about 200 bytes each and what waits in them. Calls for further objects go alone. */
const MOST_OUTBOXES = 4_096;
/** When there are so many, those that requests have left behind are looked for no more often than this. */
const SWEEP_MS = 1_000;

/** The outboxes of one isolate by the names of their objects. An object has one only while calls for it are made. */
export class Outboxes {
  readonly #outboxes = new Map<string, Outbox>();
  #sweptMs = -Infinity;

  get size(): number {
    return this.#outboxes.size;
  }

  /** The outbox for calls to an object; `undefined`: a call goes alone. */
  open(name: string, nowMs: number): Outbox | undefined {
    const known = this.#outboxes.get(name);
    if (known !== undefined) return known.isForAlone(nowMs) ? undefined : known;
    if (this.#outboxes.size >= MOST_OUTBOXES) this.#sweep(nowMs);
    if (this.#outboxes.size >= MOST_OUTBOXES) return undefined;
    const outbox = new Outbox();
    this.#outboxes.set(name, outbox);
    return outbox;
  }

  /** A call has ended: an outbox that nobody needs is forgotten. */
  letGo(name: string, nowMs: number): void {
    if (this.#outboxes.get(name)?.isIdle(nowMs) === true) this.#outboxes.delete(name);
  }

  #sweep(nowMs: number): void {
    if (nowMs >= this.#sweptMs && nowMs < this.#sweptMs + SWEEP_MS) return;
    this.#sweptMs = nowMs;
    for (const name of this.#outboxes.keys()) this.letGo(name, nowMs);
  }
}
