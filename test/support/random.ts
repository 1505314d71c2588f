/** Numbers in [0, 1) that a seed repeats (mulberry32). */
export function seededRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A generator for each of many clients: the seed repeats each one's numbers in any order of time. */
export function seededRandoms(seed: number): (client: number) => () => number {
  return (client) => seededRandom(seed + 7_919 * client);
}

export function pick<Item>(random: () => number, items: readonly Item[]): Item {
  return items[whole(random, items.length)] as Item;
}

/** A whole number from 0 to `below`, without `below`. */
export function whole(random: () => number, below: number): number {
  return Math.floor(random() * below);
}

/** A seed for this run: the environment's SEED, to repeat a failure, or `newSeed`. It is printed. */
export function announcedSeed(what: string): number {
  const seed = seedOr(newSeed() ?? Math.floor(Math.random() * 2 ** 31));
  console.log(`${what}: SEED=${seed}`);
  return seed;
}

/** The value of the environment variable NEW_SEED instead of a random one: see `.ci/run`. */
export function newSeed(): number | undefined {
  const wanted = process.env["NEW_SEED"];
  return wanted === undefined ? undefined : Number(wanted);
}

/** That of the environment variable SEED, or the usual one. */
export function seedOr(usual: number): number {
  return Number(process.env["SEED"] ?? usual);
}
