/** The fields that many requests have. */
import * as v from "valibot";
import { MAX_UNITS } from "../../../core/algorithms/algorithm.ts";
import { integer, number } from "../../../core/validation.ts";

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
