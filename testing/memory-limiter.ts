import { requireKnownOptions, requireTime } from "../core/violations.ts";
import { makeMemoryLimiter } from "../worker/embedded/memory-limiter.ts";
import type { ManualClock } from "./manual-clock.ts";
import { testLimiter, type TestLimiter } from "./test-limiter.ts";

/** What a limiter in memory is told. */
export interface MemoryLimiterOptions {
  /** The policies, as `[vars.POLICIES]` has them. */
  readonly policies: Readonly<Record<string, object>>;
  /** The policy of calls that name none. */
  readonly policy?: string;
  /** The clock of the test. Absent: the real one. */
  readonly clock?: ManualClock;
}

const KNOWN = ["policies", "policy", "clock"];
/** As `weir/memory` and middleware call it. Were it not refused, the test would count by the real clock. */
const SYNONYMS = new Map([["time", "clock"]]);

/**
 * A limiter in memory that decides with the real algorithms.
 *
 * @throws TypeError that names the option, its value and what is allowed
 * @throws Error that names every bad policy, field and value, and what is allowed
 */
export function memoryLimiter(options: MemoryLimiterOptions): TestLimiter {
  requireKnownOptions(options, KNOWN, SYNONYMS);
  const { policies, policy, clock } = options;
  requireTime("clock", clock);
  const inner = makeMemoryLimiter({
    policies,
    ...(policy !== undefined && { policy }),
    ...(clock !== undefined && { time: clock }),
  });
  return testLimiter(inner, policy);
}
