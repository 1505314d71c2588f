import { RpcTarget } from "cloudflare:workers";
import * as v from "valibot";
import type { Answer, Missing, Released } from "../../core/protocol/answers.ts";
import {
  type AcquireCall,
  MAX_DURATION_MS,
  OUTCOMES,
  type ReleaseCall,
  type OfKey,
} from "../../core/protocol/calls.ts";
import { LINK_PROTOCOL, unsupportedOf } from "../../core/protocol/messages.ts";
import { claimId } from "../../core/protocol/names.ts";
import type { Attached, ConfirmCall } from "../../core/protocol/object-methods.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { integer, number, oneOf, table, violationsOf } from "../../core/validation.ts";
import { pointerTo } from "../../core/violations.ts";
import { claimIn, leaseLink } from "../operations/claims.ts";
import { type LeaseHost, renewed, takenOver } from "./lease-sockets.ts";

/**
 * Ends a lease when its link ends: at once, or after a grace. The runtime disposes of the handle when the
 * caller does, returns, throws, finishes its `waitUntil`, is killed, or has gone before (workerd
 * 1.20261023.1: within 2 ms). A deployment may drop it without disposal: then the lease expires.
 */
class LeaseHandle extends RpcTarget {
  readonly #end: () => unknown;

  constructor(end: () => unknown) {
    super();
    this.#end = end;
  }

  [Symbol.dispose](): void {
    this.#end();
  }
}

/** By it the holder renews and releases its lease, which ends with its link, or `graceMs` later. */
function leaseHandle(
  { anywhere, policyOf }: LeaseHost,
  { policy, key }: OfKey,
  { id, link, graceMs }: Pick<ReleaseCall, "id" | "link" | "graceMs">,
): Omit<Required<Attached>, "answer"> {
  const release = (ending: Omit<ReleaseCall, "policy" | "key" | "id">) =>
    anywhere.releaseCall({ policy, key, id, ...ending });
  const grace = graceMs === undefined ? {} : { graceMs, protocol: LINK_PROTOCOL };
  // The disposal of a handle reports no failure: then the lease expires.
  const unheard = (error: unknown) => console.warn(`a lease was not released: ${String(error)}`);
  return {
    slot: new LeaseHandle(() => void release({ link, ...grace }).catch(unheard)),
    release: async (report) => {
      const parsed = read(REPORT, report, "a release takes outcome and durationMs alone");
      const answer = JSON.parse(await release(parsed)) as Released | Missing;
      if ("missing" in answer) throw leaseNotFound();
    },
    renew: async (call) => {
      const { maxTtlMs = 0 } = policyOf(policy, key)?.lease ?? {};
      const schema = table({ ttlMs: v.optional(integer(1, maxTtlMs, ", the policy's maxTtl")) });
      const { ttlMs } = read(schema, call, "a renewal takes ttlMs alone");
      const lease = await renewed(anywhere, { policy, key }, id, ttlMs);
      if ("missing" in lease) throw leaseNotFound();
      return { ...lease, id: claimId("lease", { policy, key }, id) };
    },
  };
}

const REPORT = table({
  outcome: v.optional(oneOf(OUTCOMES)),
  durationMs: v.optional(number(0, MAX_DURATION_MS)),
});

/** The optional argument of a holder. @throws LimiterError with the field, the value and the allowed ones */
function read<Schema extends v.GenericSchema>(
  schema: Schema,
  argument: unknown,
  takes: string,
): v.InferOutput<Schema> {
  const parsed = v.safeParse(schema, argument ?? {});
  if (parsed.success) return parsed.output;
  const errors = violationsOf(parsed.issues.slice(0, MAX_ERRORS)).map(({ path, detail }) => ({
    pointer: pointerTo(path),
    detail,
  }));
  throw new Problem(PROBLEMS.notAllowed, takes, { errors }).toError();
}

/** A holder may pass anything: the error lists at most this many problems. */
const MAX_ERRORS = 20;

/** With the properties of the service binding's errors. */
function leaseNotFound(): Error {
  const error = new Error("There is no such lease, or no longer");
  return Object.assign(error, { name: "LimiterError", status: 404, code: "lease-not-found" });
}

/** Leases units without waiting, or takes over a lease whose link may be broken. A link has its call's id. */
export async function acquireAttached(host: LeaseHost, call: AcquireCall): Promise<Attached> {
  const { resume, graceMs, id } = call;
  const answer =
    unsupportedOf(call) ??
    (resume === undefined
      ? await acquired(host, call)
      : await takenOver(host.ask, call, { id: resume, link: id }));
  const text = JSON.stringify(answer);
  const lease = "lease" in answer ? answer.lease : undefined;
  if (lease === undefined) return { answer: text };
  // Without a grace the same call may have an earlier answer: then both answers have one link.
  const isAnew = resume !== undefined || graceMs !== undefined || lease.id === id;
  const link = isAnew ? id : await linkNow(host, call, lease.id);
  return { answer: text, ...leaseHandle(host, call, { id: lease.id, link, graceMs }) };
}

/** Leases units. A repeated call with a grace may have lost the earlier answer's link. */
async function acquired(host: LeaseHost, { policy, key, ...call }: AcquireCall): Promise<Answer> {
  const asked = { ...call, waitMs: 0 };
  const answer = await host.ask(policy, key, (operations, keyState, nowMs) =>
    operations.acquire(keyState, asked, nowMs),
  );
  const lease = "lease" in answer ? answer.lease : undefined;
  if (lease === undefined || lease.id === call.id || call.graceMs === undefined) return answer;
  const taken = await takenOver(host.ask, { policy, key }, { id: lease.id, link: call.id });
  return "missing" in taken ? taken : { ...answer, ...(taken.lease && { lease: taken.lease }) };
}

async function linkNow({ ask }: LeaseHost, { policy, key }: OfKey, id: string): Promise<string> {
  return await ask(policy, key, (_, keyState) => {
    const claim = claimIn(keyState, "lease", id);
    return claim === undefined ? id : leaseLink(claim);
  });
}

export async function confirmLease(host: LeaseHost, call: ConfirmCall): Promise<Attached> {
  const { policy, key, id, ttlMs, isAttached } = call;
  const lease = await host.ask(policy, key, (operations, keyState, nowMs) =>
    operations.renew(keyState, { id, ttlMs }, nowMs),
  );
  const answer = JSON.stringify(lease);
  if (!isAttached || "missing" in lease) return { answer };
  return { answer, ...leaseHandle(host, call, { id, link: await linkNow(host, call, id) }) };
}
