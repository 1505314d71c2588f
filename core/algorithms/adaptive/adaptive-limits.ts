/**
 * How many calls an upstream can take at once, learned from ended calls: the limit rules of Netflix's
 * concurrency-limits (https://github.com/Netflix/concurrency-limits: AIMDLimit, VegasLimit, Gradient2Limit), with its
 * defaults. Each rule computes the next estimate from an estimate and one ended call. Pure, and in real numbers.
 *
 * Three things differ. Vegas there probes after a random number of calls; here it follows a fixed sequence
 * (`probeAfter`). All rules keep to a floor. Calls in flight are counted when a call ends, including itself; there
 * when it begins.
 */

export interface Sample {
  readonly durationMs: number;
  readonly inFlight: number;
  readonly isDropped: boolean;
}

/** What a rule has learned. Stored: never rename a field. */
export interface Estimate {
  readonly limit: number;
  /** Vegas: the duration of a call without a queue; absent: no call has ended yet. */
  readonly noLoadMs?: number;
  /** Vegas: calls since the last probe, which measures that duration again, and the number of probes. */
  readonly sinceProbe?: number;
  readonly probes?: number;
  /** Gradient2: the long average duration, and how many calls it began with (10 at most). */
  readonly longMs?: number;
  readonly warmUp?: number;
}

export interface Bounds {
  readonly floor: number;
  readonly ceiling: number;
}

/** Additive increase, multiplicative decrease. */
interface AimdTerms {
  readonly adapt: "aimd";
  readonly backoffRatio: number;
  /** A longer call counts as dropped. */
  readonly timeoutMs: number;
}

/** After TCP Vegas. */
interface VegasTerms {
  readonly adapt: "vegas";
  /** Below `alpha` calls in the upstream's queue the limit rises, above `beta` it falls. Default: see `logOf`. */
  readonly alpha?: number;
  readonly beta?: number;
  readonly smoothing: number;
  readonly probeMultiplier: number;
}

/** By the slope of the durations. */
interface Gradient2Terms {
  readonly adapt: "gradient2";
  /** The factor by which durations may rise before the limit falls. */
  readonly rttTolerance: number;
  readonly smoothing: number;
  readonly longWindow: number;
  /** The growth of the limit while durations stay low. */
  readonly queueSize: number;
}

export type LimitTerms = AimdTerms | VegasTerms | Gradient2Terms;

export function nextEstimate(
  terms: LimitTerms,
  bounds: Bounds,
  estimate: Estimate,
  sample: Sample,
): Estimate {
  const next =
    terms.adapt === "aimd"
      ? aimd(terms, estimate, sample)
      : terms.adapt === "vegas"
        ? vegas(terms, bounds, estimate, sample)
        : gradient2(terms, bounds, estimate, sample);
  return next.limit === estimate.limit ? next : { ...next, limit: within(bounds, next.limit) };
}

export function within({ floor, ceiling }: Bounds, limit: number): number {
  return Math.max(floor, Math.min(ceiling, limit));
}

/** A drop multiplies the limit by `backoffRatio`. Any other call adds 1, if half of the limit is in use. */
function aimd({ backoffRatio, timeoutMs }: AimdTerms, estimate: Estimate, sample: Sample): Estimate {
  const { limit } = estimate;
  if (sample.isDropped || sample.durationMs > timeoutMs)
    return { ...estimate, limit: Math.trunc(limit * backoffRatio) };
  return sample.inFlight * 2 >= limit ? { ...estimate, limit: limit + 1 } : estimate;
}

/** Of `limit` calls, `limit * (1 - noLoad / duration)` wait in the upstream's queue: `alpha` to `beta` should. */
function vegas(terms: VegasTerms, bounds: Bounds, estimate: Estimate, sample: Sample): Estimate {
  const { limit, noLoadMs, probes = 0 } = estimate;
  const { durationMs, inFlight, isDropped } = sample;
  const sinceProbe = (estimate.sinceProbe ?? 0) + 1;
  if (sinceProbe >= probeAfter(probes) * terms.probeMultiplier * limit)
    return { ...estimate, noLoadMs: durationMs, sinceProbe: 0, probes: probes + 1 };
  const counted = { ...estimate, sinceProbe };
  if (noLoadMs === undefined || durationMs < noLoadMs) return { ...counted, noLoadMs: durationMs };
  const step = logOf(limit);
  const smoothed = (to: number) => ({
    ...counted,
    limit: (1 - terms.smoothing) * limit + terms.smoothing * within(bounds, to),
  });
  if (isDropped) return smoothed(limit - step);
  // With few calls in flight, nothing shows that more would fit.
  if (inFlight * 2 < limit) return counted;
  const { alpha = 3 * step, beta = 6 * step } = terms;
  const queued = Math.ceil(limit * (1 - noLoadMs / durationMs));
  if (queued <= step) return smoothed(limit + beta);
  if (queued < alpha) return smoothed(limit + step);
  return queued > beta ? smoothed(limit - step) : counted;
}

/** One step: the decimal logarithm of a limit, rounded down, at least 1. Defaults: alpha 3 steps, beta 6. */
function logOf(limit: number): number {
  return Math.max(1, Math.trunc(Math.log10(Math.trunc(limit))));
}

const GOLDEN = (Math.sqrt(5) - 1) / 2;

/**
 * The part of `probeMultiplier * limit` calls before the next probe: 0.5 to 1, without a rhythm, by the golden ratio.
 * A probe replaces the duration without a queue, which otherwise would only fall.
 */
function probeAfter(probes: number): number {
  return 0.5 + (((probes + 1) * GOLDEN) % 1) / 2;
}

/** How many calls are averaged with equal weight at first. */
const WARM_UP = 10;

/** Multiplies the limit by the long average over the present duration, from 0.5 to 1, and adds `queueSize`. */
function gradient2(terms: Gradient2Terms, bounds: Bounds, estimate: Estimate, sample: Sample): Estimate {
  const { rttTolerance, smoothing, longWindow, queueSize } = terms;
  const { limit, longMs = 0, warmUp = 0 } = estimate;
  const { durationMs, inFlight } = sample;
  const weight = warmUp < WARM_UP ? 1 / (warmUp + 1) : 2 / (longWindow + 1);
  const averageMs = longMs * (1 - weight) + durationMs * weight;
  const learned = {
    ...estimate,
    // After long overload the average is too high, so it falls faster.
    longMs: averageMs / durationMs > 2 && warmUp + 1 >= WARM_UP ? averageMs * 0.95 : averageMs,
    warmUp: Math.min(WARM_UP, warmUp + 1),
  };
  if (inFlight < limit / 2) return learned;
  const gradient = Math.max(0.5, Math.min(1, (rttTolerance * averageMs) / durationMs));
  const wanted = limit * gradient + queueSize;
  return { ...learned, limit: within(bounds, limit * (1 - smoothing) + wanted * smoothing) };
}
