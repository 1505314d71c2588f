/**
 * The schemas of answers, for the OpenAPI document. Of decisions, `success` and `reason` say which one it is, and so which
 * fields it has. The types are in core/protocol/, and a test compares them.
 */
import * as v from "valibot";
import { DENIAL_REASONS } from "../../../core/algorithms/algorithm.ts";
import { described } from "../../../core/validation.ts";
import { amount, AMOUNT, INTEGER, milliseconds, optional } from "./request-schemas.ts";

const retryAfterMs = described(
  v.nullable(AMOUNT),
  "0 when admitted. When denied, the exact wait for this cost in milliseconds; null: it never fits. With the " +
    "policy's `retryJitter` the decision's own is up to so much longer, and those of its rules are exact. Of a call " +
    "that was shed since machines are busy: how long at least calls like it may be shed.",
);

const resetAfterMs = milliseconds(
  "How long until the quota has refilled if no other call comes. 2^51 and more: time returns nothing.",
);

const delayMs = optional(
  AMOUNT,
  "When admitted: how long the caller should wait before it goes on. Absent: it goes on at once.",
);

const refunded = optional(
  AMOUNT,
  "Of a refund: the whole units that came back, of several rules the least. Absent: that is not known.",
);

/** Where groups share a rule. */
const part = {
  limit: amount(
    "The group's units in a window, or slots held at once, while the active groups stay the same.",
  ),
  remaining: amount(
    "How many of them the group may take now, whatever other groups do; of slots: as soon as they are free.",
  ),
};
const sureAfterMs = described(
  v.nullable(AMOUNT),
  "When denied: after so long the call passes whatever the other active groups do (of slots: if they keep to their " +
    "parts and renew nothing); null: it is larger than the part.",
);

export const RuleDecision = v.object({
  name: v.string(),
  success: v.boolean(),
  limit: amount("The most units that can be admitted at once; where the limit adapts: today."),
  remaining: amount("The largest cost that would pass now."),
  quotaRemaining: optional(
    AMOUNT,
    "Of a rule with `minInterval`: what is left of the quota. `remaining` is 0 while it is too soon for a call.",
  ),
  resetAfterMs,
  retryAfterMs,
  reason: v.picklist(["ok", ...DENIAL_REASONS]),
  delayMs,
  refunded,
  share: v.optional(
    v.object({
      group: described(v.string(), "Whose part it is."),
      ...part,
      sureAfterMs: v.optional(sureAfterMs),
    }),
  ),
});

export const Lease = v.object({
  id: described(v.string(), "Needed to renew or release the lease. Nobody can guess it."),
  fencingToken: amount(
    "Rises with every lease of the key. A storage that compares it can refuse a holder whose lease has ended.",
  ),
  expiresAfterMs: milliseconds("How long until the lease ends, unless it is renewed."),
  confirmWithinMs: optional(
    AMOUNT,
    "With `confirm`: how long until the lease ends unless the caller confirms it by renewing it.",
  ),
});

export const Hold = v.object({
  id: described(v.string(), "Needed to settle or cancel the hold. Nobody can guess it."),
  units: v.union([amount("Units of every rule."), v.record(v.string(), amount("Units, by unit."))]),
  expiresAfterMs: milliseconds("How long until the hold expires. Its units then count as used."),
});

const place = {
  policy: v.string(),
  key: described(v.string(), "The key that was counted; an IPv6 address counts with its /64."),
  limit: amount("The most units that can be admitted at once; where the limit adapts: today."),
  override: optional(v.string(), "The pattern of the override that applied to the key. Absent: none did."),
  plan: optional(v.string(), "The plan by which the call was decided. Absent: the policy's own figures."),
  group: optional(v.string(), "Whose call it was, under a policy with `fair`."),
  share: v.optional(v.object(part)),
  sureAfterMs: v.optional(sureAfterMs),
  refunded,
};
const quota = {
  remaining: amount("The largest cost that would pass now."),
  resetAfterMs,
};
const maybeQuota = {
  remaining: optional(AMOUNT, "The largest cost that would pass now. Absent when no rule was asked."),
  resetAfterMs: optional(AMOUNT, "As in other decisions. Absent when `remaining` is."),
};
const source = described(
  v.picklist(["isolate", "object", "pool", "fallback"]),
  "Who decided. An `isolate` decides from the units that it has reserved, and does not know what other callers " +
    "do meanwhile: then `remaining` is a floor, and `resetAfterMs` a ceiling. The same holds for the `object` of " +
    "a region that decides from its share of a pool. `fallback`: the object or the pool did not answer.",
);
const fallback = described(v.literal("fallback"), "The object or the pool did not answer.");
const rules = described(v.array(RuleDecision), "What every rule said. Empty when none was asked.");
const violated = described(v.array(v.string()), "The rules that denied.");
const waitedMs = optional(AMOUNT, "How long an acquire, or a `limit` with `waitMs`, stood in the queue.");
const charge = optional(
  v.string(),
  "Names what this call has taken, for a refund. Present with `refundable`, if it took anything.",
);
const goesOn = { success: described(v.literal(true), "The call may go on."), ...place };
const stops = { success: described(v.literal(false), "The call may not go on."), ...place };
const noWait = described(v.literal(0), "0: admitted.");
const admission = { delayMs, rules, waitedMs, charge };
const noRules = described(v.array(RuleDecision), "Empty: none was asked.");

export const Admitted = v.object({
  ...goesOn,
  ...quota,
  retryAfterMs: noWait,
  reason: described(v.literal("ok"), "Admitted."),
  source,
  ...admission,
});
export const HoldAdmitted = v.object({ ...Admitted.entries, hold: Hold });
export const LeaseAdmitted = v.object({ ...Admitted.entries, lease: Lease });
const maybeClaims = { hold: v.optional(Hold), lease: v.optional(Lease) };

export const AdmittedInShadow = v.object({
  ...goesOn,
  ...maybeQuota,
  retryAfterMs,
  reason: described(v.literal("shadow"), "Admitted, since the policy only reports. Else it would be denied."),
  source,
  violated: v.optional(violated),
  ...admission,
  ...maybeClaims,
});

export const AdmittedDegraded = v.object({
  ...goesOn,
  ...maybeQuota,
  retryAfterMs: v.optional(noWait),
  reason: described(
    v.literal("degraded"),
    'The limiter could not decide, and the policy says onFailure = "open" or "local", or a limit that admits this call.',
  ),
  source: fallback,
  ...admission,
  ...maybeClaims,
});

const QUOTA_REASONS = DENIAL_REASONS.filter((reason) => reason !== "shed");
export const Denied = v.object({
  ...stops,
  ...quota,
  retryAfterMs,
  reason: described(
    v.picklist([...QUOTA_REASONS, "wait-timeout", "queue-full"]),
    "Why. `quota`, `min-interval`: denied for now, the same call can pass later. `blocked`: an earlier denial " +
      "blocked the key for a while, or an override does. `cost-over-limit`: so large a cost never passes. `wait-timeout`: the caller's " +
      "turn did not come in time. `queue-full`: too many callers wait already.",
  ),
  source,
  rules,
  violated,
  waitedMs,
});

export const Shed = v.object({
  ...stops,
  ...maybeQuota,
  retryAfterMs,
  reason: described(
    v.literal("shed"),
    "The units that are left are kept for more important calls, or machines are too busy: then no rule was asked.",
  ),
  source,
  rules,
  violated: v.optional(violated),
  waitedMs,
});

export const DeniedDegraded = v.object({
  ...stops,
  ...maybeQuota,
  retryAfterMs: v.optional(retryAfterMs),
  reason: described(
    v.literal("degraded"),
    'The limiter could not decide, and the policy says onFailure = "closed", as it does by default; or "local", or a limit, ' +
      "which denies this call: then the decision has the other fields, too.",
  ),
  source: fallback,
  rules: noRules,
});

const DENIALS = [Denied, Shed, DeniedDegraded] as const;
const OTHERS = [AdmittedInShadow, AdmittedDegraded, ...DENIALS] as const;

export const Decision = v.variant("success", [Admitted, ...OTHERS]);
export const HoldDecision = v.variant("success", [HoldAdmitted, ...OTHERS]);
export const LeaseDecision = v.variant("success", [LeaseAdmitted, ...OTHERS]);

export const Contended = v.object({
  ...stops,
  ...quota,
  retryAfterMs,
  reason: described(
    v.literal("ok"),
    "The units are there, and other calls on several keys hold them for the moment: try again.",
  ),
  source,
  rules,
});
export const Refused = v.object({
  ...stops,
  reason: described(v.literal("refused"), "This check was refused, and `problem` says why."),
  source,
  rules: noRules,
  problem: described(
    v.object({ status: INTEGER, code: v.string(), detail: v.string() }),
    "What this check would have been answered by itself.",
  ),
});
/** The decision on one check among several. */
export const CheckDecision = v.variant("success", [Admitted, ...OTHERS, Contended, Refused]);

export const AllDecisions = v.object({
  success: described(
    v.boolean(),
    "Whether every check passed; if not, nothing was taken, unless atomic is false.",
  ),
  decisions: described(v.array(CheckDecision), "One decision for each check, in the order of the checks."),
});

export const AnyDecision = v.object({
  success: described(v.boolean(), "Whether a check admitted: exactly that one was charged."),
  chosen: described(
    v.nullable(AMOUNT),
    "The index of the check that was charged. `null`: none was, since all denied, or one was not answered.",
  ),
  decisions: described(
    v.array(Decision),
    "The decisions of the checks that were tried, in their order: the last one admits, unless none does.",
  ),
});

/** What a key has besides its decision. */
export const KeyFigures = v.object({
  outstanding: amount("Units that are held, reserved or leased at this moment."),
  holds: amount("Callers' holds that have not ended."),
  leases: amount("Leases that have not ended."),
  reclaimed: amount("Leases that expired instead of being released, since the key was last forgotten."),
  queueLength: amount("Callers who wait for units."),
  longestWaitMs: milliseconds("How long the first caller in the queue has waited so far."),
  holders: optional(
    AMOUNT,
    "Isolates and clients that hold units of the key or want some; of a pool, those of one region.",
  ),
  shedding: optional(
    v.object({
      utilization: described(
        v.nullable(v.number()),
        "How busy the machines are, from 0 to 1; null: no machine has reported lately.",
      ),
      chances: described(
        v.record(v.string(), v.number()),
        "By priority: the chance, from 0 to 1, with which a call is shed.",
      ),
    }),
    "Of a policy that sheds calls while machines are too busy.",
  ),
  groups: optional(
    v.object({
      active: amount("How many groups are active."),
      busiest: optional(
        v.array(v.object({ group: v.string(), ...part })),
        "Those that owe most, at most 20, each with its part. Needs the scope admin.",
      ),
    }),
    "Under a policy with `fair`: of the first rule that groups share.",
  ),
});
export const KeyReport = v.intersect([Decision, KeyFigures]);
