/** Policies and tokens that the tests use; nothing here is secret. */

/** API_TOKENS has only their SHA-256, below. */
export const TOKENS = {
  /** All scopes, for every policy and key. */
  full: "weir_test_full",
  limit: "weir_test_limit",
  refund: "weir_test_refund",
  admin: "weir_test_admin",
  reserve: "weir_test_reserve",
  metrics: "weir_test_metrics",
  /** The policy "api" only, keys that begin with "tenant-a:". */
  tenant: "weir_test_tenant",
} as const;

export const TEST_TOKENS = [
  {
    name: "full",
    sha256: "596d995236ebff5281c8e48de3ce4f43e0bb022570d656e4a988ad20282234af",
    scopes: ["limit", "refund", "force", "reserve", "admin"],
  },
  {
    name: "limit",
    sha256: "10c1885c4469c041a2760a1dbb33f42563ee33475547e0c8419e385d45db8059",
    scopes: ["limit"],
  },
  {
    name: "refund",
    sha256: "2407a743f94ccf8c43c026fe5a8a3f8187a68d9444824114da8b462962f4d3fc",
    scopes: ["refund"],
  },
  {
    name: "admin",
    sha256: "c242584ed987ae337449af40b9c1dc37f38afd848f86c4b54c8579b524c503e0",
    scopes: ["admin"],
  },
  {
    name: "reserve",
    sha256: "2b2e3ae81cdff75222a8f98f22c78f94345be2dbe42a62b91b19eb21f2a45d27",
    scopes: ["limit", "reserve"],
  },
  {
    name: "metrics",
    sha256: "ddacfea6e41069edce0b00a8c6fe9d42fdbb1ac18012365bfb1d6a3ee0b2fe4f",
    scopes: ["metrics"],
  },
  {
    name: "tenant",
    sha256: "1bb806561cf549535a1fb8424ebc8adf42d33510a4edaeb424b0934aa42c22ba",
    scopes: ["limit"],
    policies: ["api"],
    keyPrefix: "tenant-a:",
  },
];

/** Longer than any pause of a busy machine, in milliseconds, so decisions never meet the deadline. */
const PATIENT_MS = 20_000;
const TIERS: string[] = ["paid", "free"];
const PATIENT = { reservation: { ttl: "20s" }, deadlineMs: PATIENT_MS };

export const TEST_POLICIES = {
  api: { algorithm: "token-bucket", limit: 100, window: "1s", burst: 500 },
  /** Without effect on plain workerd. */
  european: {
    algorithm: "token-bucket",
    limit: 5,
    window: "30d",
    jurisdiction: "eu",
    deadlineMs: PATIENT_MS,
  },
  /** Refills too slowly for a test to notice. */
  slow: { algorithm: "token-bucket", limit: 5, window: "30d", deadlineMs: PATIENT_MS },
  /** Large enough for memory to be ahead of storage: 2 % is 200 units. */
  ahead: {
    algorithm: "token-bucket",
    limit: 10_000,
    window: "30d",
    reservation: { ttl: "1s" },
    deadlineMs: PATIENT_MS,
  },
  /** Clients in their callers' processes hold none of its units. */
  inside: {
    algorithm: "token-bucket",
    limit: 10_000,
    window: "30d",
    reservation: { clients: false },
    deadlineMs: PATIENT_MS,
  },
  fast: { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: PATIENT_MS },
  /** For isolates: large enough for reservations, hardly a refill, and a lifetime longer than any pause. */
  hot: { algorithm: "token-bucket", limit: 100_000, window: "30d", ...PATIENT },
  "hot-log": { algorithm: "sliding-log", limit: 100_000, window: "30d", ...PATIENT },
  "hot-brief": {
    algorithm: "token-bucket",
    limit: 100_000,
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
      requests: { algorithm: "token-bucket", limit: 100_000, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 1_000_000, window: "30d", unit: "tokens" },
    },
    ...PATIENT,
  },
  planned: {
    algorithm: "token-bucket",
    limit: 10,
    window: "30d",
    limitInCall: { max: 1_000 },
    plans: { pro: { limit: 40 }, max: { limit: 100_000 } },
    ...PATIENT,
  },
  /** Of limits in calls, those below 5 are too small for `carry`. */
  "planned-windows": {
    algorithm: "fixed-window",
    limit: 100,
    window: "1h",
    carry: 60,
    limitInCall: { max: 1_000 },
    deadlineMs: PATIENT_MS,
  },
  "planned-slots": {
    algorithm: "concurrency",
    limit: 2,
    ttl: "60s",
    plans: { pro: { limit: 5 } },
    deadlineMs: PATIENT_MS,
  },
  "planned-rules": {
    rules: {
      requests: { algorithm: "token-bucket", limit: 10, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 100, window: "30d", unit: "tokens" },
    },
    plans: { pro: { rules: { tokens: { limit: 1_000 } } } },
    ...PATIENT,
  },
  /** Groups share 100 units, of which hardly any come back. */
  fair: {
    algorithm: "token-bucket",
    limit: 100,
    window: "30d",
    fair: true,
    weights: { "gold:*": 3 },
    ...PATIENT,
  },
  "fair-hot": { algorithm: "token-bucket", limit: 100_000, window: "1s", fair: true },
  "fair-slots": {
    algorithm: "concurrency",
    limit: 4,
    ttl: "8s",
    maxWait: "20s",
    fair: true,
    weights: { "gold:*": 3 },
    ...PATIENT,
  },
  /** Refilled a millisecond after each unit. */
  brief: { algorithm: "token-bucket", limit: 1_000, window: "1s", deadlineMs: PATIENT_MS },
  prepaid: { algorithm: "credits", limit: 1_000, initial: 2, deadlineMs: PATIENT_MS },
  free: { algorithm: "unlimited", deadlineMs: PATIENT_MS },
  shut: { algorithm: "token-bucket", limit: 0, window: "1s", deadlineMs: PATIENT_MS },
  "hot-slots": { algorithm: "concurrency", limit: 20, ttl: "8s", deadlineMs: PATIENT_MS },
  "shut-slots": { algorithm: "concurrency", limit: 0, maxWait: "20s", deadlineMs: PATIENT_MS },
  /** Their keys were elsewhere before. */
  moved: {
    algorithm: "token-bucket",
    limit: 5,
    window: "30d",
    objects: 8,
    objectsBefore: 4,
    deadlineMs: PATIENT_MS,
  },
  "moved-export": {
    algorithm: "concurrency",
    limit: 1,
    ttl: "60s",
    maxTtl: "10m",
    objects: "per-key",
    objectsBefore: 2,
    deadlineMs: PATIENT_MS,
  },
  /** All keys are in one object. */
  flooded: { algorithm: "token-bucket", limit: 1_000, window: "1s", objects: 1, deadlineMs: PATIENT_MS },
  shared: { algorithm: "token-bucket", limit: 5, window: "30d", objects: 4, deadlineMs: PATIENT_MS },
  address: { algorithm: "token-bucket", limit: 5, window: "30d", keyKind: "ip", deadlineMs: PATIENT_MS },
  shadow: { algorithm: "token-bucket", limit: 2, window: "30d", shadow: true, deadlineMs: PATIENT_MS },
  open: { algorithm: "token-bucket", limit: 5, window: "30d", onFailure: "open", deadlineMs: 200 },
  closed: { algorithm: "token-bucket", limit: 5, window: "30d", deadlineMs: 200 },
  "shadow-closed": { algorithm: "token-bucket", limit: 5, window: "30d", shadow: true, deadlineMs: 200 },
  penal: { algorithm: "sliding-log", limit: 2, window: "1m", blockFor: "15m", deadlineMs: PATIENT_MS },
  /** A part is kept for more important calls. */
  kept: {
    algorithm: "token-bucket",
    limit: 10,
    window: "30d",
    reserve: { critical: "20%", high: "10%" },
    ...PATIENT,
  },
  "kept-hot": {
    algorithm: "token-bucket",
    limit: 1_000,
    window: "30d",
    reserve: { critical: "50%" },
    ...PATIENT,
  },
  "kept-rate": {
    algorithm: "token-bucket",
    limit: 10,
    window: "1s",
    reserve: { critical: "20%" },
    ...PATIENT,
  },
  "kept-slots": {
    algorithm: "concurrency",
    limit: 4,
    priorities: TIERS,
    reserve: { paid: "50%" },
    ...PATIENT,
  },
  constructor: { algorithm: "token-bucket", limit: 1, window: "30d" },
  log: { algorithm: "sliding-log", limit: 5, window: "30d", deadlineMs: PATIENT_MS },
  /** For bounds of one object, which all keys share. */
  crowd: {
    algorithm: "token-bucket",
    limit: 1_000_000,
    window: "30d",
    objects: 1,
    deadlineMs: PATIENT_MS,
  },
  "crowd-slots": {
    algorithm: "concurrency",
    limit: 1,
    maxWait: "20s",
    maxWaiters: 1_000,
    objects: 1,
    deadlineMs: PATIENT_MS,
  },
  monthly: {
    algorithm: "fixed-window",
    limit: 50,
    window: "1 month",
    timeZone: "Europe/Berlin",
    deadlineMs: PATIENT_MS,
  },
  "shadow-windows": {
    rules: {
      year: { algorithm: "fixed-window", limit: 2, window: "1 year", align: "calendar" },
      sliding: { algorithm: "sliding-window-counter", limit: 100, window: "30d" },
    },
    shadow: true,
    deadlineMs: PATIENT_MS,
  },
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
  /** From 4 slots up to 10; at least half of them must be in use for more. */
  adaptive: {
    algorithm: "adaptive-concurrency",
    adapt: "aimd",
    limit: 10,
    initial: 4,
    maxWait: "60s",
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
  /** Policies that delay admitted calls: one unit an hour. */
  leaky: { algorithm: "leaky-bucket", limit: 1, window: "1h", burst: 3, deadlineMs: PATIENT_MS },
  "leaky-shadow": {
    algorithm: "leaky-bucket",
    limit: 1,
    window: "1h",
    burst: 1,
    shadow: true,
    deadlineMs: PATIENT_MS,
  },
  "leaky-rules": {
    rules: {
      rate: { algorithm: "token-bucket", limit: 5, window: "30d" },
      fast: { algorithm: "leaky-bucket", limit: 4, window: "1h", burst: 4 },
      slow: { algorithm: "leaky-bucket", limit: 1, window: "1h", burst: 4 },
    },
    deadlineMs: PATIENT_MS,
  },
  cycles: { algorithm: "permits-per-cycle", limit: 1, window: "1h", timeout: "2h", deadlineMs: PATIENT_MS },
  bursty: {
    algorithm: "smooth-bursty",
    limit: 1,
    window: "1h",
    maxBurst: "1h",
    maxDelay: "2h",
    deadlineMs: PATIENT_MS,
  },
  warming: {
    algorithm: "smooth-warming-up",
    limit: 1,
    window: "1h",
    warmup: "4h",
    maxDelay: "5h",
    deadlineMs: PATIENT_MS,
  },
  mixed: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 3, window: "30d" },
      slots: { algorithm: "concurrency", limit: 2 },
    },
    deadlineMs: PATIENT_MS,
  },
  /** More objects than one answer counts. */
  wide: { algorithm: "token-bucket", limit: 5, window: "30d", objects: 300, deadlineMs: PATIENT_MS },
  "shared-export": { algorithm: "concurrency", limit: 2, objects: 2, deadlineMs: PATIENT_MS },
  /** Denied callers wait up to half longer, or up to 20 s longer. */
  jittery: { algorithm: "token-bucket", limit: 5, window: "30d", retryJitter: 0.5, deadlineMs: PATIENT_MS },
  "jittery-export": { algorithm: "concurrency", limit: 1, retryJitter: "20s", deadlineMs: PATIENT_MS },
  /** For clients that know older headers only. */
  "older-headers": {
    algorithm: "token-bucket",
    limit: 100_000,
    window: "30d",
    headers: "draft-7",
    deadlineMs: PATIENT_MS,
  },
} as const;
