import { RpcTarget } from "cloudflare:workers";
import * as v from "valibot";
import type { Policy } from "./policies.ts";
import { integer, table, violationsOf } from "./violations.ts";

/**
 * What ends a lease with its caller. It lives in the object and is handed on to the caller unwrapped; the runtime
 * disposes of it when the caller disposes, returns, throws, finishes its `waitUntil` or is killed (tried on workerd
 * 1.20261023.1: within 2 ms, and at once when nobody is there any more to take it). A deployment may drop it without
 * a word: then the lease ends when it expires.
 */
export class Slot extends RpcTarget {
  readonly #release: () => void;

  constructor(release: () => void) {
    super();
    this.#release = release;
  }

  [Symbol.dispose](): void {
    this.#release();
  }
}

/**
 * The ttl that a holder asks a renewal for; `undefined`: as before.
 *
 * @throws TypeError that names the field, the value and what is allowed
 */
export function renewalOf({ lease }: Policy, call: unknown): number | undefined {
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
export function leaseNotFound(): Error {
  const error = new Error("There is no such lease, or no longer");
  return Object.assign(error, { name: "LimiterError", status: 404, code: "lease-not-found" });
}
