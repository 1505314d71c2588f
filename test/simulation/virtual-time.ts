import type { Time } from "../../core/clock.ts";

interface Due {
  readonly atMs: number;
  readonly order: number;
  readonly work: () => unknown;
}

/** More events than any history has at one instant: after as many, they only make each other. */
const MAX_AT_ONCE = 100_000;

/**
 * Runs events in the order of their times, then of their making. Between two events all promises settle.
 * While an event's promise is pending (a real server answers), time is stopped.
 */
export class VirtualTime {
  nowMs = 0;
  readonly #settled: () => Promise<unknown>;
  readonly #heap: Due[] = [];
  #order = 0;

  constructor(settled: () => Promise<unknown> = someTurns) {
    this.#settled = settled;
  }

  at(atMs: number, work: () => unknown): Due {
    const due = { atMs: Math.max(atMs, this.nowMs), order: this.#order, work };
    this.#order += 1;
    this.#heap.push(due);
    this.#up(this.#heap.length - 1);
    return due;
  }

  /** A clock that is ahead by `offset.ms` milliseconds. Its timers do nothing once `isStopped`. */
  clock(offset: { readonly ms: number }, isStopped: () => boolean = () => false): Time {
    return {
      nowMs: () => Math.floor(this.nowMs) + offset.ms,
      after: (ms, work) => {
        let isCancelled = false;
        this.at(this.nowMs + Math.max(0, ms), () => {
          if (!isCancelled && !isStopped()) work();
        });
        return () => {
          isCancelled = true;
        };
      },
    };
  }

  /**
   * Runs all events until `untilMs`, and calls `afterEach` after each.
   * @throws Error when they are endless at one instant
   */
  async run(untilMs: number, afterEach: () => void): Promise<void> {
    let atOnce = 0;
    for (let next = this.#pop(untilMs); next !== undefined; next = this.#pop(untilMs)) {
      atOnce = next.atMs === this.nowMs ? atOnce + 1 : 0;
      if (atOnce > MAX_AT_ONCE) throw new Error(`time stands still at ${this.nowMs} ms`);
      this.nowMs = next.atMs;
      const work = next.work();
      if (work instanceof Promise) await work;
      await this.#settled();
      afterEach();
    }
  }

  #pop(untilMs: number): Due | undefined {
    const heap = this.#heap;
    const [first] = heap;
    if (first === undefined || first.atMs > untilMs) return undefined;
    const last = heap.pop();
    if (last !== undefined && heap.length > 0) {
      heap[0] = last;
      this.#down(0);
    }
    return first;
  }

  #up(index: number): void {
    const parent = (index - 1) >> 1;
    if (index === 0 || !this.#isBefore(index, parent)) return;
    this.#swap(index, parent);
    this.#up(parent);
  }

  #down(index: number): void {
    let least = index;
    for (const child of [2 * index + 1, 2 * index + 2])
      if (child < this.#heap.length && this.#isBefore(child, least)) least = child;
    if (least === index) return;
    this.#swap(index, least);
    this.#down(least);
  }

  #isBefore(a: number, b: number): boolean {
    const [left, right] = [this.#heap[a], this.#heap[b]];
    if (left === undefined || right === undefined) return false;
    return left.atMs < right.atMs || (left.atMs === right.atMs && left.order < right.order);
  }

  #swap(a: number, b: number): void {
    const [left, right] = [this.#heap[a], this.#heap[b]];
    if (left === undefined || right === undefined) return;
    this.#heap[a] = right;
    this.#heap[b] = left;
  }
}

/** More turns of the microtask queue than any chain of promises in the code takes. */
const TURNS = 16;
const NOTHING = Promise.resolve();

async function someTurns(): Promise<void> {
  for (let turn = 0; turn < TURNS; turn += 1) await NOTHING;
}

/** More turns than a message takes through client, worker and object. */
export async function manyTurns(): Promise<void> {
  for (let turn = 0; turn < 4 * TURNS; turn += 1) await NOTHING;
}
