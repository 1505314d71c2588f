/** What the benchmark loads: the baselines of baseline.ts, and Weir in its various uses. */
import { seededRandom } from "../test/support/random.ts";
import { holdsFor, leasesFor, requestsFor, zipfKeys, type Load, type Requests } from "./load.ts";

const WARM_UP_SECONDS = 2;
const MANY_KEYS_WARM_UP_SECONDS = Number(process.env["WARM_UP"] ?? 10);
const KEYS = 10_000;

/** A call in the query, for a route that reads it and for Weir. */
const QUERY = "policy=hot&key=user:42&cost=1";

const BUCKET = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: 10_000 };
/** A hot key of each algorithm, all with limits that are never reached. */
const BY_ALGORITHM: Readonly<Record<string, object>> = {
  "token-bucket": BUCKET,
  gcra: { ...BUCKET, algorithm: "gcra" },
  "sliding-log": { ...BUCKET, algorithm: "sliding-log" },
  "sliding-window-counter": { ...BUCKET, algorithm: "sliding-window-counter" },
  "fixed-window": { ...BUCKET, algorithm: "fixed-window" },
  "fixed-window-by-day": {
    ...BUCKET,
    algorithm: "fixed-window",
    limit: 100_000_000,
    window: "1 day",
    timeZone: "Europe/Berlin",
  },
  "leaky-bucket-nodelay": { ...BUCKET, algorithm: "leaky-bucket", burst: 1_000_000, nodelay: true },
  "leaky-bucket": { ...BUCKET, algorithm: "leaky-bucket", burst: 1_000_000 },
  "permits-per-cycle": { ...BUCKET, algorithm: "permits-per-cycle" },
  "smooth-bursty": { ...BUCKET, algorithm: "smooth-bursty" },
  "smooth-warming-up": { ...BUCKET, algorithm: "smooth-warming-up", warmup: "1s" },
  "with-blockFor": { ...BUCKET, blockFor: "1s" },
  "with-reserve": { ...BUCKET, reserve: { critical: "20%" } },
  credits: { algorithm: "credits", limit: 1_000_000_000, deadlineMs: 10_000 },
  unlimited: { algorithm: "unlimited" },
};
const LEASING: Readonly<Record<string, object>> = {
  concurrency: { algorithm: "concurrency", limit: 10_000, deadlineMs: 10_000 },
  "adaptive-concurrency": {
    algorithm: "adaptive-concurrency",
    limit: 10_000,
    initial: 10_000,
    floor: 10_000,
    deadlineMs: 10_000,
  },
};
export const POLICIES = {
  ...BY_ALGORITHM,
  ...LEASING,
  hot: BUCKET,
  off: { ...BUCKET, reservation: "off" },
  log: { ...BUCKET, algorithm: "sliding-log" },
  "two-rules": {
    rules: {
      rate: { algorithm: "token-bucket", limit: 1_000_000, window: "1s" },
      total: { algorithm: "sliding-log", limit: 1_000_000, window: "1s" },
    },
    deadlineMs: 10_000,
  },
  over: { ...BUCKET, limit: 10 },
  "per-key": { ...BUCKET, limit: 10_000 },
  shared: { ...BUCKET, limit: 10_000, objects: 16 },
  "on-4": { ...BUCKET, limit: 10_000, objects: 4 },
  "on-1": { ...BUCKET, limit: 10_000, objects: 1 },
  tiny: { ...BUCKET, limit: 5, window: "1m", objects: 16 },
  rare: { ...BUCKET, limit: 2, window: "600s", objects: 16 },
  slots: { algorithm: "concurrency", limit: 10_000, ttl: "10s", deadlineMs: 10_000 },
  "slots-on-16": { algorithm: "concurrency", limit: 10_000, ttl: "10s", deadlineMs: 10_000, objects: 16 },
};

/** A module to run, and the requests to send to its address. */
export interface Target {
  readonly name: string;
  readonly main: string;
  readonly requests: (url: string) => Requests;
  /** Rows written and object calls per 1,000 decisions. A baseline's are known, Weir's are counted in a run before. */
  readonly perThousand: { readonly rows: number; readonly calls: number };
  /** How long it is loaded before it is measured, in seconds. Thousands of keys need as long as a reservation lives. */
  readonly warmUp: number;
  /** It is called through the service binding of a second worker. */
  readonly isBound: boolean;
  readonly loads: Load[];
}

interface Making {
  readonly token: string;
  /** The paths of the modules to run. */
  readonly baseline: string;
  readonly main: string;
  readonly upstash: string;
  /** Counts rows written and object calls per 1,000 decisions of Weir or of a module, after a warm-up in seconds. */
  readonly count: (
    requests: Target["requests"],
    warmUp: number,
    module?: string,
  ) => Promise<Target["perThousand"]>;
}

/** All targets. Rows and object calls of Weir's targets are counted here. */
export async function makeTargets({ token, baseline, main, upstash, count }: Making): Promise<Target[]> {
  const keys = zipfKeys(KEYS, 4 * KEYS, seededRandom(1));
  const bodiesOf = (policy: string, of: readonly string[]) =>
    of.map((key) => JSON.stringify({ policy, key, cost: 1 }));
  const one = (policy: string) => bodiesOf(policy, ["user:42"]);
  const ofBaseline = (name: string, path: string, rows: number, calls: number, isBound = false): Target => ({
    name,
    main: baseline,
    requests: (url) => requestsFor(`${url}${path}`, token, one("hot")),
    perThousand: { rows, calls },
    warmUp: WARM_UP_SECONDS,
    isBound,
    loads: [],
  });
  const ofWeir = async (
    name: string,
    bodies: readonly string[],
    { warmUp = WARM_UP_SECONDS, isBound = false, requests = requestsFor, path = "/v1/limit" } = {},
  ): Promise<Target> => {
    const requestsAt = (url: string) => requests(`${url}${path}`, token, bodies);
    const perThousand = await count(requestsAt, warmUp);
    return { name, main, requests: requestsAt, perThousand, warmUp, isBound, loads: [] };
  };
  const parsing = [
    ofBaseline("(f) a body read and parsed, a decision's text", "/parsed", 0, 0),
    ofBaseline("(g) the same with a query", `/in-query?${QUERY}`, 0, 0),
  ];
  const ofUpstash = (name: string, path: string, bodies: readonly string[]): Target => ({
    ...ofBaseline(name, path, 0, 0),
    main: upstash,
    requests: (url) => requestsFor(`${url}${path}`, token, bodies),
  });
  const many = { warmUp: MANY_KEYS_WARM_UP_SECONDS };
  if (process.env["TARGETS"] === "algorithms") {
    const targets = [ofBaseline("(a) constant route", "/constant", 0, 0)];
    for (const name of Object.keys(BY_ALGORITHM)) targets.push(await ofWeir(name, one(name)));
    for (const name of Object.keys(LEASING))
      targets.push(
        await ofWeir(`${name} (a pair)`, [JSON.stringify({ policy: name, key: "user:42" })], {
          requests: leasesFor,
          path: "",
        }),
      );
    return targets;
  }
  if (process.env["TARGETS"] === "objects")
    return [
      ofBaseline("(f) a body read and parsed, a decision's text", "/parsed", 0, 0),
      {
        ...ofBaseline("(h) one RPC to an object for each of 10,000 Zipf keys", "/rpc-by-key", 0, 1_000),
        requests: (url) => requestsFor(`${url}/rpc-by-key`, token, bodiesOf("per-key", keys)),
        ...many,
      },
      await ofWeir("10,000 Zipf keys, an object each", bodiesOf("per-key", keys), many),
      await ofWeir("the same keys on 16 objects", bodiesOf("shared", keys), many),
      await ofWeir("the same keys on 4 objects", bodiesOf("on-4", keys), many),
      await ofWeir("the same keys on 1 object", bodiesOf("on-1", keys), many),
      await ofWeir('one hot key, `reservation = "off"`', one("off")),
    ];
  if (process.env["TARGETS"] === "path")
    return [
      ofBaseline("(a) constant route", "/constant", 0, 0),
      ...parsing,
      await ofWeir("one hot key", one("hot")),
      await ofWeir("one hot key, in the query", [""], { path: `/v1/limit?${QUERY}` }),
      await ofWeir("one key far over its limit (10/s)", one("over")),
    ];
  if (process.env["TARGETS"] === "claims") {
    const thousand = Array.from({ length: 1_000 }, (_, index) => `user:${index}`);
    let loads = 0;
    /** Calls that were not made before, or the load after a warm-up would repeat its calls, which write nothing. */
    const onceEach: typeof requestsFor = (url, by, keysOf) => {
      loads += 1;
      const bodies = Array.from({ length: 60_000 }, (_, index) =>
        JSON.stringify({
          policy: "shared",
          key: keysOf[index % keysOf.length],
          cost: 1,
          idempotencyKey: `${loads} ${index}`,
        }),
      );
      return requestsFor(url, by, bodies);
    };
    const units = (policy: string, of: readonly string[]) =>
      of.map((key) => JSON.stringify({ policy, key, units: 1 }));
    const pair = { path: "", requests: leasesFor };
    const together = ofBaseline("(i) as (f), after a row that an object writes for many", "/together", 0, 0);
    return [
      ofBaseline("(a) constant route", "/constant", 0, 0),
      ...parsing,
      { ...together, perThousand: await count(together.requests, WARM_UP_SECONDS, baseline) },
      await ofWeir("acquire and release, one hot key", units("slots", ["user:42"]), pair),
      await ofWeir("acquire and release, 1,000 keys on 16 objects", units("slots-on-16", thousand), {
        ...pair,
        ...many,
      }),
      await ofWeir("hold and settle, one hot key", units("hot", ["user:42"]), {
        path: "",
        requests: holdsFor,
      }),
      await ofWeir("with an idempotency key, one hot key", ["user:42"], { requests: onceEach }),
      await ofWeir("with an idempotency key, 1,000 keys on 16 objects", thousand, { requests: onceEach }),
      await ofWeir("credits, one hot key", one("credits")),
    ];
  }
  if (process.env["TARGETS"] === "denied") {
    const few: Target = {
      ...ofBaseline("(j) as (f), but two calls of each of the keys are counted by 16 objects", "/few", 0, 0),
      requests: (url) => requestsFor(`${url}/few`, token, bodiesOf("rare", keys)),
      ...many,
    };
    return [
      ofBaseline("(a) constant route", "/constant", 0, 0),
      ...parsing,
      { ...few, perThousand: await count(few.requests, few.warmUp, baseline) },
      await ofWeir("10,000 Zipf keys, 5/min each, mostly denied", bodiesOf("tiny", keys), many),
      {
        ...ofUpstash("the same with `@upstash/ratelimit` and its cache", "/tiny", bodiesOf("tiny", keys)),
        warmUp: MANY_KEYS_WARM_UP_SECONDS,
      },
      await ofWeir("10,000 Zipf keys, 2 per 600 s each, mostly denied", bodiesOf("rare", keys), many),
      {
        ...ofUpstash("the same with `@upstash/ratelimit` and its cache", "/rare", bodiesOf("rare", keys)),
        warmUp: MANY_KEYS_WARM_UP_SECONDS,
      },
      await ofWeir("one key far over its limit (10/s)", one("over")),
      ofUpstash("the same with `@upstash/ratelimit` and its cache", "/over", one("over")),
    ];
  }
  return [
    ofBaseline("(a) constant route", "/constant", 0, 0),
    ofBaseline("(b) and one RPC", "/rpc", 0, 1_000),
    ofBaseline("(c) and one row", "/write", 1_000, 1_000),
    ...parsing,
    await ofWeir("one hot key", one("hot")),
    await ofWeir("one hot key, in the query", [""], { path: `/v1/limit?${QUERY}` }),
    await ofWeir("one hot key, sliding log", one("log")),
    await ofWeir("one hot key, two rules", one("two-rules")),
    await ofWeir('one hot key, `reservation = "off"`', one("off")),
    await ofWeir("one key far over its limit (10/s)", one("over")),
    await ofWeir("10,000 Zipf keys, an object each", bodiesOf("per-key", keys), many),
    await ofWeir("the same keys on 16 objects", bodiesOf("shared", keys), many),
    await ofWeir("10,000 Zipf keys, 5/min each, mostly denied", bodiesOf("tiny", keys), many),
    await ofWeir(
      "acquire and release (a pair counts once)",
      [JSON.stringify({ policy: "slots", key: "user:42" })],
      {
        requests: leasesFor,
        path: "",
      },
    ),
    ofBaseline("(e) service binding to a constant", "/v1/limit", 0, 0, true),
    await ofWeir("one hot key over the service binding", one("hot"), { isBound: true }),
    await ofWeir("one key far over its limit, over the service binding", one("over"), { isBound: true }),
  ];
}
