/** What a slot for a request is, whatever carries the request. */
import type { Grant } from "../client/limiter.ts";
import { SYSTEM_TIME } from "../core/clock.ts";
import { busyOf, type Denial } from "./denial.ts";
import type { End } from "./end.ts";
import { valueOf } from "./given.ts";
import { toldPolicies } from "./header-policies.ts";
import type { InBackground } from "./in-background.ts";
import { acquire, keepLease, type LeaseOptions, type LeasingLimiter } from "./leased.ts";
import { foundLimiter } from "./options.ts";
import { refusalOf } from "./refusal.ts";
import { RequestLimits } from "./request-limits.ts";

/** What became of a request: it has a slot until `end` is called, or there was none, and this is the answer. */
export interface Slot {
  /** Absent: the request was skipped. */
  readonly grant?: Grant;
  readonly denial?: Denial;
  /** The answer to a request whose key is none. Nothing was asked of the limiter. */
  readonly refusal?: Denial;
  /** Whether no other middleware has decided on this request before: then this one sets the headers. */
  readonly isOutermost: boolean;
  /** Frees the slot, once, without waiting for it. */
  readonly end: (how: End) => void;
}

const SKIPPED: Slot = { isOutermost: false, end: () => undefined };

/** Takes a slot for a request, and notes the decision with it. */
export async function slotFor<Args extends readonly unknown[]>(
  request: object,
  options: LeaseOptions<Args>,
  args: Args,
  inBackground: InBackground,
): Promise<Slot> {
  const { skip, time = SYSTEM_TIME } = options;
  if (skip !== undefined && (await skip(...args))) return SKIPPED;
  const limiter: LeasingLimiter = foundLimiter(await valueOf(options.limiter, args));
  // The list first: a lease that has been granted must not wait for anything that may fail.
  const policies = await toldPolicies(limiter, time, inBackground);
  const acquired = await acquire(limiter, options, args).catch((error: unknown) => refusalOf(error));
  if ("body" in acquired) return { ...SKIPPED, refusal: acquired };
  const grant: Grant = acquired;
  const limits = RequestLimits.of(request);
  const isOutermost = limits.isFirst;
  const outcome = { success: grant.success, decisions: [grant] };
  limits.note(outcome, policies);
  const release = grant.lease === undefined ? undefined : keepLease(limiter, grant.lease, options);
  const end = (how: End) => {
    if (release !== undefined) inBackground(release(how));
  };
  if (grant.success) return { grant, isOutermost, end };
  return { grant, isOutermost, end, denial: busyOf(outcome, limits, time) };
}
