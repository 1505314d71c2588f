import * as v from "valibot";
/** The fields that many requests have. */
import { MAX_UNITS } from "../../../core/algorithms/algorithm.ts";
import { MAX_DURATION_MS, OUTCOMES } from "../../../core/protocol/messages.ts";
import { integer, number, oneOf, table } from "../../../core/validation.ts";

/** The longest key, in bytes of UTF-8. */
export const MAX_KEY_BYTES = 512;
export const MAX_IDEMPOTENCY_KEY_BYTES = 256;

export const policy = v.pipe(
  v.string("the name of a policy"),
  v.description("The name of a policy, as in wrangler.toml."),
);
export const key = v.pipe(
  text(MAX_KEY_BYTES),
  v.description(
    'What is limited: 1 to 512 bytes of UTF-8, compared byte by byte. Under a policy with keyKind "ip", an address.',
  ),
);
export const idempotencyKey = v.pipe(
  text(MAX_IDEMPOTENCY_KEY_BYTES),
  v.description(
    "Calls with the same idempotency key, policy and key are charged once and answered alike, for 24 hours or until " +
      "the quota is whole again, whichever is later. Denials are not kept: they took nothing.",
  ),
);

/** What is allowed as a cost, which may be 0, and as units, which may not. */
export const COST_ALLOWED = unitsAllowed(0);
export const UNITS_ALLOWED = unitsAllowed(1);

function unitsAllowed(least: number): string {
  return `an integer from ${least} to ${MAX_UNITS}, or a table of such integers by unit`;
}

/** A number of units for every rule, or a table by unit. In a table, a 0 leaves a rule out. */
export const Cost = v.union(
  [integer(0, MAX_UNITS), v.record(v.string(), integer(0, MAX_UNITS))],
  COST_ALLOWED,
);
/** The same, without 0 as a number. */
export const Units = v.union(
  [integer(1, MAX_UNITS), v.record(v.string(), integer(0, MAX_UNITS))],
  UNITS_ALLOWED,
);

const BY_UNIT = "A number counts for every rule. In a table by unit, a unit that is left out counts 1.";

export function cost(description: string) {
  return v.pipe(Cost, v.description(`${description} ${BY_UNIT}`));
}

export function units(description: string) {
  return v.pipe(Units, v.description(`${description} ${BY_UNIT}`));
}

export const priority = v.optional(
  v.pipe(
    v.string("the name of a priority"),
    v.description(
      "How important the call is: critical, high, normal (the default) or low, unless the policy has other names. A " +
        "policy may keep a part of its limit for more important calls.",
    ),
  ),
);

export const utilization = v.optional(
  v.pipe(
    number(0, 1),
    v.description(
      "How busy the caller's machine is, from 0 to 1. Under a policy that sheds calls by reports.",
    ),
  ),
);

export function durationMs(most: number, description: string, whose = "", least = 1) {
  return v.pipe(integer(least, most, whose), v.description(description));
}

export function flag(description: string) {
  return v.optional(v.pipe(v.boolean("true or false"), v.description(description)), false);
}

/** No policy allows a longer lease or wait, in milliseconds. Each policy has its own maximum. */
export const MAX_LEASE_MS = 2_147_483_647;
export const waitMs = v.optional(
  v.pipe(
    integer(0, MAX_LEASE_MS),
    v.description("How long to wait for the call's turn, in milliseconds; at most the policy's maxWait."),
  ),
  0,
);

/** Whether a text may be a key: 1 to 512 bytes of UTF-8. */
export function isKey(value: string): boolean {
  return v.is(key, value);
}

/**
 * Text of 1 to `mostBytes` bytes of UTF-8. Lone surrogates are refused: they have no UTF-8, so two of them would be
 * one key.
 */
export function text(mostBytes: number) {
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

/* The schemas of requests. The parser, the types and the OpenAPI document are all made from them. */

export const LimitRequest = table({
  policy,
  key,
  cost: v.optional(cost("Units to take if they all fit; 0 looks and takes nothing."), 1),
  idempotencyKey: v.optional(idempotencyKey),
  priority,
  refundable: flag(
    "Whether the decision carries a `charge`, which names what was taken in a refund. It is the idempotency key, and " +
      "one is drawn when there is none.",
  ),
  waitMs,
  utilization,
  force: flag(
    "Whether the units are taken whatever is there. What is missing is a debt, which later calls wait for. Needs the " +
      "scope `force` or `admin`, and a cost above 0.",
  ),
});

/** The most checks in one call: of those that pass together, and of those that are each decided alone. */
export const MAX_CHECKS = 16;
export const MAX_INDEPENDENT_CHECKS = 100;
export const CHECKS_ALLOWED = `a list of 1 to ${MAX_CHECKS} checks { policy, key, cost }, with atomic false of up to ${MAX_INDEPENDENT_CHECKS}`;

/** One of the checks of a call. */
export const Check = table({ policy, key, cost: LimitRequest.entries.cost });

export const LimitAllRequest = table({
  checks: v.pipe(
    v.array(Check, CHECKS_ALLOWED),
    v.minLength(1, CHECKS_ALLOWED),
    v.maxLength(MAX_INDEPENDENT_CHECKS, CHECKS_ALLOWED),
    v.description(`At most ${MAX_CHECKS}, unless atomic is false.`),
  ),
  atomic: v.optional(
    v.pipe(
      v.boolean("true or false"),
      v.description("Whether all costs are taken or none. With false each check is decided by itself."),
    ),
    true,
  ),
  priority,
  idempotencyKey: v.optional(idempotencyKey),
});

export const RefundRequest = table({
  policy,
  key,
  units: units(
    "Units to give back. Units beyond an untouched quota are lost: a refund never makes the quota larger.",
  ),
  charge: v.optional(
    v.pipe(
      text(MAX_IDEMPOTENCY_KEY_BYTES),
      v.description(
        "The idempotency key of the `limit` that took the units, or the `charge` of its decision. At most what it took " +
          "comes back, once, and nothing that time has given back since. Without a charge, whatever is missing comes " +
          "back: that needs the scope `refund`.",
      ),
    ),
  ),
  idempotencyKey,
});

const DEFAULT_HOLD_TTL_MS = 60_000;
const MAX_HOLD_TTL_MS = 86_400_000;

export const HoldRequest = table({
  policy,
  key,
  units: units("Units to set apart, until it is known how many were used."),
  ttlMs: v.optional(
    durationMs(
      MAX_HOLD_TTL_MS,
      "How long the hold lasts, in milliseconds. A hold that expires counts as used.",
    ),
    DEFAULT_HOLD_TTL_MS,
  ),
  priority,
  idempotencyKey: v.optional(idempotencyKey),
});

const holdId = v.pipe(v.string("the id of a hold"), v.description("The id of a hold."));
const leaseId = v.pipe(v.string("the id of a lease"), v.description("The id of a lease."));

/** Over HTTP the id is part of the address. Over the service binding it is a field. */
export const SettleRequest = table({
  id: holdId,
  used: v.pipe(
    Cost,
    v.description(
      "Units really used: fewer than were held, or more, which are debited too and may drive the quota below zero. " +
        "A number counts for every rule. In a table by unit, a unit that is left out was used as it was held.",
    ),
  ),
});
export const CancelRequest = table({ id: holdId });

const ttlMs = v.optional(
  durationMs(
    MAX_LEASE_MS,
    "How long the lease lasts unless it is renewed, in milliseconds: at most the policy's maxTtl, by default its ttl.",
    ", and at most the policy's maxTtl",
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
  priority,
  utilization,
  idempotencyKey: v.optional(idempotencyKey),
  confirm: flag(
    "Whether the lease ends by itself after 5 s unless it is renewed: then a caller that went while it waited keeps " +
      "no slot.",
  ),
});

/**
 * An acquire over the service binding: the lease ends with its caller, unless it is detached, or `graceMs` later. The
 * entrypoint confirms it, whether `confirm` asks for that or not. With `resume` it takes over a lease.
 */
export const BoundAcquireRequest = table({
  ...AcquireRequest.entries,
  detached: v.optional(v.boolean("true or false"), false),
  graceMs: ttlMs,
  resume: v.optional(leaseId),
});

/** Every look for pings wakes the object. In milliseconds. */
export const MIN_PING_MS = 1_000;

export const SocketRequest = table({
  policy,
  key,
  units: AcquireRequest.entries.units,
  waitMs,
  priority,
  graceMs: ttlMs,
  pingWithinMs: v.optional(
    durationMs(
      MAX_LEASE_MS,
      "The holder sends `ping` at least so often, in milliseconds, or its connection counts as broken.",
      "",
      MIN_PING_MS,
    ),
  ),
  resume: v.optional(leaseId),
});

export const RenewRequest = table({ id: leaseId, ttlMs });
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

/* The schema of the request that ends a lease. */

/** Over HTTP the id is part of the address. */
export const ReleaseRequest = table({
  id: leaseId,
  outcome: v.optional(
    v.pipe(
      oneOf(OUTCOMES),
      v.description(
        "How the call went: `ok` (by default), `dropped` when the upstream was overloaded, `ignore` when the call says " +
          "nothing of it. Only adaptive-concurrency reads it.",
      ),
    ),
  ),
  durationMs: v.optional(
    v.pipe(
      number(0, MAX_DURATION_MS),
      v.description("How long the call took, in milliseconds; by default the time since the grant."),
    ),
  ),
});

/** Over HTTP policy and key are parts of the address. Over the service binding they are fields. */
export const SetRequest = table({
  ...KeyRequest.entries,
  used: v.pipe(
    Cost,
    v.description(
      "Units that the key counts as used from now on: more than the limit is a debt. A number counts for every rule " +
        "that counts a rate. In a table by unit, a rule whose unit is left out stays as it is.",
    ),
  ),
});
