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
  resetAfterMs: milliseconds("How long until the quota is whole again if no other call comes."),
  retryAfterMs,
  reason: v.picklist(["ok", "quota", "min-interval", "cost-over-limit"]),
});

export const Lease = v.object({
  id: v.pipe(v.string(), v.description("Needed to renew or release the lease. Nobody can guess it.")),
  fencingToken: v.pipe(
    figure(
      "Rises with every lease of the key. A storage that compares it can refuse a holder whose lease has ended.",
    ),
  ),
  expiresAfterMs: milliseconds("How long until the lease ends, unless it is renewed."),
});

export const Hold = v.object({
  id: v.pipe(v.string(), v.description("Needed to settle or cancel the hold. Nobody can guess it.")),
  units: v.union([figure("Units of every rule."), v.record(v.string(), figure("Units, by unit."))]),
  expiresAfterMs: milliseconds("How long until the hold expires. Its units then count as used."),
});

export const Decision = v.object({
  success: v.pipe(v.boolean(), v.description("Whether the call may go on.")),
  policy: v.string(),
  key: v.pipe(v.string(), v.description("The key that was counted; an IPv6 address counts with its /64.")),
  limit: figure("The most units that can be admitted at once."),
  remaining: v.optional(figure("The largest cost that would pass now. Absent when degraded.")),
  resetAfterMs: v.optional(
    milliseconds("How long until the quota is whole again if no other call comes. Absent when degraded."),
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
      "Why. `ok`: admitted. `quota`, `min-interval`: denied for now, the same call can pass later. " +
        "`cost-over-limit`: so large a cost never passes. `wait-timeout`: no lease came free in time. `queue-full`: " +
        "too many callers wait already. `shadow`: admitted, since the policy is in shadow mode; else it is denied. " +
        "`degraded`: the limiter could not decide, so the policy's onFailure did.",
    ),
  ),
  source: v.pipe(
    v.picklist(["isolate", "object", "pool", "fallback"]),
    v.description(
      "Who decided. An `isolate` decides from the units that it has reserved, and does not know what other callers " +
        "do meanwhile: then `remaining` is a floor, and `resetAfterMs` a ceiling. The same holds for the `object` of " +
        "a region that decides from its share of a pool. `fallback`: the object or the pool did not answer.",
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
  outstanding: figure("Units that are held, reserved or leased at this moment."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
  reclaimed: figure("Leases that expired instead of being released, since the key was last forgotten."),
  queueLength: figure("Callers who wait for a lease."),
  longestWaitMs: milliseconds("How long the first caller in the queue has waited so far."),
});

export const AllDecisions = v.object({
  success: v.pipe(v.boolean(), v.description("Whether every check passed; if not, nothing was taken.")),
  decisions: v.pipe(
    v.array(Decision),
    v.description("One decision for each check, in the order of the checks."),
  ),
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
      localShare: v.optional(
        v.pipe(
          v.number(),
          v.description(
            "The part of the limit that a region decides on alone while its pool does not answer.",
          ),
        ),
      ),
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
