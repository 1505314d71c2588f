/** The schemas of requests. The parser, the types and the OpenAPI document are all made from them. */
import * as v from "valibot";
import { MAX_UNITS } from "../../../core/algorithms/algorithm.ts";
import { isTable } from "../../../core/policies/changed-tables.ts";
import { MAX_CHECKS, MAX_DURATION_MS, OUTCOMES } from "../../../core/protocol/calls.ts";
import { isKeySized, MAX_KEY_BYTES } from "../../../core/protocol/names.ts";
import { described, integer, number, oneOf, table } from "../../../core/validation.ts";

const MAX_IDEMPOTENCY_KEY_BYTES = 256;

/** In answers. */
export const INTEGER = v.pipe(v.number(), v.integer());
export const AMOUNT = v.pipe(v.number(), v.integer(), v.minValue(0));

export function amount(description: string) {
  return described(AMOUNT, description);
}
/** The same in milliseconds. */
export const milliseconds = amount;

/** A field that may be left out. @param value what it is then */
export function optional<
  Schema extends v.GenericSchema,
  const Value extends v.Default<Schema, undefined> = undefined,
>(schema: Schema, description: string, value?: Value) {
  return v.optional(described(schema, description), value as Value);
}

const policy = described(v.string("the name of a policy"), "The name of a policy, as in wrangler.toml.");
const key = described(
  text(MAX_KEY_BYTES),
  'What is limited: 1 to 512 bytes of UTF-8, compared byte by byte. Under a policy with keyKind "ip", an address.',
);
const idempotencyKey = described(
  text(MAX_IDEMPOTENCY_KEY_BYTES),
  "Calls with the same idempotency key, policy and key are charged once and answered alike, for 24 hours or until " +
    "the quota has refilled, whichever is later. Denials are not kept: they took nothing.",
);

const optionalIdempotencyKey = v.optional(idempotencyKey);

export const COST_ALLOWED = `an integer from 0 to ${MAX_UNITS}, or a table of such integers by unit`;
export const UNITS_ALLOWED = `an integer from 1 to ${MAX_UNITS}, or a table of such integers by unit`;

const byUnit = v.record(v.string(), integer(0, MAX_UNITS));
/** A number of units for every rule, or a table by unit. In a table, a 0 leaves a rule out. */
export const Cost = v.union([integer(0, MAX_UNITS), byUnit], COST_ALLOWED);
/** The same, without 0 as a number. */
export const Units = v.union([integer(1, MAX_UNITS), byUnit], UNITS_ALLOWED);

const BY_UNIT = "A number counts for every rule. In a table by unit, a unit that is left out counts 1.";

function cost(description: string) {
  return described(Cost, `${description} ${BY_UNIT}`);
}

function units(description: string) {
  return described(Units, `${description} ${BY_UNIT}`);
}

const priority = optional(
  v.string("the name of a priority"),
  "How important the call is: critical, high, normal (the default) or low, unless the policy has other names. A " +
    "policy may keep a part of its limit for more important calls.",
);

const utilization = optional(
  number(0, 1),
  "How busy the caller's machine is, from 0 to 1. Under a policy that sheds calls by reports.",
);

const PLAN =
  "The plan whose figures count for the key, one of the policy's `plans`; empty: the policy's own figures.";
/** Of calls that are decided: without a plan the policy's own figures count. */
const plan = optional(v.string("the name of a plan"), `${PLAN} By default the policy's own.`, "");
/** Of calls that are not decided: without a plan the key keeps the one that it has. */
const planOfKey = optional(v.string("the name of a plan"), `${PLAN} By default the one that the key has.`);
/** How the OpenAPI document describes `Limits`. */
export const LimitsByUnit = v.record(v.string(), integer(0, MAX_UNITS));
/** The policy says which units and limits there are. A `record` would drop a `__proto__`, whose limit were ignored. */
export const Limits = v.custom<Readonly<Record<string, number>>>(isTable, "a table of limits by unit");
const limits = optional(
  Limits,
  "Limits of the caller's own, by unit, instead of the plan's. Under a policy with limitInCall.",
);
const MAX_GROUP_BYTES = 128;
export const GROUP_ALLOWED = `1 to ${MAX_GROUP_BYTES} bytes of UTF-8`;
/** How a call says what counts for its key. */
const group = optional(
  text(MAX_GROUP_BYTES),
  "Whose call it is. Needed under a policy with `fair`, whose groups share the limit.",
);
const ofPlan = { plan, limits, group };

function flag(description: string) {
  return optional(v.boolean("true or false"), description, false);
}

/** No policy allows a longer lease or wait, in milliseconds. Each policy has its own maximum. */
const MAX_LEASE_MS = 2_147_483_647;
const waitMs = optional(
  integer(0, MAX_LEASE_MS),
  "How long to wait for the call's turn, in milliseconds; at most the policy's maxWait.",
  0,
);

/** A list of 1 to `max` items. */
export function list<Item extends v.GenericSchema>(item: Item, max: number, allowed: string) {
  return v.pipe(v.array(item, allowed), v.minLength(1, allowed), v.maxLength(max, allowed));
}

/**
 * Text of 1 to `maxBytes` bytes of UTF-8. Lone surrogates are refused: they have no UTF-8, so two of them would be
 * one key.
 */
export function text(maxBytes: number) {
  const allowed = `1 to ${maxBytes} bytes of UTF-8`;
  return v.pipe(
    v.string(allowed),
    v.minLength(1, allowed),
    v.maxLength(maxBytes, allowed),
    v.check((value) => isKeySized(value, maxBytes), allowed),
  );
}

export const LimitRequest = table({
  policy,
  key,
  cost: v.optional(cost("Units to take if they all fit; 0 looks and takes nothing."), 1),
  idempotencyKey: optionalIdempotencyKey,
  priority,
  ...ofPlan,
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

/** The most checks in one call that are each decided alone. */
export const MAX_INDEPENDENT_CHECKS = 100;
export const CHECKS_ALLOWED = `a list of 1 to ${MAX_CHECKS} checks { policy, key, cost }, with atomic false of up to ${MAX_INDEPENDENT_CHECKS}`;

export const Check = table({ policy, key, cost: LimitRequest.entries.cost, ...ofPlan });

export const LimitAllRequest = table({
  checks: described(
    list(Check, MAX_INDEPENDENT_CHECKS, CHECKS_ALLOWED),
    `At most ${MAX_CHECKS}, unless atomic is false.`,
  ),
  atomic: optional(
    v.boolean("true or false"),
    "Whether all costs are taken or none. With false each check is decided by itself.",
    true,
  ),
  priority,
  idempotencyKey: optionalIdempotencyKey,
});

export const ANY_CHECKS_ALLOWED = `a list of 1 to ${MAX_CHECKS} checks { policy, key, cost }`;

export const LimitAnyRequest = table({
  checks: described(
    list(Check, MAX_CHECKS, ANY_CHECKS_ALLOWED),
    "Tried in this order until one admits: that one is charged, and no other.",
  ),
  priority,
  refundable: flag("Whether the decision of the chosen check carries a `charge`, as in `limit`."),
  idempotencyKey: optionalIdempotencyKey,
});

export const RefundRequest = table({
  policy,
  key,
  plan: planOfKey,
  units: units(
    "Units to give back. Units beyond an untouched quota are lost: a refund never makes the quota larger.",
  ),
  charge: optional(
    text(MAX_IDEMPOTENCY_KEY_BYTES),
    "The idempotency key of the `limit` that took the units, or the `charge` of its decision. At most what it took " +
      "comes back, once, and nothing that time has given back since. Without a charge, whatever is missing comes " +
      "back: that needs the scope `refund`.",
  ),
  idempotencyKey,
});

const DEFAULT_HOLD_TTL_MS = 60_000;
const MAX_HOLD_TTL_MS = 86_400_000;

export const HoldRequest = table({
  policy,
  key,
  units: units("Units to set apart, until it is known how many were used."),
  ttlMs: optional(
    integer(1, MAX_HOLD_TTL_MS),
    "How long the hold lasts, in milliseconds. A hold that expires counts as used.",
    DEFAULT_HOLD_TTL_MS,
  ),
  priority,
  ...ofPlan,
  idempotencyKey: optionalIdempotencyKey,
});

const holdId = described(v.string("the id of a hold"), "The id of a hold.");
const leaseId = described(v.string("the id of a lease"), "The id of a lease.");

/** Over HTTP the id is part of the address. Over the service binding it is a field. */
export const SettleRequest = table(
  {
    id: holdId,
    used: described(
      Cost,
      "Units really used: fewer than were held, or more, which are debited too and may drive the quota below zero. " +
        "A number counts for every rule. In a table by unit, a unit that is left out was used as it was held.",
    ),
  },
  ["id"],
);
export const CancelRequest = table({ id: holdId });

const ttlMs = optional(
  integer(1, MAX_LEASE_MS, ", and at most the policy's maxTtl"),
  "How long the lease lasts unless it is renewed, in milliseconds: at most the policy's maxTtl, by default its ttl.",
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
  ...ofPlan,
  utilization,
  idempotencyKey: optionalIdempotencyKey,
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
export type BoundAcquireRequest = Readonly<v.InferOutput<typeof BoundAcquireRequest>>;

/** Each check for pings wakes the object. In milliseconds. */
export const MIN_PING_MS = 1_000;

export const SocketRequest = table({
  policy,
  key,
  units: AcquireRequest.entries.units,
  waitMs,
  priority,
  plan,
  group,
  graceMs: ttlMs,
  pingWithinMs: optional(
    integer(MIN_PING_MS, MAX_LEASE_MS),
    "The holder sends `ping` at least so often, in milliseconds, or its connection counts as broken.",
  ),
  resume: v.optional(leaseId),
});

export const RenewRequest = table({ id: leaseId, ttlMs }, ["id"]);
export const PeekRequest = table({
  policy,
  key,
  plan: planOfKey,
  group: optional(
    text(MAX_GROUP_BYTES),
    "Whose part the decision says, under a policy with `fair`. By default what all groups have together.",
  ),
  waitFor: optional(
    oneOf(["idle"]),
    "With this, the answer comes when the key has no leases, or after waitMs.",
  ),
  waitMs,
});

export const KeyRequest = table({ policy, key, plan: planOfKey });

/** Over HTTP the id is part of the address. */
export const ReleaseRequest = table(
  {
    id: leaseId,
    outcome: optional(
      oneOf(OUTCOMES),
      "How the call went: `ok` (by default), `dropped` when the upstream was overloaded, `ignore` when the call says " +
        "nothing of it. Only adaptive-concurrency reads it.",
    ),
    durationMs: optional(
      number(0, MAX_DURATION_MS),
      "How long the call took, in milliseconds; by default the time since the grant.",
    ),
  },
  ["id"],
);

/** Over HTTP policy and key are parts of the address. Over the service binding they are fields. */
export const SetRequest = table(
  {
    ...KeyRequest.entries,
    used: described(
      Cost,
      "Units that the key counts as used from now on: more than the limit is a debt. A number counts for every rule " +
        "that counts a rate. In a table by unit, a rule whose unit is left out stays as it is.",
    ),
  },
  ["policy", "key"],
);
