/**
 * The length of the long tests. `npm test` runs a quick length that finds a gross break; `npm run test:deep`
 * sets WEIR_DEEP=1 and runs only the test files that import this module, at full length.
 */
import { test } from "vitest";

export const IS_DEEP = process.env["WEIR_DEEP"] === "1";

export function depth<Value>(quick: Value, deep: Value): Value {
  return IS_DEEP ? deep : quick;
}

/** Tests that have no quick length: mistakes planted in simulations, for one. */
export const inDeepRuns = test.runIf(IS_DEEP);
