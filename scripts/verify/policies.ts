/** Selects the limiter's policies for each check. */
import type { ListedPolicy, ListedRule } from "../../core/protocol/reservation-messages.ts";

const RATES = ["token-bucket", "gcra", "sliding-log", "fixed-window"] as const;
type RateAlgorithm = (typeof RATES)[number];

/** Algorithms whose refill is known. When a window ends depends on when it began. */
const HELD: readonly RateAlgorithm[] = ["token-bucket", "gcra", "sliding-log"];

export interface RateRule {
  readonly name: string;
  readonly unit: string;
  readonly algorithm: RateAlgorithm;
  readonly limit: number;
  readonly windowMs: number;
  /** The shortest window, of a fixed window; of all others it is `windowMs`. */
  readonly shortestMs: number;
  readonly capacity: number;
}
export interface RatePolicy extends RateRule {
  readonly policy: string;
}
export interface RulesPolicy {
  readonly policy: string;
  readonly rules: readonly RateRule[];
  /** The longest that an isolate has units of a key. */
  readonly reservationTtlMs: number;
}
export interface LeasePolicy {
  readonly policy: string;
  readonly limit: number;
  readonly maxTtlMs: number;
  readonly maxWaitMs: number;
}

/** One machine uses up this many units in some seconds. */
const MAX_UNITS = 2_000;
const PLAIN = `with keyKind = "text", no shadow and onFailure = "closed"`;
const SIMPLE = "without countDenied, minInterval and blockFor";
export const LEASES_NEEDED = `needs a policy with one rule, concurrency, of up to ${MAX_UNITS} units, ${PLAIN}`;
export const RULES_NEEDED = `needs a policy with several rules, ${listed(RATES)}, one of up to ${MAX_UNITS} units, ${SIMPLE}, ${PLAIN}`;
export const HOLDS_NEEDED = `needs a policy with one rule, ${listed(HELD)}, of 2 to ${MAX_UNITS} units, ${SIMPLE}, ${PLAIN}`;

/** What a call names to have all of a key's limit: a group that is alone, and the priority for which a part is kept. */
export function fieldsOf({
  fair,
  priorities: [first],
  reserve = {},
}: Pick<ListedPolicy, "fair" | "priorities"> & { readonly reserve?: object }): Record<string, string> {
  const isKept = first !== undefined && Object.keys(reserve).length > 0;
  return { ...(fair === true && { group: "verify" }), ...(isKept && { priority: first }) };
}

export function rateNeeded(algorithms: readonly RateAlgorithm[]): string {
  return `needs a policy with one rule, ${listed(algorithms)}, of up to ${MAX_UNITS} units, ${PLAIN}`;
}

function listed(names: readonly string[]): string {
  return names.join(" or ").replaceAll(/ or (?=.* or )/g, ", ");
}

/** For each algorithm the policy that is used up the soonest. */
export function ratePolicies(policies: readonly ListedPolicy[]): RatePolicy[] {
  const usable = lone(policies);
  return RATES.flatMap((algorithm) => soonest(usable.filter((each) => each.algorithm === algorithm)));
}

export function missingRates(rates: readonly RatePolicy[]): RateAlgorithm[] {
  return RATES.filter((each) => !rates.some(({ algorithm }) => algorithm === each));
}

/** The policy on which holds show the most: it is used up the soonest. */
export function holdPolicy(policies: readonly ListedPolicy[]): RatePolicy | undefined {
  const simple = policies.filter(({ rules }) => rules.every(isSimple));
  return soonest(
    lone(simple).filter(({ algorithm, capacity }) => HELD.includes(algorithm) && capacity >= 2),
  )[0];
}

/** The policy with several rules, one used up the soonest. */
export function rulesPolicy(policies: readonly ListedPolicy[]): RulesPolicy | undefined {
  return policies
    .filter((policy) => policy.rules.length > 1 && canDeny(policy) && policy.rules.every(isSimple))
    .map(({ name, rules, reservationTtlMs }) => ({
      policy: name,
      rules: rules.flatMap(rateOf),
      reservationTtlMs,
      all: rules.length,
    }))
    .filter(({ rules, all }) => rules.length === all && rules.some(isSmall))
    .toSorted((a, b) => secondsToEmptyAny(a) - secondsToEmptyAny(b))[0];
}

export function firstToDeny({ rules }: Pick<RulesPolicy, "rules">): RateRule | undefined {
  return rules.toSorted((a, b) => secondsToEmpty(a) - secondsToEmpty(b))[0];
}

function secondsToEmptyAny({ rules }: Pick<RulesPolicy, "rules">): number {
  return Math.min(...rules.map(secondsToEmpty));
}

function lone(policies: readonly ListedPolicy[]): RatePolicy[] {
  return policies
    .filter((policy) => policy.rules.length === 1 && canDeny(policy))
    .flatMap(({ name: policy, rules }) => rules.flatMap(rateOf).map((rule) => ({ ...rule, policy })))
    .filter(isSmall);
}

function rateOf(rule: ListedRule): RateRule[] {
  const algorithm = RATES.find((each) => each === rule.algorithm);
  if (algorithm === undefined) return [];
  const [limit, windowMs, capacity] = [
    Number(rule["limit"]),
    Number(rule["windowMs"]),
    Number(rule["capacity"]),
  ];
  // A calendar period may be shorter than its average: a February, or a day on which clocks are changed.
  const wholeMs = rule["period"] === undefined ? windowMs : 0.75 * windowMs;
  const shortestMs = Math.floor(wholeMs - Number(rule["jitterMs"] ?? 0));
  const { name, unit } = rule;
  return [{ name, unit: String(unit), algorithm, limit, windowMs, capacity, shortestMs }];
}

/** Whether denied calls change nothing. */
function isSimple({ countDenied, minIntervalMs = 0, blockForMs }: ListedRule): boolean {
  return countDenied !== true && minIntervalMs === 0 && blockForMs === undefined;
}

function isSmall({ capacity }: RateRule): boolean {
  return capacity >= 1 && capacity <= MAX_UNITS;
}

function soonest(rates: readonly RatePolicy[]): RatePolicy[] {
  return rates.toSorted((a, b) => secondsToEmpty(a) - secondsToEmpty(b)).slice(0, 1);
}

/** A bucket that refills faster than one machine can call shows little. */
function secondsToEmpty({ limit, windowMs, capacity }: RateRule): number {
  const perSecond = (limit * 1_000) / windowMs;
  const spare = ASKED_PER_SECOND - perSecond;
  return spare <= 0 ? Infinity : capacity / spare;
}
const ASKED_PER_SECOND = 500;

/** The policy with the fewest slots: best a mutex. */
export function leasePolicy(policies: readonly ListedPolicy[]): LeasePolicy | undefined {
  const [fewest] = policies
    .filter((policy) => policy.rules.length === 1 && canDeny(policy))
    .flatMap(({ name, maxWaitMs, rules: [rule] }) =>
      rule?.algorithm === "concurrency"
        ? [{ policy: name, maxWaitMs, limit: Number(rule["limit"]), maxTtlMs: Number(rule["maxTtlMs"]) }]
        : [],
    )
    .filter(({ limit }) => limit >= 1 && limit <= MAX_UNITS)
    .toSorted((a, b) => a.limit - b.limit);
  return fewest;
}

function canDeny({ shadow, onFailure, keyKind }: ListedPolicy): boolean {
  return !shadow && onFailure === "closed" && keyKind === "text";
}
