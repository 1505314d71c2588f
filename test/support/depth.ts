/**
 * The length of the long tests. `npm test` runs a quick length that finds a gross break; `npm run test:deep`
 * sets WEIR_DEEP=1 and runs only the test files that import this module, at full length.
 */
import { expect, test } from "vitest";

export const IS_DEEP = process.env["WEIR_DEEP"] === "1";

export function depth<Value>(quick: Value, deep: Value): Value {
  return IS_DEEP ? deep : quick;
}

/** Tests that have no quick length: mistakes planted in simulations, for one. */
export const inDeepRuns = test.runIf(IS_DEEP);

/**
 * Histories mean nothing unless all of this happens often: so many times in one of them, on average. In the few
 * histories of a quick run that holds by chance, so there it is asked of `sure` alone, which no seed of 10,000 misses.
 */
export function expectOften<Sum extends object>(
  sum: Sum,
  histories: number,
  least: Readonly<Partial<Record<keyof Sum & string, number>>>,
  sure: readonly (keyof Sum & string)[] = [],
): void {
  for (const [name, share] of Object.entries(least) as [keyof Sum & string, number][])
    if (IS_DEEP || sure.includes(name))
      expect(Number(sum[name] ?? 0), name).toBeGreaterThan(share * histories);
}
