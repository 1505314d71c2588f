import { adaptiveConcurrency } from "../algorithms/adaptive/adaptive-concurrency.ts";
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import { concurrency } from "../algorithms/concurrency.ts";
import { credits } from "../algorithms/credits.ts";
import { gcra } from "../algorithms/gcra.ts";
import { leakyBucket } from "../algorithms/leaky-bucket.ts";
import { slidingLog } from "../algorithms/log/sliding-log.ts";
import { permitsPerCycle } from "../algorithms/ported/permits-per-cycle.ts";
import { smoothBursty } from "../algorithms/ported/smooth-bursty.ts";
import { smoothWarmingUp } from "../algorithms/ported/smooth-warming-up.ts";
import { tokenBucket } from "../algorithms/token-bucket.ts";
import { unlimited } from "../algorithms/unlimited.ts";
import { fixedWindow } from "../algorithms/windows/fixed-window.ts";
import { slidingWindowCounter } from "../algorithms/windows/sliding-window-counter.ts";

/** All algorithms by name. The law suite tests each. */
export const algorithms: ReadonlyMap<string, AnyAlgorithm> = new Map(
  [
    // One per line, in the order of error messages.
    tokenBucket,
    slidingLog,
    concurrency,
    fixedWindow,
    slidingWindowCounter,
    leakyBucket,
    gcra,
    permitsPerCycle,
    smoothBursty,
    smoothWarmingUp,
    adaptiveConcurrency,
    credits,
    unlimited,
  ].map((algorithm) => [algorithm.name, algorithm as AnyAlgorithm]),
);
