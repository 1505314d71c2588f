/** The schemas of answers, for the OpenAPI document. The types are in core/protocol/, and a test compares the two. */
import * as v from "valibot";

const milliseconds = (description: string) =>
  v.pipe(v.number(), v.integer(), v.minValue(0), v.description(description));
const figure = milliseconds;
const retryAfterMs = v.pipe(
  v.nullable(v.pipe(v.number(), v.integer(), v.minValue(0))),
  v.description(
    "0 when admitted. When denied, the exact wait for this cost in milliseconds; null: it never fits.",
  ),
);

export const RuleDecision = v.object({
  name: v.string(),
  success: v.boolean(),
  limit: figure("The most units that can be admitted at once."),
  remaining: figure("The largest cost that would pass now."),
  resetAfterMs: milliseconds("Until the quota is whole again if nobody comes."),
  retryAfterMs,
  reason: v.picklist(["ok", "quota", "min-interval", "cost-over-limit"]),
});

export const Lease = v.object({
  id: v.pipe(v.string(), v.description("Renews and releases it; nobody can guess it.")),
  fencingToken: v.pipe(
    figure("Rises with every grant of the key: what a storage compares to refuse who comes too late."),
  ),
  expiresAfterMs: milliseconds("Until it ends unless it is renewed."),
});

export const Hold = v.object({
  id: v.pipe(v.string(), v.description("Settles and cancels it; nobody can guess it.")),
  units: v.union([figure("Units of every rule."), v.record(v.string(), figure("Units, by unit."))]),
  expiresAfterMs: milliseconds("Until it expires, which counts as used."),
});

export const Decision = v.object({
  success: v.pipe(v.boolean(), v.description("Whether the call may go on.")),
  policy: v.string(),
  key: v.pipe(v.string(), v.description("The key that was counted; an IPv6 address counts with its /64.")),
  limit: figure("The most units that can be admitted at once."),
  remaining: v.optional(figure("The largest cost that would pass now. Absent when degraded.")),
  resetAfterMs: v.optional(
    milliseconds("Until the quota is whole again if nobody comes. Absent when degraded."),
  ),
  retryAfterMs: v.optional(retryAfterMs),
  reason: v.pipe(
    v.picklist([
      "ok",
      "quota",
      "min-interval",
      "cost-over-limit",
      "wait-timeout",
      "queue-full",
      "shadow",
      "degraded",
    ]),
    v.description(
      "Why: `quota` and `min-interval` wait, `cost-over-limit` never, `wait-timeout` waited in vain, `queue-full` too " +
        "many wait already, `shadow` would have been denied, `degraded` nobody could decide " +
        "and the policy's onFailure did.",
    ),
  ),
  source: v.pipe(
    v.picklist(["isolate", "object", "pool", "fallback"]),
    v.description(
      "Who decided. An `isolate` decides from what it has reserved and does not know what others do meanwhile: then " +
        "`remaining` is a floor, and `resetAfterMs` a ceiling; so does the `object` of a region that decides from its share of " +
        "a pool. `fallback`: whoever should have decided did not answer.",
    ),
  ),
  rules: v.pipe(v.array(RuleDecision), v.description("What every rule said. Empty when degraded.")),
  violated: v.optional(v.pipe(v.array(v.string()), v.description("The rules that denied."))),
  waitedMs: v.optional(milliseconds("How long an acquire waited in the queue.")),
  lease: v.optional(Lease),
  hold: v.optional(Hold),
});

export const KeyReport = v.object({
  ...Decision.entries,
  outstanding: figure("Units held by somebody who may still use them, leased ones included."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
  reclaimed: figure("Leases that expired instead of being released, since the key was last forgotten."),
  queueLength: figure("Callers who wait for a lease."),
  longestWaitMs: milliseconds("How long the one of them that waits longest has waited."),
});

export const AllDecisions = v.object({
  success: v.pipe(v.boolean(), v.description("Whether every check passed; if not, nothing was taken.")),
  decisions: v.pipe(v.array(Decision), v.description("One a check, in their order; who denied says so.")),
});

export const PolicyList = v.object({
  policies: v.array(
    v.object({
      name: v.string(),
      // What else a rule says is its algorithm's: limits in units, durations in milliseconds.
      rules: v.array(
        v.objectWithRest(
          { name: v.string(), algorithm: v.string() },
          v.union([v.string(), v.number(), v.boolean()]),
        ),
      ),
      onFailure: v.picklist(["closed", "open", "local"]),
      deadlineMs: milliseconds("The longest a caller waits for a decision."),
      objects: v.union([v.literal("per-key"), v.pipe(v.number(), v.integer())]),
      reservationTtlMs: milliseconds("The longest a reservation can live; 0: none are made."),
      pool: v.optional(v.literal("redis")),
      localShare: v.optional(v.pipe(v.number(), v.description("Of a region whose pool does not answer."))),
      shadow: v.boolean(),
      keyKind: v.picklist(["text", "ip"]),
    }),
  ),
});
export type PolicyList = Readonly<v.InferOutput<typeof PolicyList>>;

const FieldError = v.object({ pointer: v.string(), detail: v.string() });

export const ProblemDetails = v.object({
  type: v.string(),
  title: v.string(),
  status: v.pipe(v.number(), v.integer()),
  detail: v.string(),
  errors: v.optional(v.array(FieldError)),
});

export const QuotaExceeded = v.object({
  ...ProblemDetails.entries,
  "violated-policies": v.array(v.string()),
  decision: v.optional(Decision),
  decisions: v.optional(v.pipe(v.array(Decision), v.description("Of a call on several keys."))),
});
