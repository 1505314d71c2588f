import type { AnyAlgorithm } from "./algorithm.ts";
import { concurrency } from "./concurrency.ts";
import { slidingLog } from "./sliding-log.ts";
import { tokenBucket } from "./token-bucket.ts";

/** Every algorithm there is: a policy names one, parsing reads its `fields`, the law suite runs over all. */
export const algorithms: ReadonlyMap<string, AnyAlgorithm> = new Map(
  [tokenBucket, slidingLog, concurrency].map((algorithm) => [algorithm.name, algorithm as AnyAlgorithm]),
);
