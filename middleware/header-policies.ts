/** What headers say of policies, as the limiter lists them. */
import type { Limiter } from "../client/limiter.ts";
import type { Time } from "../core/clock.ts";
import type { HeaderStyle } from "../core/policies/policy.ts";
import type { HeaderPolicy, HeaderRule } from "../core/protocol/rate-limit-headers.ts";
import type { ListedPolicy, ListedRule } from "../core/protocol/reservation-messages.ts";

/** By name. */
export type HeaderPolicies = ReadonlyMap<string, HeaderPolicy>;

/** A list of policies is asked for again after so many milliseconds: headers follow a deployment that late. */
const FRESH_MS = 60_000;
/** The same when there was no answer. */
const AGAIN_MS = 10_000;
/** What headers a policy has that says nothing. */
const USUAL: readonly HeaderStyle[] = ["draft-11"];

interface KnownPolicies {
  readonly policies: HeaderPolicies;
  untilMs: number;
}

const known = new WeakMap<object, KnownPolicies>();

/**
 * The policies of a limiter, asked for once and then again from time to time. A request never waits for what another
 * asks: in a worker that one may be gone. When there is no answer, there are no policies.
 *
 * @param inBackground keeps work going after the request
 */
export async function toldPolicies(
  limiter: Pick<Limiter, "policies">,
  time: Time,
  inBackground: (work: Promise<unknown>) => void,
): Promise<HeaderPolicies> {
  const nowMs = time.nowMs();
  const before = known.get(limiter);
  if (before === undefined) return await ask(limiter, time);
  if (nowMs >= before.untilMs) {
    before.untilMs = nowMs + AGAIN_MS;
    inBackground(ask(limiter, time, before.policies));
  }
  return before.policies;
}

async function ask(
  limiter: Pick<Limiter, "policies">,
  time: Time,
  before: HeaderPolicies = new Map(),
): Promise<HeaderPolicies> {
  try {
    const list = await limiter.policies();
    const policies = new Map(list.policies.map((policy) => [policy.name, headerPolicy(policy)]));
    known.set(limiter, { policies, untilMs: time.nowMs() + FRESH_MS });
    return policies;
  } catch {
    // Headers are a courtesy: the decision itself says whether the limiter answers.
    known.set(limiter, { policies: before, untilMs: time.nowMs() + AGAIN_MS });
    return before;
  }
}

/** What headers say of a policy that a limiter lists. */
export function headerPolicy({ headers = USUAL, rules }: ListedPolicy): HeaderPolicy {
  return { headers, rules: rules.map(toldRule) };
}

/** What headers say of a policy that is not known. */
export const UNKNOWN_POLICY: HeaderPolicy = { headers: USUAL, rules: [] };

/** What a rule without a limit counts up to: the largest cost that there is. */
const NO_LIMIT = 1_000_000_000;

/** A quota is in the rule's own figures: see `quota` of each algorithm, which a test compares. */
function toldRule(rule: ListedRule): HeaderRule {
  const { name, unit = "requests", limit = NO_LIMIT, windowMs, burst = limit, capacity = burst } = rule;
  const quota = { units: Number(limit), ...(windowMs !== undefined && { windowMs: Number(windowMs) }) };
  return { name, unit: String(unit), quota, capacity: Number(capacity) };
}
