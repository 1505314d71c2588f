import { RpcTarget } from "cloudflare:workers";
import * as v from "valibot";
import { claimId } from "../../core/protocol/claim-ids.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Desk } from "../call-router.ts";
import type { Policy } from "../../core/policies/parse-policies.ts";
import type { Attached, Leased, Missing } from "../../core/protocol/messages.ts";
import { integer, table, violationsOf } from "../../core/validation.ts";

/**
 * What ends a lease with its caller. It lives in the object and is handed on to the caller unwrapped; the runtime
 * disposes of it when the caller disposes, returns, throws, finishes its `waitUntil` or is killed (tried on workerd
 * 1.20261023.1: within 2 ms, and at once when nobody is there any more to take it). A deployment may drop it without
 * a word: then the lease ends when it expires.
 */
class Slot extends RpcTarget {
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
  desk: Desk,
  open: () => [keyState: KeyState, nowMs: number],
  id: string,
): Omit<Attached, "answer"> {
  const release = () => {
    const [keyState, nowMs] = open();
    return desk.release(keyState, id, nowMs);
  };
  return {
    slot: new Slot(release),
    release: async () => {
      if (!(await release())) throw leaseNotFound();
    },
    renew: async (call) => {
      const [keyState, nowMs] = open();
      const { policy, key } = keyState;
      const answer = await desk.renew(keyState, id, renewalOf(policy, call), nowMs);
      const renewed = JSON.parse(answer) as Leased | Missing;
      if ("missing" in renewed) throw leaseNotFound();
      return { ...renewed, id: claimId("lease", { policy: policy.name, key }, id) };
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
