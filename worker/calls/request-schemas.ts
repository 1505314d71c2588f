/** The schemas of requests. The parser, the types and the OpenAPI document are all made from them. */
import * as v from "valibot";
import { MOST_UNITS } from "../../core/policies/policy-fields.ts";
import { integer, oneOf, table } from "../../core/validation.ts";

/** The longest key, in bytes of UTF-8. */
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

/** What is allowed as a cost, which may be 0, and as units, which may not. */
export const COST_ALLOWED = unitsAllowed(0);
export const UNITS_ALLOWED = unitsAllowed(1);

function unitsAllowed(least: number): string {
  return `an integer from ${least} to ${MOST_UNITS}, or a table of such integers by unit`;
}

/** A number of units for every rule, or a table by unit. In a table, a 0 leaves a rule out. */
function costFrom(least: 0 | 1, description: string) {
  return v.pipe(
    v.union(
      [integer(least, MOST_UNITS), v.record(v.string(), integer(0, MOST_UNITS))],
      least === 0 ? COST_ALLOWED : UNITS_ALLOWED,
    ),
    v.description(
      `${description} A number counts for every rule. In a table by unit, a unit that is left out counts 1.`,
    ),
  );
}

const cost = (description: string) => costFrom(0, description);
const units = (description: string) => costFrom(1, description);

function durationMs(most: number, description: string) {
  return v.pipe(integer(1, most), v.description(description));
}

export const LimitRequest = table({
  policy,
  key,
  cost: v.optional(cost("Units to take if they all fit; 0 looks and takes nothing."), 1),
  idempotencyKey: v.optional(idempotencyKey),
});

/** The most checks in one call. */
export const MOST_CHECKS = 16;
export const CHECKS_ALLOWED = `a list of 1 to ${MOST_CHECKS} checks { policy, key, cost }`;

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
  units: units(
    "Units to give back. Units beyond an untouched quota are lost: a refund never makes the quota larger.",
  ),
  idempotencyKey,
});

const DEFAULT_HOLD_TTL_MS = 60_000;
const MOST_HOLD_TTL_MS = 86_400_000;

export const HoldRequest = table({
  policy,
  key,
  units: units("Units to set apart, until it is known how many were used."),
  ttlMs: v.optional(
    durationMs(
      MOST_HOLD_TTL_MS,
      "How long the hold lasts, in milliseconds. A hold that expires counts as used.",
    ),
    DEFAULT_HOLD_TTL_MS,
  ),
  idempotencyKey: v.optional(idempotencyKey),
});

const holdId = v.pipe(v.string("the id of a hold"), v.description("The id of a hold."));
const leaseId = v.pipe(v.string("the id of a lease"), v.description("The id of a lease."));

/** Over HTTP the id is part of the address. Over the service binding it is a field. */
export const SettleRequest = table({
  id: holdId,
  used: v.pipe(
    v.union([integer(0, MOST_UNITS), v.record(v.string(), integer(0, MOST_UNITS))], COST_ALLOWED),
    v.description(
      "Units really used: fewer than were held, or more, which are debited too and may drive the quota below zero. " +
        "A number counts for every rule. In a table by unit, a unit that is left out was used as it was held.",
    ),
  ),
});
export const CancelRequest = table({ id: holdId });

/** No policy allows a longer lease or wait, in milliseconds. Each policy has its own maximum. */
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
    "How long the lease lasts unless it is renewed, in milliseconds: at most the policy's maxTtl, by default its ttl.",
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

/** An acquire over the service binding: the lease ends with its caller, unless it is detached. */
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
    v.pipe(
      oneOf(["idle"]),
      v.description("With this, the answer comes when the key has no leases, or after waitMs."),
    ),
  ),
  waitMs,
});

/** Names one key of one policy. */
export const KeyRequest = table({ policy, key });

/** The `props` that a service binding may have. */
export const Props = table({
  policy: v.optional(policy),
  region: v.optional(v.string("the name of a region")),
});

/** Whether a text may be a key: 1 to 512 bytes of UTF-8. */
export function isKey(value: string): boolean {
  return v.is(key, value);
}

/**
 * Text of 1 to `mostBytes` bytes of UTF-8. Lone surrogates are refused: they have no UTF-8, so two of them would be
 * one key.
 */
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
