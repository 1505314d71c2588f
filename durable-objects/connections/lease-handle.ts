import { RpcTarget } from "cloudflare:workers";
import * as v from "valibot";
import type { Policy } from "../../core/policies/policy.ts";
import { claimId } from "../../core/protocol/claim-ids.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { integer, table, violationsOf } from "../../core/validation.ts";
import type { AskKey } from "../operations/operations.ts";

/**
 * What ends a lease with its caller. It lives in the object and is handed on to the caller unwrapped; the runtime
 * disposes of it when the caller disposes, returns, throws, finishes its `waitUntil` or is killed (tried on workerd
 * 1.20261023.1: within 2 ms, and at once when nobody is there any more to take it). A deployment may drop it without
 * a word: then the lease ends when it expires.
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

/** What keeps a lease for whoever has it, and its ways to renew and to release. */
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
 * The ttl that a holder asks a renewal for; `undefined`: as before.
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

/** What a holder is told whose lease has ended; the same properties as the errors of the service binding. */
function leaseNotFound(): Error {
  const error = new Error("There is no such lease, or no longer");
  return Object.assign(error, { name: "LimiterError", status: 404, code: "lease-not-found" });
}
