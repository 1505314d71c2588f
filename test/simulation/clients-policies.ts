/** The policies of histories of clients in processes (clients.ts). */
import { parsePolicies } from "../support/milliseconds.ts";

const deadlineMs = 100;
const BUCKET = { algorithm: "token-bucket", limit: 40, window: 1_000, deadlineMs };
const POLICIES = parsePolicies({
  brief: { ...BUCKET, burst: 48, reservation: { ttl: 40 } },
  bucket: { ...BUCKET, limit: 200, burst: 96, reservation: { ttl: 120 } },
  // Below 12 the object reserves nothing: a crash may cost only what returns within 10 s.
  slow: { ...BUCKET, limit: 24, window: 60_000, burst: 64, reservation: { ttl: 60 } },
  auto: { ...BUCKET, limit: 500, burst: 400 },
  log: { algorithm: "sliding-log", limit: 64, window: 400, reservation: { ttl: 50 }, deadlineMs },
  two: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 40, window: 1_000, burst: 64 },
      total: { algorithm: "sliding-log", limit: 64, window: 900 },
    },
    reservation: { ttl: 80 },
    deadlineMs,
  },
});
const FAR = { ...BUCKET, deadlineMs: 400 };
const FAR_POLICIES = parsePolicies({
  brief: { ...FAR, limit: 400, burst: 300, reservation: { ttl: 500 } },
  auto: { ...FAR, limit: 600, burst: 500 },
  log: { algorithm: "sliding-log", limit: 300, window: 900, reservation: { ttl: 500 }, deadlineMs: 400 },
  both: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 400, window: 1_000, burst: 300 },
      total: { algorithm: "token-bucket", limit: 900, window: 3_000, burst: 400 },
    },
    reservation: { ttl: 600 },
    deadlineMs: 400,
  },
});
const SHARED_POLICIES = parsePolicies({
  bucket: { ...BUCKET, limit: 400, burst: 300, fair: true, reservation: { ttl: 80 } },
  weighed: { ...BUCKET, limit: 200, burst: 160, fair: true, weights: { a: 3 } },
  log: { algorithm: "sliding-log", limit: 64, window: 400, fair: true, deadlineMs },
});

/** Usually clients are near. `far`: 15 to 60 ms away and busy, so that they get buckets. `shared`: calls have groups. */
export type Kind = "usual" | "far" | "shared";
export const POLICIES_OF = { usual: POLICIES, far: FAR_POLICIES, shared: SHARED_POLICIES };
