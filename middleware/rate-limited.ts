/** What rate limiting is, whatever carries the request. */
import { SYSTEM_TIME } from "../core/clock.ts";
import { decide, waitItsDelay, type DecideOptions, type DecidingLimiter, type Outcome } from "./decide.ts";
import { denialOf, type Denial } from "./denial.ts";
import { valueOf } from "./given.ts";
import { toldPolicies } from "./header-policies.ts";
import type { InBackground } from "./in-background.ts";
import { foundLimiter } from "./options.ts";
import { refusalOf } from "./refusal.ts";
import { RequestLimits } from "./request-limits.ts";

/** What became of a request: it goes on, or it is denied, or its key is none (`refusal`), and this is the answer. */
export type Verdict =
  | { readonly isSkipped: true }
  | { readonly refusal: Denial }
  | {
      readonly isSkipped: false;
      /** Whether no other middleware has decided on this request before: then this one sets the headers. */
      readonly isOutermost: boolean;
      readonly outcome: Outcome;
      /** Makes the answer to a request that was denied; `undefined`: it goes on. */
      readonly denial: (() => Denial) | undefined;
    };

const SKIPPED: Verdict = { isSkipped: true };

/**
 * Decides on a request, and notes the decision with it. A request that goes on has waited as long as it was told.
 *
 * @param request stands for the request in all of its middleware
 */
export async function rateLimited<Args extends readonly unknown[]>(
  request: object,
  options: DecideOptions<Args>,
  args: Args,
  inBackground: InBackground,
): Promise<Verdict> {
  const { skip, time = SYSTEM_TIME } = options;
  if (skip !== undefined && (await skip(...args))) return SKIPPED;
  const limiter: DecidingLimiter = foundLimiter(await valueOf(options.limiter, args));
  const [decided, policies] = await Promise.all([
    decide(limiter, options, args).catch((error: unknown) => ({ refusal: refusalOf(error) })),
    toldPolicies(limiter, time, inBackground),
  ]);
  if ("refusal" in decided) return decided;
  const outcome: Outcome = decided;
  const limits = RequestLimits.of(request);
  const isOutermost = limits.isFirst;
  limits.note(outcome, policies);
  const denial = outcome.success ? undefined : () => denialOf(outcome, limits, time);
  await waitItsDelay(outcome, time);
  return { isSkipped: false, isOutermost, outcome, denial };
}
