/** The schemas of answers, for the OpenAPI document. The types are in core/protocol/, and a test compares the two. */
import * as v from "valibot";

export const milliseconds = (description: string) =>
  v.pipe(v.number(), v.integer(), v.minValue(0), v.description(description));
export const figure = milliseconds;
const retryAfterMs = v.pipe(
  v.nullable(v.pipe(v.number(), v.integer(), v.minValue(0))),
  v.description(
    "0 when admitted. When denied, the exact wait for this cost in milliseconds; null: it never fits. With the " +
      "policy's `retryJitter` the decision's own is up to so much longer, and those of its rules are exact. Of a call " +
      "that was shed since machines are busy: how long at least calls like it may be shed.",
  ),
);

const delayMs = v.optional(
  milliseconds(
    "When admitted: how long the caller should wait before it goes on. Absent: it goes on at once.",
  ),
);

export const RuleDecision = v.object({
  name: v.string(),
  success: v.boolean(),
  limit: figure("The most units that can be admitted at once; where the limit adapts: today."),
  remaining: figure("The largest cost that would pass now."),
  quotaRemaining: v.optional(
    figure(
      "Of a rule with `minInterval`: what is left of the quota. `remaining` is 0 while it is too soon for a call.",
    ),
  ),
  resetAfterMs: milliseconds("How long until the quota is whole again if no other call comes."),
  retryAfterMs,
  reason: v.picklist(["ok", "quota", "min-interval", "cost-over-limit", "shed", "blocked"]),
  delayMs,
});

export const Lease = v.object({
  id: v.pipe(v.string(), v.description("Needed to renew or release the lease. Nobody can guess it.")),
  fencingToken: v.pipe(
    figure(
      "Rises with every lease of the key. A storage that compares it can refuse a holder whose lease has ended.",
    ),
  ),
  expiresAfterMs: milliseconds("How long until the lease ends, unless it is renewed."),
  confirmWithinMs: v.optional(
    milliseconds(
      "With `confirm`: how long until the lease ends unless the caller confirms it by renewing it.",
    ),
  ),
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
  limit: figure("The most units that can be admitted at once; where the limit adapts: today."),
  remaining: v.optional(figure("The largest cost that would pass now. Absent when no rule was asked.")),
  resetAfterMs: v.optional(
    milliseconds(
      "How long until the quota is whole again if no other call comes. Absent when `remaining` is.",
    ),
  ),
  retryAfterMs: v.optional(retryAfterMs),
  reason: v.pipe(
    v.picklist([
      "ok",
      "quota",
      "min-interval",
      "cost-over-limit",
      "shed",
      "blocked",
      "wait-timeout",
      "queue-full",
      "shadow",
      "degraded",
      "refused",
    ]),
    v.description(
      "Why. `ok`: admitted. `quota`, `min-interval`: denied for now, the same call can pass later. " +
        "`blocked`: an earlier denial blocked the key for a while. `cost-over-limit`: so large a cost never passes. " +
        "`shed`: the units that are left are kept for more important calls, or machines are too busy, and then no rule " +
        "was asked. `wait-timeout`: the caller's turn did not " +
        "come in time. `queue-full`: " +
        "too many callers wait already. `shadow`: admitted, since the policy is in shadow mode; else it is denied. " +
        "`degraded`: the limiter could not decide, so the policy's onFailure did. `refused`: one check among several " +
        "was refused, and `problem` says why.",
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
  delayMs,
  rules: v.pipe(v.array(RuleDecision), v.description("What every rule said. Empty when none was asked.")),
  violated: v.optional(v.pipe(v.array(v.string()), v.description("The rules that denied."))),
  waitedMs: v.optional(milliseconds("How long an acquire, or a `limit` with `waitMs`, stood in the queue.")),
  lease: v.optional(Lease),
  hold: v.optional(Hold),
  charge: v.optional(
    v.pipe(
      v.string(),
      v.description(
        "Names what this call has taken, for a refund. Present with `refundable`, if it took anything.",
      ),
    ),
  ),
  problem: v.optional(
    v.pipe(
      v.object({ status: v.pipe(v.number(), v.integer()), code: v.string(), detail: v.string() }),
      v.description("With the reason `refused`: what this check would have been answered by itself."),
    ),
  ),
});

export const KeyReport = v.object({
  ...Decision.entries,
  outstanding: figure("Units that are held, reserved or leased at this moment."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
  reclaimed: figure("Leases that expired instead of being released, since the key was last forgotten."),
  queueLength: figure("Callers who wait for units."),
  longestWaitMs: milliseconds("How long the first caller in the queue has waited so far."),
  shedding: v.optional(
    v.pipe(
      v.object({
        utilization: v.pipe(
          v.nullable(v.number()),
          v.description("How busy the machines are, from 0 to 1; null: nobody has reported lately."),
        ),
        chances: v.pipe(
          v.record(v.string(), v.number()),
          v.description("By priority: the chance, from 0 to 1, with which a call is shed."),
        ),
      }),
      v.description("Of a policy that sheds calls while machines are too busy."),
    ),
  ),
});

export const AllDecisions = v.object({
  success: v.pipe(
    v.boolean(),
    v.description("Whether every check passed; if not, nothing was taken, unless atomic is false."),
  ),
  decisions: v.pipe(
    v.array(Decision),
    v.description("One decision for each check, in the order of the checks."),
  ),
});

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
