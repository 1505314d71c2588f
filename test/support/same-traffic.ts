/** The same calls against each algorithm, in virtual time: the plots of docs/choosing.md. */
import { UNTOUCHED, advance, decideTogether } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import { seededRandom } from "./random.ts";
import { ruleOf } from "./rules.ts";

export const END_MS = 24_000;
export const STEP_MS = 200;
/** The duration of a call, and of its lease under the concurrency rule, in milliseconds. */
const CALL_MS = 500;
const START_MS = 1_760_000_000_000 - (1_760_000_000_000 % 2_000);

const RATE = { limit: 10, window: "2s" };
/** All allow about 10 units in 2 s. */
export const LANES: readonly (readonly [label: string, fields: object])[] = [
  ["token-bucket, burst 10", { algorithm: "token-bucket", ...RATE }],
  ["sliding-log", { algorithm: "sliding-log", ...RATE }],
  ["sliding-window-counter", { algorithm: "sliding-window-counter", ...RATE }],
  ["fixed-window", { algorithm: "fixed-window", ...RATE }],
  ["leaky-bucket, burst 9", { algorithm: "leaky-bucket", ...RATE, burst: 9 }],
  ["permits-per-cycle, timeout 2 s", { algorithm: "permits-per-cycle", ...RATE, timeout: "2s" }],
  ["smooth-bursty, maxBurst 2 s", { algorithm: "smooth-bursty", ...RATE, maxBurst: "2s", maxDelay: "2s" }],
  [
    "smooth-warming-up, warmup 2 s",
    { algorithm: "smooth-warming-up", ...RATE, warmup: "2s", maxDelay: "3s" },
  ],
  ["concurrency, 3 at a time", { algorithm: "concurrency", limit: 3, ttl: CALL_MS }],
  ["credits, 60", { algorithm: "credits", limit: 60 }],
];

/** The times of calls: few, then 40 at once, a pause, three times too many, a pause, and 15 at once. */
export function trafficMs(): readonly number[] {
  const random = seededRandom(7);
  const spread = (fromMs: number, toMs: number, calls: number) =>
    Array.from({ length: calls }, () => Math.floor(fromMs + random() * (toMs - fromMs)));
  return [
    ...spread(0, 5_000, 15),
    ...spread(5_000, 5_100, 40),
    ...spread(10_000, 18_000, 120),
    ...spread(21_000, 21_100, 15),
  ].toSorted((a, b) => a - b);
}

/** By steps of `STEP_MS`: when admitted calls start, and how many are denied on arrival. */
export interface Admissions {
  readonly goOn: readonly number[];
  readonly denied: readonly number[];
}

/** Decides the traffic under the rule of these fields. Delayed calls start after their delay. */
export function admissionsOf(fields: object): Admissions {
  const rule = ruleOf(fields as Readonly<Record<string, unknown>>);
  const [goOn, denied] = [new Map<number, number>(), new Map<number, number>()];
  const note = (steps: Map<number, number>, atMs: number) => {
    const step = Math.floor(atMs / STEP_MS);
    steps.set(step, (steps.get(step) ?? 0) + 1);
  };
  let account: Account = UNTOUCHED;
  for (const [index, atMs] of trafficMs().entries()) {
    const nowMs = START_MS + atMs;
    account = advance(rule, account, nowMs);
    const lease = { id: `call ${index}`, expiresAtMs: nowMs + CALL_MS };
    const { admitted, accounts, rules } = decideTogether([{ rule, account }], nowMs, 1, { lease });
    account = accounts?.[0] ?? account;
    if (admitted) note(goOn, atMs + (rules[0]?.delayMs ?? 0));
    else note(denied, atMs);
  }
  const row = (steps: Map<number, number>) =>
    Array.from({ length: END_MS / STEP_MS }, (_, step) => steps.get(step) ?? 0);
  return { goOn: row(goOn), denied: row(denied) };
}
