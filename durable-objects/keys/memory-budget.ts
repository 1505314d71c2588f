/** What one object has of the memory. It is the object's own: when that goes, this goes too. */
export interface MemoryShare {
  keys: number;
  bytes: number;
}

/** While there is too little memory, the objects that have gone are looked for after so many changes. */
const LOOK_AFTER = 1_024;

/**
 * The memory that keys may take, for all objects that share it. On Cloudflare objects of one class may run in one
 * isolate, which has 128 MB for all of them.
 *
 * No object can drop another one's keys: it may not write for it. So when there is too little, each drops keys of its own
 * when it is called, as long as it has more than an even part. One that has less may still grow to that, so there may be
 * twice as much as allowed, until those that have more are called, or leave memory because nobody calls them.
 */
export class MemoryBudget {
  readonly #mostKeys: number;
  readonly #mostBytes: number;
  /** The runtime drops an object without telling it. */
  readonly #shares = new Set<WeakRef<MemoryShare>>();
  #keys = 0;
  #bytes = 0;
  #changes = 0;
  /** With so many objects it is time to look for those that have gone. */
  #lookAt = LOOK_AFTER;

  constructor(mostKeys: number, mostBytes: number) {
    this.#mostKeys = mostKeys;
    this.#mostBytes = mostBytes;
  }

  /** One more object. */
  join(): MemoryShare {
    const share = { keys: 0, bytes: 0 };
    this.#shares.add(new WeakRef(share));
    if (this.#shares.size > this.#lookAt) this.#look();
    return share;
  }

  /** Notes that an object has more of the memory than before, or less. */
  add(share: MemoryShare, keys: number, bytes: number): void {
    share.keys += keys;
    share.bytes += bytes;
    this.#keys += keys;
    this.#bytes += bytes;
    this.#changes += 1;
  }

  /** Whether the object has to drop keys before it gets so many others. */
  hasTooManyKeys(share: MemoryShare, others: number): boolean {
    const isOver = () => {
      const own = share.keys + others;
      return this.#keys + others > this.#mostKeys && own * this.#shares.size > this.#mostKeys;
    };
    return this.#isStill(isOver);
  }

  /** Whether the object has to drop keys because all of them are too large together. */
  hasTooManyBytes(share: MemoryShare): boolean {
    return this.#isStill(
      () => this.#bytes > this.#mostBytes && share.bytes * this.#shares.size > this.#mostBytes,
    );
  }

  /** Whether it is so when objects do not count that have gone. */
  #isStill(isOver: () => boolean): boolean {
    if (!isOver()) return false;
    if (this.#changes >= LOOK_AFTER && this.#shares.size > 1) this.#look();
    return isOver();
  }

  /** Looks for objects that have gone. */
  #look(): void {
    [this.#changes, this.#keys, this.#bytes] = [0, 0, 0];
    for (const reference of this.#shares) {
      const share = reference.deref();
      if (share === undefined) this.#shares.delete(reference);
      this.#keys += share?.keys ?? 0;
      this.#bytes += share?.bytes ?? 0;
    }
    this.#lookAt = 2 * this.#shares.size + LOOK_AFTER;
  }
}
