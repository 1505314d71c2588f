/**
 * How long the long tests are. `npm test` runs each kind of test at a quick length, that finds a gross break;
 * `npm run test:deep` sets WEIR_DEEP=1 and runs the test files that import this module, and no others, at full length.
 */
import { test } from "vitest";

const IS_DEEP = process.env["WEIR_DEEP"] === "1";

export function depth<Value>(quick: Value, deep: Value): Value {
  return IS_DEEP ? deep : quick;
}

/** Tests that have no quick length. */
export const inDeepRuns = test.runIf(IS_DEEP);
