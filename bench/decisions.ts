/**
 * `npm run bench:decisions`: how long one decision of each algorithm takes alone, without messages, storage or HTTP: the
 * median of several rounds, in nanoseconds. A key is called at twice its rate, so half of the calls are denied; groups that
 * share slots have a thousand leases, and all calls pass.
 */
import { UNTOUCHED, advance, decideTogether } from "../core/accounts/account.ts";
import { type Account, seenByGroup } from "../core/accounts/hold.ts";
import { parsePolicies } from "../core/policies/parse-policies.ts";
import type { Rule } from "../core/policies/policy.ts";

const ROUNDS = 7;
const CALLS = 200_000;
const CALLS_WITH_MANY_LEASES = 10_000;
/** Twice as many calls as pass. */
const RATE = { limit: 1_000, window: "1s", blockFor: undefined };
const RULES: Readonly<Record<string, object>> = {
  "token-bucket": RATE,
  gcra: RATE,
  "leaky-bucket": { ...RATE, burst: 99 },
  "permits-per-cycle": { ...RATE, timeout: "1s" },
  "smooth-bursty": RATE,
  "smooth-warming-up": { ...RATE, warmup: "1s" },
  "sliding-log": RATE,
  "sliding-window-counter": RATE,
  "fixed-window": RATE,
  "fixed-window, 1 day in Berlin": {
    algorithm: "fixed-window",
    limit: 100_000,
    window: "1 day",
    timeZone: "Europe/Berlin",
  },
  "token-bucket with blockFor": { algorithm: "token-bucket", ...RATE, blockFor: "1ms" },
  "token-bucket, fair, 2 groups": { algorithm: "token-bucket", ...RATE, fair: true },
  "token-bucket, fair, 1,000 groups": { algorithm: "token-bucket", ...RATE, fair: true },
  "token-bucket with a kept part": { algorithm: "token-bucket", ...RATE, reserve: { critical: "20%" } },
  concurrency: { limit: 10, ttl: "5ms" },
  "concurrency, fair, 2 groups": { algorithm: "concurrency", limit: 2_000, ttl: "500ms", fair: true },
  "concurrency, fair, 1,000 groups": { algorithm: "concurrency", limit: 2_000, ttl: "500ms", fair: true },
  "adaptive-concurrency": { limit: 10, initial: 10, ttl: "5ms" },
  credits: { limit: 1_000_000 },
  unlimited: {},
};

function ruleOf(name: string, fields: object): Rule {
  const policy = parsePolicies({ a: { algorithm: name, ...fields } }).get("a");
  const [rule] = policy?.priorities.seen.get("low")?.rules ?? policy?.rules ?? [];
  if (rule === undefined) throw new Error(`no rule of ${name}`);
  return rule;
}

/** The groups that call, one after the other, in the names of rules that they share. */
function groupsOf(name: string): readonly string[] {
  const count = Number(/ (?<count>[\d,]+) groups/.exec(name)?.groups?.["count"]?.replace(",", "") ?? 0);
  return Array.from({ length: count }, (_, group) => `g${group}`);
}

/** Nanoseconds of one decision. */
function measured(name: string, rule: Rule): number {
  const names = groupsOf(name);
  const seen = names.map((group) => seenByGroup(rule, group));
  let account: Account = UNTOUCHED;
  let nowMs = 1_760_000_000_000;
  const ttlMs = rule.lease?.ttlMs ?? 0;
  const calls = ttlMs >= 500 ? CALLS_WITH_MANY_LEASES : CALLS;
  const sinceMs = performance.now();
  for (let call = 0; call < calls; call += 1) {
    if (call % 2 === 0) nowMs += 1;
    account = advance(rule, account, nowMs);
    const group = names[call % names.length];
    const lease = { id: `${call}`, expiresAtMs: nowMs + ttlMs, ...(group !== undefined && { group }) };
    const taking = rule.lease === undefined ? {} : { lease };
    const ruleAccount = { rule: seen[call % seen.length] ?? rule, account };
    const { accounts } = decideTogether([ruleAccount], nowMs, 1, taking);
    account = accounts?.[0] ?? account;
  }
  return ((performance.now() - sinceMs) / calls) * 1e6;
}

const rules = Object.entries(RULES).map(([name, fields]) => [name, ruleOf(name, fields)] as const);
const times = new Map<string, number[]>(rules.map(([name]) => [name, []]));
// All in turn, so that a slow moment of the machine is spread over them.
for (let round = 0; round <= ROUNDS; round += 1)
  for (const [name, rule] of rules) {
    const ns = measured(name, rule);
    if (round > 0) times.get(name)?.push(ns);
  }
const medianOf = (values: readonly number[]) => values.toSorted((a, b) => a - b)[values.length >> 1] ?? 0;
const base = medianOf(times.get("token-bucket") ?? []);
console.log("| rule | ns a decision | to the token bucket |\n| --- | --- | --- |");
for (const [name, values] of times) {
  const ns = medianOf(values);
  console.log(`| ${name} | ${ns.toFixed(0)} | ${(ns / base).toFixed(1)} |`);
}
