/** Which of the limiter's policies can show what. */
import type { ListedPolicy } from "../../core/protocol/policy-list.ts";

/** A policy with one rule that counts a rate exactly. */
export interface RatePolicy {
  readonly policy: string;
  readonly algorithm: "token-bucket" | "sliding-log";
  readonly limit: number;
  readonly windowMs: number;
  /** The most units at once. */
  readonly capacity: number;
}
/** A policy with one rule that leases. */
export interface LeasePolicy {
  readonly policy: string;
  readonly limit: number;
  readonly maxTtlMs: number;
  readonly maxWaitMs: number;
}

/** One machine uses up so many units in some seconds. */
const MOST_UNITS = 2_000;
export const RATE_NEEDED = `needs a policy with one rule, token-bucket or sliding-log, of up to ${MOST_UNITS} units, with \
keyKind = "text", no shadow and onFailure = "closed"`;
export const LEASES_NEEDED = `needs a policy with one rule, concurrency, of up to ${MOST_UNITS} units, with keyKind = \
"text", no shadow and onFailure = "closed"`;

/** Of each algorithm the policy that is used up the soonest. */
export function ratePolicies(policies: readonly ListedPolicy[]): RatePolicy[] {
  const usable = policies.filter(canDeny).flatMap(({ name, rules: [rule] }) => {
    if (rule === undefined) return [];
    const { algorithm, limit, windowMs, capacity } = rule;
    if (algorithm !== "token-bucket" && algorithm !== "sliding-log") return [];
    return [
      {
        policy: name,
        algorithm,
        limit: Number(limit),
        windowMs: Number(windowMs),
        capacity: Number(capacity),
      } as const,
    ];
  });
  const small = usable.filter(({ capacity }) => capacity >= 1 && capacity <= MOST_UNITS);
  return (["token-bucket", "sliding-log"] as const).flatMap((algorithm) =>
    small
      .filter((each) => each.algorithm === algorithm)
      .toSorted((a, b) => secondsToEmpty(a) - secondsToEmpty(b))
      .slice(0, 1),
  );
}

/** A bucket that refills faster than one machine can ask shows little. */
function secondsToEmpty({ limit, windowMs, capacity }: RatePolicy): number {
  const perSecond = (limit * 1_000) / windowMs;
  const spare = ASKED_PER_SECOND - perSecond;
  return spare <= 0 ? Infinity : capacity / spare;
}
const ASKED_PER_SECOND = 500;

/** The policy with the fewest slots: best a mutex. */
export function leasePolicy(policies: readonly ListedPolicy[]): LeasePolicy | undefined {
  const [fewest] = policies
    .filter(canDeny)
    .flatMap(({ name, maxWaitMs, rules: [rule] }) =>
      rule?.algorithm === "concurrency"
        ? [{ policy: name, maxWaitMs, limit: Number(rule["limit"]), maxTtlMs: Number(rule["maxTtlMs"]) }]
        : [],
    )
    .filter(({ limit }) => limit >= 1 && limit <= MOST_UNITS)
    .toSorted((a, b) => a.limit - b.limit);
  return fewest;
}

function canDeny({ rules, shadow, onFailure, keyKind }: ListedPolicy): boolean {
  return rules.length === 1 && !shadow && onFailure === "closed" && keyKind === "text";
}
