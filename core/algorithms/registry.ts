import type { AnyAlgorithm } from "./algorithm.ts";
import { concurrency } from "./concurrency.ts";
import { slidingLog } from "./sliding-log.ts";
import { tokenBucket } from "./token-bucket.ts";

/** All algorithms by name. A rule names one, parsing reads its `fields`, and the law suite tests each of them. */
export const algorithms: ReadonlyMap<string, AnyAlgorithm> = new Map(
  [
    // One a line, in the order in which errors list them.
    tokenBucket,
    slidingLog,
    concurrency,
  ].map((algorithm) => [algorithm.name, algorithm as AnyAlgorithm]),
);
