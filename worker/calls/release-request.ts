/** The schema of the request that ends a lease. */
import * as v from "valibot";
import { MOST_DURATION_MS, OUTCOMES } from "../../core/protocol/messages.ts";
import { number, oneOf, table } from "../../core/validation.ts";
import { leaseId } from "./request-schemas.ts";

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
      number(0, MOST_DURATION_MS),
      v.description("How long the call took, in milliseconds; by default the time since the grant."),
    ),
  ),
});
