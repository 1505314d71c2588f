import { adaptiveConcurrency } from "./adaptive-concurrency.ts";
import type { AnyAlgorithm } from "./algorithm.ts";
import { concurrency } from "./concurrency.ts";
import { credits } from "./credits.ts";
import { fixedWindow } from "./fixed-window.ts";
import { gcra } from "./gcra.ts";
import { leakyBucket } from "./leaky-bucket.ts";
import { permitsPerCycle } from "./permits-per-cycle.ts";
import { slidingLog } from "./sliding-log.ts";
import { slidingWindowCounter } from "./sliding-window-counter.ts";
import { smoothBursty } from "./smooth-bursty.ts";
import { smoothWarmingUp } from "./smooth-warming-up.ts";
import { tokenBucket } from "./token-bucket.ts";
import { unlimited } from "./unlimited.ts";

/** All algorithms by name. A rule names one, parsing reads its `fields`, and the law suite tests each of them. */
export const algorithms: ReadonlyMap<string, AnyAlgorithm> = new Map(
  [
    // One a line, in the order in which errors list them.
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
