/** The arithmetic of smooth-warming-up.ts: what permits cost that are taken out of cold storage. All are integers. */

export interface WarmUpConfig {
  readonly limit: number;
  readonly windowMs: number;
  /** In so long a cold limiter warms up when it is asked for all it has, and a warm one becomes cold. */
  readonly warmupMs: number;
  /** How many times longer than `window / limit` the first permit takes. */
  readonly coldFactor: number;
}

/**
 * What is owed and what is stored at an instant.
 *
 * `owedParts` is time that permits take which were given out already: `limit` parts are a millisecond, and `windowMs`
 * parts a permit of a warm limiter. While something is owed, the storage stays as it is; then it fills.
 *
 * `missing` is how far the storage is from full, that is from cold. It fills by `coldFactor + 5` for each part of idle
 * time, and a permit takes `2 * windowMs * (coldFactor + 1)` out of it: so both are whole numbers.
 */
export interface Warmth {
  readonly owedParts: number;
  readonly missing: number;
  /** The storage has filled since a permit was last taken. */
  readonly isFilled: boolean;
}

/** Nothing is owed, and the storage is full. */
export const COLD: Warmth = { owedParts: 0, missing: 0, isFilled: true };
/** A double represents every integer up to here exactly. */
const MOST = 2 ** 53;

/** A full storage, of which the upper part, `4 * warmup * limit`, is cold. */
function storageOf({ limit, warmupMs, coldFactor }: WarmUpConfig): number {
  return warmupMs * limit * (coldFactor + 5);
}

/** How many parts more than warm permits those cost that empty a cold storage, rounded up. */
export function coldParts(config: WarmUpConfig): number {
  return extraParts(config, 0, true);
}

/** What is owed and stored when so many parts of time have passed. */
export function afterParts(config: WarmUpConfig, warmth: Warmth, parts: number): Warmth {
  const paid = Math.min(parts, warmth.owedParts);
  // Above 2^53 the product is not exact, but no storage is so large: nothing is missing either way.
  const filled = Math.min(warmth.missing, (parts - paid) * (config.coldFactor + 5));
  return {
    owedParts: warmth.owedParts - paid,
    missing: warmth.missing - filled,
    isFilled: warmth.isFilled || filled > 0,
  };
}

/** After `units` were taken: first out of the storage, the rest fresh. */
export function afterTaking(config: WarmUpConfig, warmth: Warmth, units: number): Warmth {
  if (units === 0) return warmth;
  const missing = Math.min(storageOf(config), warmth.missing + units * permitOf(config));
  const extra = extraParts(config, warmth.missing, warmth.isFilled) - extraParts(config, missing, false);
  const owedParts = Math.min(warmth.owedParts + units * config.windowMs + extra, MOST);
  return { owedParts, missing, isFilled: false };
}

/**
 * After `units` came back which were taken `parts` of time ago. They go back into the storage, less what has filled it
 * since, and are owed no more, less what has been paid since.
 */
export function afterReturning(config: WarmUpConfig, warmth: Warmth, units: number, parts: number): Warmth {
  const unpaid = Math.max(0, units * config.windowMs - parts);
  const idle = Math.max(0, parts - units * config.windowMs * config.coldFactor);
  const back = Math.max(0, units * permitOf(config) - idle * (config.coldFactor + 5));
  const missing = Math.max(0, warmth.missing - back);
  const extra = extraParts(config, missing, false) - extraParts(config, warmth.missing, false);
  const owedParts = Math.max(0, warmth.owedParts - unpaid - extra);
  return { owedParts, missing, isFilled: true };
}

/** The parts of time until nothing is owed and the storage is full. */
export function partsUntilCold({ coldFactor }: WarmUpConfig, { owedParts, missing }: Warmth): number {
  return owedParts + Math.ceil(missing / (coldFactor + 5));
}

export function isSamePolicy(one: WarmUpConfig, other: WarmUpConfig): boolean {
  const isSameRate = one.limit === other.limit && one.windowMs === other.windowMs;
  return isSameRate && one.warmupMs === other.warmupMs && one.coldFactor === other.coldFactor;
}

/**
 * The same under another policy, in which `spentParts` count: as many permits are owed, rounded up but no more than its
 * own calls could owe; and the storage is as full, rounded up.
 */
export function convertWarmth(
  from: WarmUpConfig,
  to: WarmUpConfig,
  warmth: Warmth,
  spentParts: number,
): Warmth {
  const share = (value: number, of: number, by: number) => (BigInt(value) * BigInt(of)) / BigInt(by);
  const missing = Number(share(warmth.missing, storageOf(to), storageOf(from)));
  const owed = Number(-share(-warmth.owedParts, to.windowMs, from.windowMs));
  const most = spentParts + coldParts(to) - extraParts(to, missing, false);
  return { owedParts: Math.min(owed, most), missing, isFilled: true };
}

/** What a permit takes out of the storage. */
function permitOf({ windowMs, coldFactor }: WarmUpConfig): number {
  return 2 * windowMs * (coldFactor + 1);
}

/**
 * How many parts more than warm permits the cold ones cost that are still stored, when so much is missing. The price
 * falls evenly from the first to the last of them, so it is the square of how many there are:
 *
 *     cold^2 * (coldFactor - 1) / (16 * (coldFactor + 1) * warmup * limit)
 *
 * It is rounded down, and where taking begins, rounded up. So permits that are taken one after the other cost what they
 * cost at once, and never less than without rounding.
 */
function extraParts(config: WarmUpConfig, missing: number, isBegin: boolean): number {
  const { limit, warmupMs, coldFactor } = config;
  const cold = 4 * warmupMs * limit - missing;
  if (cold <= 0 || coldFactor === 1) return 0;
  const divisor = BigInt(16 * (coldFactor + 1)) * BigInt(warmupMs * limit);
  const dividend = BigInt(cold) ** 2n * BigInt(coldFactor - 1);
  return Number((dividend + (isBegin || missing === 0 ? divisor - 1n : 0n)) / divisor);
}
