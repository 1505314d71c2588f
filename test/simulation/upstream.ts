/**
 * An upstream in virtual time with a fixed number of workers and a queue. It serves abandoned requests too.
 */
export class Upstream {
  capacity: number;
  readonly #events: Events;
  readonly #serviceMs: () => number;
  readonly #queue: (() => void)[] = [];
  #head = 0;
  #serving = 0;

  constructor(events: Events, capacity: number, serviceMs: () => number) {
    this.#events = events;
    this.capacity = capacity;
    this.#serviceMs = serviceMs;
  }

  /** Calls `done` when the request has been served. */
  ask(done: () => void): void {
    this.#queue.push(done);
    this.serve();
  }

  /** Begins requests while there is room, also after the capacity has grown. */
  serve(): void {
    while (this.#serving < this.capacity && this.#head < this.#queue.length) {
      const done = this.#queue[this.#head];
      this.#head += 1;
      this.#serving += 1;
      this.#events.after(this.#serviceMs(), () => {
        this.#serving -= 1;
        done?.();
        this.serve();
      });
    }
  }
}

/** Events in the order of their times, without promises: hundreds of thousands in a second. */
export class Events {
  nowMs: number;
  readonly #heap: { readonly atMs: number; readonly work: () => void }[] = [];

  constructor(nowMs: number) {
    this.nowMs = nowMs;
  }

  after(ms: number, work: () => void): void {
    const heap = this.#heap;
    const event = { atMs: this.nowMs + ms, work };
    let index = heap.length;
    heap.push(event);
    while (index > 0) {
      const parent = (index - 1) >> 1;
      const above = heap[parent];
      if (above === undefined || above.atMs <= event.atMs) break;
      heap[index] = above;
      index = parent;
    }
    heap[index] = event;
  }

  run(untilMs: number): void {
    for (let next = this.#heap[0]; next !== undefined && next.atMs <= untilMs; next = this.#heap[0]) {
      this.#pop();
      this.nowMs = next.atMs;
      next.work();
    }
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return;
    let index = 0;
    for (;;) {
      const left = 2 * index + 1;
      const right = left + 1;
      const child = (heap[right]?.atMs ?? Infinity) < (heap[left]?.atMs ?? Infinity) ? right : left;
      const below = heap[child];
      if (below === undefined || below.atMs >= last.atMs) break;
      heap[index] = below;
      index = child;
    }
    heap[index] = last;
  }
}
