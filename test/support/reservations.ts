/** A reservation by itself, and answers made by hand. */
import type { PolicyView, Policy } from "../../core/policies/policy.ts";
import type { Decided, RuleDecision } from "../../core/protocol/answers.ts";
import { Reservation } from "../../core/reservations/reservation.ts";
import { parsePolicies } from "./milliseconds.ts";

export const TTL_MS = 1_000;
const reservation = { ttl: TTL_MS };
const BUCKET = { algorithm: "token-bucket", limit: 1_000, window: "1s" };
const LOG = { algorithm: "sliding-log", limit: 500, window: "1h" };
const POLICIES = parsePolicies({
  one: { ...BUCKET, reservation },
  auto: BUCKET,
  two: { rules: { calls: BUCKET, text: { ...LOG, unit: "tokens" } }, reservation },
  hammered: { ...LOG, countDenied: true },
  spaced: { ...LOG, minInterval: "1s" },
  pooled: { ...BUCKET, pool: "redis" },
});

export function policyOf(name: string): Policy {
  const policy = POLICIES.get(name);
  if (policy === undefined) throw new Error("no policy");
  return policy;
}

/** Every rule's values: admitted, unless `figures` differ. */
export function said(policy: PolicyView, figures: Partial<RuleDecision> = {}): RuleDecision[] {
  return policy.rules.map(({ name, capacity }) => ({
    name,
    success: true,
    limit: capacity,
    remaining: 0,
    resetAfterMs: 0,
    retryAfterMs: 0,
    reason: "ok",
    ...figures,
  }));
}
export const denied = (policy: PolicyView, retryAfterMs: number | null) =>
  said(policy, { success: false, retryAfterMs, reason: "quota" });

/** The answer that grants `units` of every rule. */
export function granting(policy: PolicyView, units: number, { ttlMs = TTL_MS, isNew = false } = {}): Decided {
  const named = Object.fromEntries(policy.rules.map(({ name }) => [name, units]));
  return { rules: said(policy), reserved: { ttlMs, isNew, units: named } };
}

/** A reservation of a key with ten calls. It requested units at 0 ms, and got `units`. */
export function withUnits(units: number, name = "one"): Reservation {
  const policy = policyOf(name);
  const made = new Reservation(policy, "key", "holder", -10);
  for (let call = 0; call < 10; call += 1) made.note(1, -1);
  if (units > 0) made.answered(made.ask(0, 0), granting(policy, units), 1);
  for (let call = 0; call < 10; call += 1) made.note(1, 1);
  return made;
}
