/** What is measured for the table of docs/costs.md. */
import type { Limiter } from "./counted-limiter.ts";

const FAST = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: 10_000 };
/** The units that memory may be ahead of storage by are less than one: each decision is written. */
const SLOW = { ...FAST, limit: 5, window: "15m" };
const SLOTS = { algorithm: "concurrency", limit: 10, deadlineMs: 10_000 };
/** Leases of at most 10 s, which isolates grant from slots that they took. */
const BRIEF = { ...SLOTS, limit: 100, ttl: "10s" };
/** The policies of all lines. */
export const POLICIES = {
  hot: FAST,
  off: { ...FAST, reservation: "off" },
  over: { ...FAST, limit: 1, window: "30d" },
  full: { ...FAST, limit: 1_000, objects: 1 },
  small: { ...FAST, limit: 20 },
  shared: { ...FAST, limit: 1_000, objects: 1 },
  own: { ...FAST, limit: 1_000 },
  "slow-shared": { ...SLOW, objects: 1 },
  "slow-own": SLOW,
  slots: SLOTS,
  brief: BRIEF,
  log: { algorithm: "sliding-log", limit: 100, window: "1m", deadlineMs: 10_000 },
  adaptive: { ...SLOTS, algorithm: "adaptive-concurrency", initial: 10, floor: 1 },
};

/** The calls of one line of the table. */
export interface Line {
  readonly name: string;
  /** How many decisions are made. */
  readonly count: number;
  /** Makes one. */
  readonly call: (limiter: Limiter, index: number) => Promise<unknown>;
  /** What is made before, and is not counted. */
  readonly before?: (limiter: Limiter) => Promise<unknown>;
  /** What is counted is only what calls cost, and not what is forgotten later: their keys stay in use. */
  readonly staysInUse?: boolean;
}

const limit = (policy: string, of: (index: number) => object) => (limiter: Limiter, index: number) =>
  limiter.call("POST", "/v1/limit", { policy, ...of(index) });

const one = () => ({ key: "one" });
const fresh = (index: number) => ({ key: `new ${index}` });

const leased = (policy: string) => async (limiter: Limiter) => {
  const { lease } = await limiter.call("POST", "/v1/leases", { policy, key: "one" });
  await limiter.call("DELETE", `/v1/leases/${lease?.id ?? ""}`);
};

/** Half a second apart: the isolate rests, which sends a message for some of them. */
const rarely = async (limiter: Limiter) => {
  await limiter.later(500);
  await leased("brief")(limiter);
};

const held = async (limiter: Limiter) => {
  const { hold } = await limiter.call("POST", "/v1/holds", { policy: "shared", key: "one", units: 1 });
  await limiter.call("POST", `/v1/holds/${hold?.id ?? ""}/settle`, { used: 1 });
};

/** The lines of the table. */
export const LINES: readonly Line[] = [
  { name: "hot keys, decided by isolates", count: 20_000, call: limit("hot", one), staysInUse: true },
  {
    name: 'hot keys with `reservation = "off"`',
    count: 20_000,
    call: limit("off", one),
    staysInUse: true,
  },
  {
    name: "denied by the isolate",
    count: 5_000,
    before: (limiter) => limit("over", one)(limiter, 0).then(() => limit("over", one)(limiter, 0)),
    call: limit("over", one),
    staysInUse: true,
  },
  {
    name: "denied by the object, or `cost: 0`",
    count: 1_000,
    call: limit("over", () => ({ key: "one", cost: 0 })),
  },
  {
    name: "keys near full, `objects = N`, 100 a second",
    count: 20_000,
    call: async (limiter, index) => {
      if (index % 100 === 99) await limiter.later(1_000);
      await limit("full", () => ({ key: `key ${index % 2_000}` }))(limiter, index);
    },
    staysInUse: true,
  },
  {
    name: "keys with a small burst, 16 a second",
    count: 8_000,
    call: async (limiter, index) => {
      if (index % 16 === 15) await limiter.later(1_000);
      await limit("small", one)(limiter, index);
    },
    staysInUse: true,
  },
  {
    name: "with an idempotency key",
    count: 4_000,
    before: (limiter) => limit("shared", () => ({ key: "one", idempotencyKey: "first" }))(limiter, 0),
    call: limit("shared", (index) => ({ key: "one", idempotencyKey: `call ${index}` })),
  },
  {
    name: "keys that come once, `objects = N`",
    count: 10_000,
    call: limit("shared", fresh),
  },
  { name: "keys that come once, an object each", count: 300, call: limit("own", fresh) },
  {
    name: "small, slow limits, `objects = N`",
    count: 5_000,
    before: (limiter) => limit("slow-shared", one)(limiter, 0),
    call: limit("slow-shared", fresh),
  },
  { name: "small, slow limits, an object each", count: 300, call: limit("slow-own", fresh) },
  {
    name: "acquired and released (a pair)",
    count: 1_000,
    before: leased("slots"),
    call: leased("slots"),
  },
  {
    name: "the same with an adaptive limit",
    count: 1_000,
    before: leased("adaptive"),
    call: leased("adaptive"),
  },
  {
    name: "a pair granted by an isolate, 2 a second",
    count: 1_000,
    before: async (limiter) => {
      for (let pair = 0; pair < 100; pair += 1) await rarely(limiter);
    },
    call: (limiter) => rarely(limiter),
    staysInUse: true,
  },
  {
    name: "held and settled (a pair)",
    count: 4_000,
    before: held,
    call: held,
  },
];

/** An hour of one object with a call a second: what it writes, and which alarms come, whatever the calls are. */
export const AN_HOUR: Line = {
  name: "an hour",
  count: 3_600,
  call: async (limiter, index) => {
    await limiter.later(1_000);
    await limit("full", () => ({ key: `key ${index % 2_000}` }))(limiter, index);
  },
  staysInUse: true,
};

/** A line of the table of months: the measured calls stand for a month's number of calls. */
interface Month extends Line {
  readonly calls: number;
}

export const MONTH_SECONDS = 30 * 86_400;

/** Calls on one key at an interval, for a few hours. */
function month(name: string, seconds: number, call: Line["call"]): Month {
  return {
    name: `${name}, every ${seconds === 60 ? "minute" : `${seconds} s`}`,
    calls: MONTH_SECONDS / seconds,
    count: seconds < 60 ? 720 : 360,
    call: async (limiter, index) => {
      await limiter.later(seconds * 1_000);
      await call(limiter, index);
    },
    staysInUse: true,
  };
}

/** One key that is called now and then, of each kind of policy. */
export const MONTHS: readonly Month[] = [10, 60].flatMap((seconds) => [
  month("a bucket, an object each", seconds, limit("own", one)),
  month("a bucket, `objects = N`", seconds, limit("shared", one)),
  month("a small, slow limit", seconds, limit("slow-own", one)),
  month("a sliding log", seconds, limit("log", one)),
  month("a lease, and its release", seconds, leased("slots")),
]);
