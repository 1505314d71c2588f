/** The schemas of what answers consist of, for the OpenAPI document. The types are in core/protocol/, and a test compares them. */
import * as v from "valibot";

export const milliseconds = (description: string) =>
  v.pipe(v.number(), v.integer(), v.minValue(0), v.description(description));
export const figure = milliseconds;
export const retryAfterMs = v.pipe(
  v.nullable(v.pipe(v.number(), v.integer(), v.minValue(0))),
  v.description(
    "0 when admitted. When denied, the exact wait for this cost in milliseconds; null: it never fits. With the " +
      "policy's `retryJitter` the decision's own is up to so much longer, and those of its rules are exact. Of a call " +
      "that was shed since machines are busy: how long at least calls like it may be shed.",
  ),
);

export const delayMs = v.optional(
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
