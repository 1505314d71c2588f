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

/**
 * A limiter in memory that decides with the real algorithms.
 *
 * @throws Error that names every bad policy, field and value, and what is allowed
 */
export function memoryLimiter({ policies, policy, clock }: MemoryLimiterOptions): TestLimiter {
  const inner = makeMemoryLimiter({
    policies,
    ...(policy !== undefined && { policy }),
    ...(clock !== undefined && { time: clock }),
  });
  return testLimiter(inner, policy);
}
