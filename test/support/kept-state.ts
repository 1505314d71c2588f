/**
 * test/kept-state/ keeps, for each version, a state folder that it wrote, and the answers that its callers
 * got. Every later version must read the folder with nothing lost (test/system/kept-state.test.ts).
 *
 * The next version writes its own before it is released, and both files of it are committed:
 *
 * node scripts/with-packages.mjs test/support/write-state.ts test/kept-state/<version>
 *
 * A kept folder is never written anew. So policies and steps here are for ever as well: more may be added,
 * with a claim for the folders that have them.
 */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

export const KEPT = join(import.meta.dirname, "..", "kept-state");

export const DAY_MS = 86_400_000;
/** Longer than a folder is kept, and short enough for 28,000 units: units * window may not exceed 2^53. */
export const WINDOW_MS = 3_650 * DAY_MS;
/** The longest that a lease may last. */
export const LEASE_MS = 2_147_483_647;
/** The longest that a hold may last. */
export const HOLD_MS = DAY_MS;
export const MIN_INTERVAL_MS = 1_000 * DAY_MS;

const PATIENT = { deadlineMs: 20_000 };
/** The object decides every call, so its state is known to the unit. */
const ALONE = { ...PATIENT, reservation: "off" };
const bucket = (limit: number) => ({ algorithm: "token-bucket", limit, window: WINDOW_MS });
const log = (limit: number) => ({ algorithm: "sliding-log", limit, window: WINDOW_MS });
const slots = (limit: number) => ({ algorithm: "concurrency", limit, ttl: LEASE_MS, maxTtl: LEASE_MS });

export const KEPT_POLICIES = {
  bucket: { ...bucket(10), ...ALONE },
  burst: { ...bucket(5), burst: 20, ...ALONE },
  shared: { ...bucket(40), objects: 2, ...ALONE },
  visitor: { ...bucket(10), keyKind: "ip", objects: 1, ...ALONE },
  budget: { ...bucket(40), objects: 1, ...ALONE },
  /** Memory may be 2 % ahead of storage: 200 units. */
  hot: { ...bucket(10_000), ...ALONE },
  /** The same, and an isolate holds units of it: 625 at most. */
  reserved: { ...bucket(10_000), ...PATIENT },
  /** 20 units ahead. */
  log: { ...log(1_000), ...ALONE },
  spaced: { ...log(5), minInterval: MIN_INTERVAL_MS, ...ALONE },
  hammered: { ...log(2), countDenied: true, ...ALONE },
  rules: { rules: { requests: bucket(40), tokens: { ...log(1_000), unit: "tokens" } }, ...ALONE },
  slots: { ...slots(5), ...ALONE },
  job: { rules: { rate: bucket(20), slots: slots(3) }, ...ALONE },
};

/** By policy: the most units that a crash may cost, by which memory or an isolate was ahead of storage. */
export const AHEAD = { hot: 200, log: 20, reserved: 200 + 625 };
/** Calls of the step `runs`, 3 ms apart, and so the runs in its log. */
export const RUNS = 300;
export const HOT = { calls: 10, units: 7 };
export const HOT_LOG = { calls: 10, units: 3 };
export const RESERVED_CALLS = 300;

/** Keys that a store, an address or an object literal might mishandle. */
export const ODD_KEYS = [
  "straße/日本/🦊",
  "a/key/b/shared/0",
  "__proto__",
  "é".repeat(256),
  "' OR 1=1 --\n\t%2F?#",
];

export interface Step {
  readonly method: "POST" | "DELETE" | "PAUSE";
  /** `<name>` is replaced by the id of the hold or lease that answered the step of that name. */
  readonly path: string;
  readonly body?: Readonly<Record<string, unknown>>;
  readonly times?: number;
  /** The pause before each call, in milliseconds. */
  readonly pauseMs?: number;
}

const post = (path: string, body: Step["body"] = {}): Step => ({ method: "POST", path: `/v1/${path}`, body });
const remove = (path: string): Step => ({ method: "DELETE", path: `/v1/${path}` });
const limit = (policy: string, key: string, cost: unknown, more = {}) =>
  post("limit", { policy, key, cost, ...more });
const hold = (policy: string, key: string, units: unknown, more = {}) =>
  post("holds", { policy, key, units, ttlMs: HOLD_MS, ...more });
const lease = (policy: string, key: string, units: number, more = {}) =>
  post("leases", { policy, key, units, ...more });
const odd = (policy: string) =>
  Object.fromEntries(
    ODD_KEYS.map((key, index) => [`${policy} of odd key ${index}`, limit(policy, key, index + 1)]),
  );

/** All steps, made in this order, one call after the other. An answer is found by the name of its step. */
export const STEPS: Readonly<Record<string, Step>> = {
  bucket: limit("bucket", "plain", 3),
  burst: limit("burst", "key", 12),
  ...odd("bucket"),
  ...odd("shared"),
  "network of six": limit("visitor", "2001:db8:1:2:aaaa::1", 2),
  "address of four": limit("visitor", "192.0.2.7", 1),

  "idempotent limit": limit("bucket", "idempotent", 2, { idempotencyKey: "limit/1" }),
  "before refund": limit("bucket", "refunded", 6),
  "idempotent refund": post("refund", {
    policy: "bucket",
    key: "refunded",
    units: 2,
    idempotencyKey: "refund/1",
  }),
  "idempotent rules": limit("rules", "idempotent", { requests: 2, tokens: 30 }, { idempotencyKey: "ключ" }),

  "held for long": hold("budget", "outstanding", 5),
  "held idempotently": hold("budget", "outstanding", 4, { idempotencyKey: "hold/1" }),
  "held and settled": hold("budget", "ended", 6),
  settled: post("holds/<held and settled>/settle", { used: 2 }),
  "held and cancelled": hold("budget", "ended", 3),
  cancelled: remove("holds/<held and cancelled>"),
  "held briefly": hold("budget", "ended", 1, { ttlMs: 20 }),
  "after the brief hold": { ...limit("budget", "ended", 1, { idempotencyKey: "after" }), pauseMs: 100 },
  "held before debt": hold("bucket", "debt", 2),
  debt: post("holds/<held before debt>/settle", { used: 25 }),
  "held of rules": hold("rules", "held", { requests: 3, tokens: 400 }),

  runs: { ...limit("log", "runs", 1), times: RUNS, pauseMs: 3 },
  "before log refund": limit("log", "refunded", 10),
  "later log units": { ...limit("log", "refunded", 8), pauseMs: 30 },
  "log refund": post("refund", { policy: "log", key: "refunded", units: 12, idempotencyKey: "refund/2" }),
  spaced: limit("spaced", "key", 1),
  hammered: { ...limit("hammered", "key", 1), times: 2 },
  "denied and counted": { ...limit("hammered", "key", 1), pauseMs: 50 },
  "denied and counted again": { ...limit("hammered", "key", 1), pauseMs: 50 },
  rules: limit("rules", "key", { requests: 2, tokens: 300 }),

  "lease of two": lease("slots", "key", 2),
  "idempotent lease": lease("slots", "key", 1, { idempotencyKey: "lease/1" }),
  "lease to release": lease("slots", "key", 1),
  released: remove("leases/<lease to release>"),
  "lease of a job": lease("job", "key", 1, { idempotencyKey: "job/1" }),
  "brief lease of a job": lease("job", "key", 1, { ttlMs: 20 }),
  "another lease of a job": { ...lease("job", "key", 1), pauseMs: 100 },

  all: post("limit/all", {
    checks: [
      { policy: "bucket", key: "of all", cost: 2 },
      { policy: "shared", key: "of all", cost: 3 },
      { policy: "slots", key: "of all", cost: 1 },
    ],
    idempotencyKey: "all/1",
  }),

  // After a quiet second the exact state is written. Later calls are ahead of storage when the process ends.
  quiet: { method: "PAUSE", path: "", pauseMs: 2_500 },
  "reserved calls": { ...limit("reserved", "key", 1), times: RESERVED_CALLS },
  "hot log": { ...limit("log", "hot", HOT_LOG.units), times: HOT_LOG.calls },
  hot: { ...limit("hot", "key", HOT.units), times: HOT.calls },
};

/** The last answer to a step, and when each of its calls was sent and answered. */
export interface KeptAnswer {
  readonly status: number;
  readonly body: Record<string, unknown>;
  readonly times: readonly (readonly [sentAtMs: number, receivedAtMs: number])[];
}

export interface KeptState {
  readonly writtenAtMs: number;
  readonly answers: Readonly<Record<string, KeptAnswer>>;
}

export function keptVersions(): string[] {
  return readdirSync(KEPT)
    .filter((name) => name.endsWith(".json"))
    .map((name) => name.slice(0, -".json".length));
}

export function readKept(version: string): KeptState {
  return JSON.parse(readFileSync(join(KEPT, `${version}.json`), "utf8")) as KeptState;
}

export function pathOf({ path }: Step, answers: KeptState["answers"]): string {
  return path.replaceAll(/<(.*?)>/g, (_, name: string) => idOf(answers[name]));
}

export function idOf(answer: KeptAnswer | undefined): string {
  const { hold: held, lease: leased } = (answer?.body ?? {}) as Record<string, { readonly id: string }>;
  const id = held?.id ?? leased?.id;
  if (id === undefined) throw new Error("neither a hold nor a lease was answered");
  return id;
}
