/** What goes in and what comes out. The parser, the types and the OpenAPI document are all made from these. */
import * as v from "valibot";
import { MOST_UNITS } from "../durable-objects/policies.ts";
import { integer, table } from "../durable-objects/violations.ts";

export const MOST_KEY_BYTES = 512;
const MOST_IDEMPOTENCY_KEY_BYTES = 256;

const policy = v.pipe(
  v.string("the name of a policy"),
  v.description("The name of a policy, as in wrangler.toml."),
);
const key = v.pipe(
  text(MOST_KEY_BYTES),
  v.description(
    'What is limited: 1 to 512 bytes of UTF-8, compared byte by byte. Under a policy with keyKind "ip", an address.',
  ),
);
const idempotencyKey = v.pipe(
  text(MOST_IDEMPOTENCY_KEY_BYTES),
  v.description(
    "Calls with the same idempotency key, policy and key are charged once and answered alike, for 24 hours or until " +
      "the quota is whole again, whichever is later. Denials are not kept: they took nothing.",
  ),
);

export const LimitRequest = table({
  policy,
  key,
  cost: v.optional(
    v.pipe(
      integer(0, MOST_UNITS),
      v.description("Units to take if they all fit; 0 looks and takes nothing."),
    ),
    1,
  ),
  idempotencyKey: v.optional(idempotencyKey),
});

export const RefundRequest = table({
  policy,
  key,
  units: v.pipe(
    integer(1, MOST_UNITS),
    v.description("Units to give back. What would go over an untouched quota is lost: a refund never mints."),
  ),
  idempotencyKey,
});

/** Names one key of one policy. */
export const KeyRequest = table({ policy, key });

/** What a service binding's `props` may say. */
export const Props = table({ policy: v.optional(policy) });

const milliseconds = (description: string) =>
  v.pipe(v.number(), v.integer(), v.minValue(0), v.description(description));
const units = milliseconds;
const retryAfterMs = v.pipe(
  v.nullable(v.pipe(v.number(), v.integer(), v.minValue(0))),
  v.description(
    "0 when admitted. When denied, the exact wait for this cost in milliseconds; null: it never fits.",
  ),
);

export const RuleDecision = v.object({
  name: v.string(),
  success: v.boolean(),
  limit: units("The most units that can be admitted at once."),
  remaining: units("The largest cost that would pass now."),
  resetAfterMs: milliseconds("Until the quota is whole again if nobody comes."),
  retryAfterMs,
  reason: v.picklist(["ok", "quota", "cost-over-limit"]),
});

export const Decision = v.object({
  success: v.pipe(v.boolean(), v.description("Whether the call may go on.")),
  policy: v.string(),
  key: v.pipe(v.string(), v.description("The key that was counted; an IPv6 address counts with its /64.")),
  limit: units("The most units that can be admitted at once."),
  remaining: v.optional(units("The largest cost that would pass now. Absent when degraded.")),
  resetAfterMs: v.optional(
    milliseconds("Until the quota is whole again if nobody comes. Absent when degraded."),
  ),
  retryAfterMs: v.optional(retryAfterMs),
  reason: v.pipe(
    v.picklist(["ok", "quota", "cost-over-limit", "shadow", "degraded"]),
    v.description(
      "Why: `quota` wait, `cost-over-limit` never, `shadow` would have been denied, `degraded` nobody could decide " +
        "and the policy's onFailure did.",
    ),
  ),
  source: v.pipe(v.picklist(["object", "fallback"]), v.description("Who decided.")),
  rules: v.pipe(v.array(RuleDecision), v.description("What every rule said. Empty when degraded.")),
  violated: v.optional(v.pipe(v.array(v.string()), v.description("The rules that denied."))),
});
export type Decision = Readonly<v.InferOutput<typeof Decision>>;

export const KeyReport = v.object({
  ...Decision.entries,
  outstanding: units("Units held by somebody who may still use them."),
});
export type KeyReport = Readonly<v.InferOutput<typeof KeyReport>>;

export const PolicyList = v.object({
  policies: v.array(
    v.object({
      name: v.string(),
      // What else a rule says is its algorithm's: limits in units, durations in milliseconds.
      rules: v.array(
        v.objectWithRest({ name: v.string(), algorithm: v.string() }, v.union([v.string(), v.number()])),
      ),
      onFailure: v.picklist(["closed", "open"]),
      deadlineMs: milliseconds("The longest a caller waits for a decision."),
      objects: v.union([v.literal("per-key"), v.pipe(v.number(), v.integer())]),
      reservationTtlMs: milliseconds("The longest a reservation can live; 0: none are made."),
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
  decision: Decision,
});

/** Text of 1 to `mostBytes` bytes of UTF-8. A lone surrogate has no UTF-8, and two of them would be one key. */
function text(mostBytes: number) {
  const allowed = `1 to ${mostBytes} bytes of UTF-8`;
  return v.pipe(
    v.string(allowed),
    v.minLength(1, allowed),
    v.maxLength(mostBytes, allowed),
    v.check((value) => value.isWellFormed() && fitsBytes(value, mostBytes), allowed),
  );
}

const encoder = new TextEncoder();

function fitsBytes(value: string, mostBytes: number): boolean {
  // A UTF-16 unit takes at most three bytes, so short text need not be encoded.
  return value.length * 3 <= mostBytes || encoder.encode(value).length <= mostBytes;
}
