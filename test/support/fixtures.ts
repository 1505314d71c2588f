/** Policies and tokens that the tests use; nothing here is secret. */

/** The tokens themselves. API_TOKENS has only their SHA-256, below. */
export const TOKENS = {
  /** The scopes limit and admin, for every policy and key. */
  full: "weir_test_full",
  limit: "weir_test_limit",
  admin: "weir_test_admin",
  /** The policy "api" only, keys that begin with "tenant-a:". */
  tenant: "weir_test_tenant",
} as const;

export const TEST_TOKENS = [
  {
    name: "full",
    sha256: "596d995236ebff5281c8e48de3ce4f43e0bb022570d656e4a988ad20282234af",
    scopes: ["limit", "admin"],
  },
  {
    name: "limit",
    sha256: "10c1885c4469c041a2760a1dbb33f42563ee33475547e0c8419e385d45db8059",
    scopes: ["limit"],
  },
  {
    name: "admin",
    sha256: "c242584ed987ae337449af40b9c1dc37f38afd848f86c4b54c8579b524c503e0",
    scopes: ["admin"],
  },
  {
    name: "tenant",
    sha256: "1bb806561cf549535a1fb8424ebc8adf42d33510a4edaeb424b0934aa42c22ba",
    scopes: ["limit"],
    policies: ["api"],
    keyPrefix: "tenant-a:",
  },
];

/** Longer than any pause of a busy machine, in milliseconds, so that tests of decisions never meet the deadline. */
const PATIENT_MS = 20_000;
const PATIENT = { reservation: { ttl: "20s" }, deadlineMs: PATIENT_MS };

export const TEST_POLICIES = {
  api: { algorithm: "token-bucket", limit: 100, window: "1s", burst: 500 },
  /** Refills so slowly that a test sees none of it. */
  slow: { algorithm: "token-bucket", limit: 5, window: "30d", deadlineMs: PATIENT_MS },
  /** Large enough for memory to be ahead of storage: 2 % is 200 units. */
  ahead: {
    algorithm: "token-bucket",
    limit: 10_000,
    window: "30d",
    reservation: { ttl: "1s" },
    deadlineMs: PATIENT_MS,
  },
  fast: { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: PATIENT_MS },
  /** For isolates: large enough for reservations, a refill that no test sees, and a lifetime longer than any pause. */
  hot: { algorithm: "token-bucket", limit: 1_000, window: "30d", ...PATIENT },
  "hot-log": { algorithm: "sliding-log", limit: 1_000, window: "30d", ...PATIENT },
  "hot-brief": {
    algorithm: "token-bucket",
    limit: 1_000,
    window: "30d",
    reservation: { ttl: "1s" },
    deadlineMs: PATIENT_MS,
  },
  "hot-off": {
    algorithm: "token-bucket",
    limit: 1_000,
    window: "30d",
    reservation: "off",
    deadlineMs: PATIENT_MS,
  },
  "hot-shadow": {
    algorithm: "token-bucket",
    limit: 100,
    window: "30d",
    shadow: true,
    deadlineMs: PATIENT_MS,
  },
  "hot-rules": {
    rules: {
      requests: { algorithm: "token-bucket", limit: 1_000, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 100_000, window: "30d", unit: "tokens" },
    },
    ...PATIENT,
  },
  /** Whole again a millisecond after each unit. */
  brief: { algorithm: "token-bucket", limit: 1_000, window: "1s", deadlineMs: PATIENT_MS },
  shared: { algorithm: "token-bucket", limit: 5, window: "30d", objects: 4, deadlineMs: PATIENT_MS },
  address: { algorithm: "token-bucket", limit: 5, window: "30d", keyKind: "ip", deadlineMs: PATIENT_MS },
  shadow: { algorithm: "token-bucket", limit: 2, window: "30d", shadow: true, deadlineMs: PATIENT_MS },
  open: { algorithm: "token-bucket", limit: 5, window: "30d", onFailure: "open", deadlineMs: 200 },
  closed: { algorithm: "token-bucket", limit: 5, window: "30d", deadlineMs: 200 },
  "shadow-closed": { algorithm: "token-bucket", limit: 5, window: "30d", shadow: true, deadlineMs: 200 },
  constructor: { algorithm: "token-bucket", limit: 1, window: "30d" },
  log: { algorithm: "sliding-log", limit: 5, window: "30d", deadlineMs: PATIENT_MS },
  "long-log": { algorithm: "sliding-log", limit: 100_000, window: "30d", deadlineMs: PATIENT_MS },
  spaced: {
    algorithm: "sliding-log",
    limit: 5,
    window: "1h",
    minInterval: "1s",
    deadlineMs: PATIENT_MS,
  },
  hammered: { algorithm: "sliding-log", limit: 2, window: "1h", countDenied: true, deadlineMs: PATIENT_MS },
  export: {
    algorithm: "concurrency",
    limit: 2,
    ttl: "60s",
    maxTtl: "10m",
    maxWait: "20s",
    maxWaiters: 3,
    deadlineMs: PATIENT_MS,
  },
  /** For `ClaimsModel`: three units, a queue of two. */
  modelled: {
    algorithm: "concurrency",
    limit: 3,
    ttl: "10s",
    maxWait: "30s",
    maxWaiters: 2,
    deadlineMs: PATIENT_MS,
  },
  "shadow-export": { algorithm: "concurrency", limit: 1, shadow: true, deadlineMs: PATIENT_MS },
  "broken-export": { algorithm: "concurrency", limit: 1, deadlineMs: 200 },
  several: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 5, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 100, window: "30d", unit: "tokens" },
    },
    deadlineMs: PATIENT_MS,
  },
  mixed: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 3, window: "30d" },
      slots: { algorithm: "concurrency", limit: 2 },
    },
    deadlineMs: PATIENT_MS,
  },
} as const;
