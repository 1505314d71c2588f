import { RpcTarget } from "cloudflare:workers";
import * as v from "valibot";
import type { Policy } from "../../core/policies/policy.ts";
import { claimId } from "../../core/protocol/claim-ids.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { integer, table, violationsOf } from "../../core/validation.ts";
import type { AskKey } from "../operations/operations.ts";

/**
 * Releases a lease when its holder ends. The handle lives in the object and is passed on to the caller unwrapped. The
 * runtime disposes of the handle when the caller disposes of it, returns, throws, finishes its `waitUntil` or is killed
 * (tried on workerd 1.20261023.1: within 2 ms, and at once when the caller has gone before it gets the handle). A
 * deployment may drop the handle without disposing of it: then the lease ends when it expires.
 */
class LeaseHandle extends RpcTarget {
  readonly #release: () => unknown;

  constructor(release: () => unknown) {
    super();
    this.#release = release;
  }

  [Symbol.dispose](): void {
    this.#release();
  }
}

/** The handle that a holder gets beside its lease, and the functions by which it renews or releases the lease. */
export function leaseHandle(
  ask: AskKey,
  policy: string,
  key: string,
  id: string,
): Omit<Required<Attached>, "answer"> {
  const release = () =>
    ask(policy, key, (operations, keyState, nowMs) => operations.release(keyState, id, nowMs));
  return {
    slot: new LeaseHandle(release),
    release: async () => {
      if (!(await release())) throw leaseNotFound();
    },
    renew: async (call) => {
      const renewed = await ask(policy, key, (operations, keyState, nowMs) =>
        operations.renew(keyState, id, renewalOf(keyState.policy, call), nowMs),
      );
      if ("missing" in renewed) throw leaseNotFound();
      return { ...renewed, id: claimId("lease", { policy, key }, id) };
    },
  };
}

/**
 * The `ttlMs` that a holder asks for when it renews; `undefined`: the lifetime that the acquire asked for.
 *
 * @throws TypeError that names the field, the value and what is allowed
 */
function renewalOf({ lease }: Policy, call: unknown): number | undefined {
  const schema = table({ ttlMs: v.optional(integer(1, lease?.maxTtlMs ?? 0)) });
  const parsed = v.safeParse(schema, call ?? {});
  if (!parsed.success)
    throw new TypeError(
      violationsOf(parsed.issues)
        .map(({ detail }) => detail)
        .join("; "),
    );
  return parsed.output.ttlMs;
}

/** The error for a holder whose lease has ended. It has the properties of the service binding's errors. */
function leaseNotFound(): Error {
  const error = new Error("There is no such lease, or no longer");
  return Object.assign(error, { name: "LimiterError", status: 404, code: "lease-not-found" });
}
