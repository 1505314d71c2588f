/**
 * The schemas of decisions, for the OpenAPI document: `success` and `reason` say which one a decision is, and so which
 * fields it has. The type is in core/protocol/decision.ts, and a test compares the two.
 */
import * as v from "valibot";
import { delayMs, figure, Hold, Lease, milliseconds, retryAfterMs, RuleDecision } from "./answer-schemas.ts";

const place = {
  policy: v.string(),
  key: v.pipe(v.string(), v.description("The key that was counted; an IPv6 address counts with its /64.")),
  limit: figure("The most units that can be admitted at once; where the limit adapts: today."),
  override: v.optional(
    v.pipe(
      v.string(),
      v.description("The pattern of the override that applied to the key. Absent: none did."),
    ),
  ),
};
const figures = {
  remaining: figure("The largest cost that would pass now."),
  resetAfterMs: milliseconds("How long until the quota is whole again if no other call comes."),
};
const someFigures = {
  remaining: v.optional(figure("The largest cost that would pass now. Absent when no rule was asked.")),
  resetAfterMs: v.optional(milliseconds("As in other decisions. Absent when `remaining` is.")),
};
const source = v.pipe(
  v.picklist(["isolate", "object", "pool", "fallback"]),
  v.description(
    "Who decided. An `isolate` decides from the units that it has reserved, and does not know what other callers " +
      "do meanwhile: then `remaining` is a floor, and `resetAfterMs` a ceiling. The same holds for the `object` of " +
      "a region that decides from its share of a pool. `fallback`: the object or the pool did not answer.",
  ),
);
const fallback = v.pipe(v.literal("fallback"), v.description("The object or the pool did not answer."));
const rules = v.pipe(
  v.array(RuleDecision),
  v.description("What every rule said. Empty when none was asked."),
);
const violated = v.pipe(v.array(v.string()), v.description("The rules that denied."));
const waitedMs = v.optional(
  milliseconds("How long an acquire, or a `limit` with `waitMs`, stood in the queue."),
);
const charge = v.optional(
  v.pipe(
    v.string(),
    v.description(
      "Names what this call has taken, for a refund. Present with `refundable`, if it took anything.",
    ),
  ),
);
const goesOn = v.pipe(v.literal(true), v.description("The call may go on."));
const stops = v.pipe(v.literal(false), v.description("The call may not go on."));
const noWait = v.pipe(v.literal(0), v.description("0: admitted."));

export const Admitted = v.object({
  success: goesOn,
  ...place,
  ...figures,
  retryAfterMs: noWait,
  reason: v.pipe(v.literal("ok"), v.description("Admitted.")),
  source,
  delayMs,
  rules,
  waitedMs,
  charge,
});
export const HoldAdmitted = v.object({ ...Admitted.entries, hold: Hold });
export const LeaseAdmitted = v.object({ ...Admitted.entries, lease: Lease });

export const AdmittedInShadow = v.object({
  success: goesOn,
  ...place,
  ...someFigures,
  retryAfterMs,
  reason: v.pipe(
    v.literal("shadow"),
    v.description("Admitted, since the policy only reports. Else it would be denied."),
  ),
  source,
  delayMs,
  rules,
  violated: v.optional(violated),
  waitedMs,
  charge,
  hold: v.optional(Hold),
  lease: v.optional(Lease),
});

export const AdmittedDegraded = v.object({
  success: goesOn,
  ...place,
  ...someFigures,
  retryAfterMs: v.optional(noWait),
  reason: v.pipe(
    v.literal("degraded"),
    v.description('The limiter could not decide, and the policy says onFailure = "open" or "local".'),
  ),
  source: fallback,
  delayMs,
  rules,
  waitedMs,
  charge,
  hold: v.optional(Hold),
  lease: v.optional(Lease),
});

export const Denied = v.object({
  success: stops,
  ...place,
  ...figures,
  retryAfterMs,
  reason: v.pipe(
    v.picklist(["quota", "min-interval", "cost-over-limit", "blocked", "wait-timeout", "queue-full"]),
    v.description(
      "Why. `quota`, `min-interval`: denied for now, the same call can pass later. `blocked`: an earlier denial " +
        "blocked the key for a while, or an override does. `cost-over-limit`: so large a cost never passes. `wait-timeout`: the caller's " +
        "turn did not come in time. `queue-full`: too many callers wait already.",
    ),
  ),
  source,
  rules,
  violated,
  waitedMs,
});

export const Shed = v.object({
  success: stops,
  ...place,
  ...someFigures,
  retryAfterMs,
  reason: v.pipe(
    v.literal("shed"),
    v.description(
      "The units that are left are kept for more important calls, or machines are too busy: then no rule was asked.",
    ),
  ),
  source,
  rules,
  violated: v.optional(violated),
  waitedMs,
});

export const DeniedDegraded = v.object({
  success: stops,
  ...place,
  reason: v.pipe(
    v.literal("degraded"),
    v.description(
      'The limiter could not decide, and the policy says onFailure = "closed", as it does by default.',
    ),
  ),
  source: fallback,
  rules: v.pipe(v.array(RuleDecision), v.description("Empty: none was asked.")),
});

const DENIALS = [Denied, Shed, DeniedDegraded] as const;
const OTHERS = [AdmittedInShadow, AdmittedDegraded, ...DENIALS] as const;

/** The decision on a call. */
export const Decision = v.variant("success", [Admitted, ...OTHERS]);
/** The decision on a hold. */
export const HoldDecision = v.variant("success", [HoldAdmitted, ...OTHERS]);
/** The decision on a lease. */
export const LeaseDecision = v.variant("success", [LeaseAdmitted, ...OTHERS]);

/** What one check among several may be answered besides. */
export const Contended = v.object({
  success: stops,
  ...place,
  ...figures,
  retryAfterMs,
  reason: v.pipe(
    v.literal("ok"),
    v.description(
      "The units are there, and other calls on several keys hold them for the moment: try again.",
    ),
  ),
  source,
  rules,
});
export const Refused = v.object({
  success: stops,
  ...place,
  reason: v.pipe(v.literal("refused"), v.description("This check was refused, and `problem` says why.")),
  source,
  rules: v.pipe(v.array(RuleDecision), v.description("Empty: none was asked.")),
  problem: v.pipe(
    v.object({ status: v.pipe(v.number(), v.integer()), code: v.string(), detail: v.string() }),
    v.description("What this check would have been answered by itself."),
  ),
});
/** The decision on one check among several. */
export const CheckDecision = v.variant("success", [Admitted, ...OTHERS, Contended, Refused]);

export const AllDecisions = v.object({
  success: v.pipe(
    v.boolean(),
    v.description("Whether every check passed; if not, nothing was taken, unless atomic is false."),
  ),
  decisions: v.pipe(
    v.array(CheckDecision),
    v.description("One decision for each check, in the order of the checks."),
  ),
});

/* The schema of what a look at a key answers. */

/** What a key has besides its decision. */
export const KeyFigures = v.object({
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
export const KeyReport = v.intersect([Decision, KeyFigures]);
