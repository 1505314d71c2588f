/**
 * Measures how long an object computes for each kind of call when its key is filled up to every bound:
 * `npm run bench:bounds`. Times are in milliseconds with a SQLite in memory: the least, the middle and the worst of up
 * to 100 calls. On a busy machine the worst includes pauses. `-- --only=slots,log` measures only these fillings.
 */
import { parseArgs } from "node:util";
import { BoundedKey, TTL_MS, type Filling } from "./bounded-key.ts";

const BUDGET_MS = 250;
const MAX_SAMPLES = 100;
const MIN_SAMPLES = 5;
const WARM_UPS = 15;

const BUCKET = { algorithm: "token-bucket", limit: 100_000, window: "1h" };
const LOG = { algorithm: "sliding-log", limit: 100_000, window: "1m" };
const SLOTS = { algorithm: "concurrency", limit: 19_000, ttl: "1m", maxWait: "10m" };
const COUNTING = { ...LOG, countDenied: true };
const many = (count: number, fields: object) =>
  Object.fromEntries(Array.from({ length: count }, (_, index) => [`r${index}`, fields]));

const held = { claims: 10_000, isolates: 1_000 };
const leased = { claims: 10_000, leasesShare: 1 };
const FILLINGS: Readonly<Record<string, Filling>> = {
  bucket: { rules: { a: BUCKET }, ...held },
  log: { rules: { a: LOG }, runs: 50_000, ...held },
  "log 1M": {
    rules: { a: { ...LOG, limit: 1_000_000, window: "1000s" } },
    runs: 900_000,
    ...held,
  },
  counting: { rules: { a: COUNTING }, runs: 50_000, ...held, isolates: 0 },
  provisional: { rules: { a: BUCKET, b: LOG }, runs: 50_000, ...held, isProvisional: true },
  "4 rates": { rules: { a: BUCKET, b: LOG, c: BUCKET, d: LOG }, runs: 50_000, ...held },
  "16 rates": { rules: { ...many(12, BUCKET), a: LOG, b: LOG, c: LOG, d: LOG }, runs: 50_000, ...held },
  slots: { rules: { a: SLOTS }, ...leased },
  "slots + queue": { rules: { a: SLOTS }, ...leased, waiters: 1_000 },
  "4 rules + queue": {
    rules: { a: SLOTS, b: { ...SLOTS, limit: 20_000 }, c: BUCKET, d: LOG },
    runs: 50_000,
    ...leased,
    leasesShare: 0.5,
    waiters: 1_000,
  },
  "16 slots + queue": { rules: many(16, SLOTS), ...leased, waiters: 1_000 },
};

/** One kind of call. What `prepare` and `undo` do is not measured. */
interface Call {
  readonly name: string;
  readonly isFor: "rates" | "leases" | "all";
  readonly prepare?: (key: BoundedKey, count: number) => void;
  readonly call: (key: BoundedKey, count: number) => unknown;
  readonly undo?: (key: BoundedKey, result: unknown, count: number) => unknown;
}

let turn = 1;
const idOf = (answer: unknown) => (answer as { hold: { id: string } }).hold.id;
const hold = (key: BoundedKey) => key.operations.hold(key.open(), { cost: 1, ttlMs: TTL_MS }, key.nowMs);
const cancel = (key: BoundedKey, id: string) => key.operations.cancel(key.open(), { id }, key.nowMs);
const limit = (key: BoundedKey, cost: number, idempotencyKey?: string) =>
  key.operations.limit(key.open(), { cost, idempotencyKey }, key.nowMs);
let prepared = "";

const CALLS: readonly Call[] = [
  { name: "limit, admitted", isFor: "rates", call: (key) => limit(key, 1) },
  {
    name: "limit, with idempotency",
    isFor: "rates",
    call: (key, count) => limit(key, 1, `l${turn}-${count}`),
  },
  { name: "look", isFor: "rates", call: (key) => limit(key, 0) },
  { name: "peek", isFor: "all", call: (key) => key.operations.peek(key.open(), key.nowMs) },
  { name: "hold", isFor: "rates", call: hold, undo: (key, answer) => cancel(key, idOf(answer)) },
  {
    name: "settle",
    isFor: "rates",
    prepare: (key) => void (prepared = idOf(hold(key))),
    call: (key) => key.operations.settle(key.open(), { id: prepared, used: 1 }, key.nowMs),
  },
  {
    name: "cancel",
    isFor: "rates",
    prepare: (key) => void (prepared = idOf(hold(key))),
    call: (key) => cancel(key, prepared),
  },
  {
    name: "reserve",
    isFor: "rates",
    call: (key, count) => key.reserve(count, (turn += 1), 1),
  },
  {
    name: "giveBack",
    isFor: "rates",
    prepare: (key, count) => void key.reserve(count, (turn += 1), 1),
    call: (key, count) =>
      key.operations.giveBack(
        key.open(),
        { key: "k", holder: `i${count}`, turn: (turn += 1), used: {} },
        key.nowMs,
      ),
  },
  {
    name: "refund",
    isFor: "rates",
    call: (key, count) =>
      key.operations.refund(key.open(), { units: 1, idempotencyKey: `r${turn}-${count}` }, key.nowMs),
  },
  // Last of the rates: a log that counts denied calls is full then.
  { name: "limit, denied or waits", isFor: "rates", call: (key) => limit(key, 99_000) },
  {
    name: "acquire, granted or queued",
    isFor: "leases",
    call: (key, count) => key.acquire(`a${count}`, 1, 0),
    undo: (key, _, count) => key.operations.release(key.open(), { id: `a${count}` }, key.nowMs),
  },
  { name: "acquire, denied", isFor: "leases", call: (key) => key.acquire("d", 18_999, 0) },
  {
    name: "renew",
    isFor: "leases",
    call: (key, count) => {
      const { id } = key.claims[(count * 37) % 5_000] ?? { id: "" };
      return key.operations.renew(key.open(), { id, ttlMs: TTL_MS }, key.nowMs);
    },
  },
  {
    name: "release",
    isFor: "leases",
    call: (key, count) =>
      key.operations.release(key.open(), { id: key.claims[count + 200]?.id ?? "" }, key.nowMs),
  },
  {
    name: "acquire, waits",
    isFor: "leases",
    call: (key, count) => key.acquire(`q${count}`, 18_999, 400_000),
  },
];

/** The least, the middle and the worst time of a kind of call in milliseconds, as text. */
function measure(key: BoundedKey, { prepare, call, undo }: Call): string {
  const timesMs: number[] = [];
  const endMs = performance.now() + BUDGET_MS;
  for (let count = 0; count < MAX_SAMPLES + WARM_UPS; count += 1) {
    if (timesMs.length >= MIN_SAMPLES && performance.now() > endMs) break;
    key.nowMs += count % 2;
    prepare?.(key, count);
    const startMs = performance.now();
    const result = call(key, count);
    const tookMs = performance.now() - startMs;
    if (count >= WARM_UPS || performance.now() > endMs) timesMs.push(tookMs);
    undo?.(key, result, count);
  }
  const sorted = timesMs.toSorted((a, b) => a - b);
  return [sorted[0], sorted[Math.floor(sorted.length / 2)], sorted.at(-1)]
    .map((ms = Number.NaN) => ms.toFixed(ms < 10 ? 2 : 0))
    .join(" / ");
}

const { values } = parseArgs({ options: { only: { type: "string" } } });
const names = Object.keys(FILLINGS).filter((name) => values.only?.split(",").includes(name) ?? true);
const columns = names.map((name) => {
  const filling = FILLINGS[name] as Filling;
  const key = new BoundedKey(filling);
  const kind = (filling.leasesShare ?? 0) > 0 ? "leases" : "rates";
  const times = CALLS.map((call) => (call.isFor === "all" || call.isFor === kind ? measure(key, call) : ""));
  return [key.loadMs.toFixed(0), ...times];
});
console.log(`
| least / middle / worst, ms | ${names.join(" | ")} |
| --- |${names.map(() => " --- |").join("")}`);
for (const [row, name] of ["(load from storage)", ...CALLS.map((call) => call.name)].entries())
  console.log(`| ${name} | ${columns.map((column) => column[row]).join(" | ")} |`);
process.exit();
