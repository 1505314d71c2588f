/** What goes in and what comes out. The parser, the types and the OpenAPI document are all made from these. */
import * as v from "valibot";
import { MOST_UNITS } from "../durable-objects/policies.ts";
import { integer, oneOf, table } from "../durable-objects/violations.ts";

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

/** What is allowed where a call wants units. */
export const COST_ALLOWED = `an integer from 0 to ${MOST_UNITS}, or a table of such integers by unit`;

/** Units of every rule, or by the unit that a rule counts. */
function cost(description: string) {
  return v.pipe(
    v.union([integer(0, MOST_UNITS), v.record(v.string(), integer(0, MOST_UNITS))], COST_ALLOWED),
    v.description(
      `${description} A number counts for every rule; by unit, one that is left out counts once.`,
    ),
  );
}

/** The same where nothing is no answer. */
function units(description: string) {
  return v.pipe(
    cost(description),
    v.check((value) => value !== 0, COST_ALLOWED.replace("0", "1")),
  );
}

function durationMs(most: number, description: string) {
  return v.pipe(integer(1, most), v.description(description));
}

export const LimitRequest = table({
  policy,
  key,
  cost: v.optional(cost("Units to take if they all fit; 0 looks and takes nothing."), 1),
  idempotencyKey: v.optional(idempotencyKey),
});

export const MOST_CHECKS = 16;
const CHECKS_ALLOWED = `a list of 1 to ${MOST_CHECKS} checks { policy, key, cost }`;

export const LimitAllRequest = table({
  checks: v.pipe(
    v.array(table({ policy, key, cost: LimitRequest.entries.cost }), CHECKS_ALLOWED),
    v.minLength(1, CHECKS_ALLOWED),
    v.maxLength(MOST_CHECKS, CHECKS_ALLOWED),
  ),
  idempotencyKey: v.optional(idempotencyKey),
});

export const RefundRequest = table({
  policy,
  key,
  units: units("Units to give back. What would go over an untouched quota is lost: a refund never mints."),
  idempotencyKey,
});

const DEFAULT_HOLD_TTL_MS = 60_000;
const MOST_HOLD_TTL_MS = 86_400_000;

export const HoldRequest = table({
  policy,
  key,
  units: units("Units to set apart, until it is known how many were used."),
  ttlMs: v.optional(
    durationMs(MOST_HOLD_TTL_MS, "How long, in milliseconds. A hold that expires counts as used."),
    DEFAULT_HOLD_TTL_MS,
  ),
  idempotencyKey: v.optional(idempotencyKey),
});

const holdId = v.pipe(v.string("the id of a hold"), v.description("The id of a hold."));
const leaseId = v.pipe(v.string("the id of a lease"), v.description("The id of a lease."));

/** What comes in an address has its id there; over the service binding it is a field. */
export const SettleRequest = table({
  id: holdId,
  used: v.pipe(
    v.union([integer(0, MOST_UNITS), v.record(v.string(), integer(0, MOST_UNITS))], COST_ALLOWED),
    v.description(
      "Units really used: fewer than were held, or more, which are debited too and may drive the quota below zero. " +
        "A number counts for every rule; by unit, one that is left out was used as it was held.",
    ),
  ),
});
export const CancelRequest = table({ id: holdId });

/** A policy says how much of these it allows; more than this no policy does. */
const MOST_LEASE_MS = 2_147_483_647;
const waitMs = v.optional(
  v.pipe(
    integer(0, MOST_LEASE_MS),
    v.description("How long to wait in the queue, in milliseconds; at most the policy's maxWait."),
  ),
  0,
);
const ttlMs = v.optional(
  durationMs(
    MOST_LEASE_MS,
    "The lease's life unless renewed, at most the policy's maxTtl; by default its ttl.",
  ),
);

export const AcquireRequest = table({
  policy,
  key,
  units: v.optional(
    units("Units to lease. Rules that count a rate are charged when the lease is granted."),
    1,
  ),
  ttlMs,
  waitMs,
  idempotencyKey: v.optional(idempotencyKey),
});

/** Over the service binding: a lease ends with its caller unless it is detached. */
export const BoundAcquireRequest = table({
  ...AcquireRequest.entries,
  detached: v.optional(v.boolean("true or false"), false),
});

export const SocketRequest = table({ policy, key, units: AcquireRequest.entries.units, waitMs });

export const RenewRequest = table({ id: leaseId, ttlMs });
export const ReleaseRequest = table({ id: leaseId });

export const PeekRequest = table({
  policy,
  key,
  waitFor: v.optional(
    v.pipe(oneOf(["idle"]), v.description("Answers when the key has no leases, or when waitMs are over.")),
  ),
  waitMs,
});

/** Names one key of one policy. */
export const KeyRequest = table({ policy, key });

/** What a service binding's `props` may say. */
export const Props = table({ policy: v.optional(policy) });

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
export type Lease = Readonly<v.InferOutput<typeof Lease>>;

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
  source: v.pipe(v.picklist(["object", "fallback"]), v.description("Who decided.")),
  rules: v.pipe(v.array(RuleDecision), v.description("What every rule said. Empty when degraded.")),
  violated: v.optional(v.pipe(v.array(v.string()), v.description("The rules that denied."))),
  waitedMs: v.optional(milliseconds("How long an acquire waited in the queue.")),
  lease: v.optional(Lease),
  hold: v.optional(Hold),
});
export type Decision = Readonly<v.InferOutput<typeof Decision>>;

export const KeyReport = v.object({
  ...Decision.entries,
  outstanding: figure("Units held by somebody who may still use them, leased ones included."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
  reclaimed: figure("Leases that expired instead of being released, since the key was last forgotten."),
  queueLength: figure("Callers who wait for a lease."),
  longestWaitMs: milliseconds("How long the one of them that waits longest has waited."),
});
export type KeyReport = Readonly<v.InferOutput<typeof KeyReport>>;

export const AllDecisions = v.object({
  success: v.pipe(v.boolean(), v.description("Whether every check passed; if not, nothing was taken.")),
  decisions: v.pipe(v.array(Decision), v.description("One a check, in their order; who denied says so.")),
});
export type AllDecisions = Readonly<v.InferOutput<typeof AllDecisions>>;

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
