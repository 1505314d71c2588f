import {
  type Algorithm,
  type ConfigProblem,
  configProblem,
  type FieldKind,
  type Fields,
  type Leasing,
} from "../algorithm.ts";
import { concurrency, type ConcurrencyConfig, type ConcurrencyState } from "../concurrency.ts";
import { constantForecast } from "../forecast.ts";
import { type Bounds, type Estimate, type LimitTerms, nextEstimate, within } from "./adaptive-limits.ts";

/** The rules that move the limit; the first is the default. */
const RULES = ["gradient2", "vegas", "aimd"] as const;

/** The fields of each rule. */
const FIELDS = {
  backoffRatio: { kind: "ratio?", of: ["aimd"] },
  timeout: { kind: "duration?", of: ["aimd"] },
  alpha: { kind: "integer?", of: ["vegas"] },
  beta: { kind: "integer?", of: ["vegas"] },
  probeMultiplier: { kind: "integer?", of: ["vegas"] },
  smoothing: { kind: "ratio?", of: ["vegas", "gradient2"] },
  rttTolerance: { kind: "ratio?", of: ["gradient2"] },
  longWindow: { kind: "integer?", of: ["gradient2"] },
  queueSize: { kind: "integer?", of: ["gradient2"] },
} as const satisfies Record<string, { kind: FieldKind; of: readonly (typeof RULES)[number][] }>;

/**
 * Parses the fields of the rule that `adapt` names, with the defaults of Netflix's concurrency-limits. Fields of other
 * rules are rejected.
 */
function limitTerms(fields: Fields): LimitTerms | ConfigProblem {
  const adapt = (fields["adapt"] ?? RULES[0]) as (typeof RULES)[number];
  for (const [field, { of }] of Object.entries(FIELDS))
    if (fields[field] !== undefined && !of.some((each) => each === adapt))
      return configProblem(field, `left out with adapt = "${adapt}": it is for ${of.join(" and ")}`);
  const number = (field: string, otherwise: number) => Number(fields[field] ?? otherwise);
  if (number("smoothing", 1) > 1) return configProblem("smoothing", "a number above 0 and at most 1");
  if (adapt === "aimd") {
    const backoffRatio = number("backoffRatio", 0.9);
    if (backoffRatio < 0.5 || backoffRatio >= 1) return configProblem("backoffRatio", "from 0.5 to below 1");
    return { adapt, backoffRatio, timeoutMs: number("timeout", 5_000) };
  }
  if (adapt === "vegas") {
    const { alpha, beta } = fields;
    if (alpha === undefined && beta !== undefined) return configProblem("alpha", "given with beta");
    if (alpha !== undefined && beta === undefined) return configProblem("beta", "given with alpha");
    if (Number(alpha) > Number(beta))
      return configProblem("beta", `at least alpha, which is ${String(alpha)}`);
    return {
      adapt,
      ...(alpha !== undefined && { alpha: Number(alpha), beta: Number(beta) }),
      smoothing: number("smoothing", 1),
      probeMultiplier: number("probeMultiplier", 30),
    };
  }
  const rttTolerance = number("rttTolerance", 1.5);
  if (rttTolerance < 1) return configProblem("rttTolerance", "at least 1");
  return {
    adapt,
    rttTolerance,
    smoothing: number("smoothing", 0.2),
    longWindow: number("longWindow", 600),
    queueSize: number("queueSize", 4),
  };
}

/**
 * Adaptive concurrency: at most as many units held at once as the upstream can take now. It is `concurrency` with a
 * limit that moves between `floor` and `limit`. The release of a lease reports how the call ended and how long it
 * took, and a rule computes the next limit (adaptive-limits.ts: AIMD, Vegas and Gradient2 of Netflix's
 * concurrency-limits). A cost passes when
 *
 *     cost + outstanding  <=  the current limit, rounded down
 *
 * When the limit falls, leases stay: nothing is admitted until enough of them have ended.
 *
 * Example: AIMD at 10, and 10 leased. One is released as dropped: the limit is 9, all of it is leased, and the next
 * waits. One more is released, as ok: 8 are leased, and the limit is 10 again, since more than half of it is in use.
 *
 * What was learned is forgotten `forgetAfter` after the last report: then the limit is `initial` again. That instant
 * is part of every wait. An expired lease reports nothing: its holder was lost, whatever the state of the upstream.
 *
 * The bound: at each grant the current limit, and never more than `limit`. The worst boundary: a limit that has just
 * fallen, with more leases than it allows. What it is bad at: costs of several units above `floor`. If the limit falls
 * below such a cost, no report raises it until it is forgotten. Pools have no such rule: regions decide from their own
 * slots, and no region sees everything in flight.
 */
export type AdaptiveConfig = Adaptive & LimitTerms;

interface Adaptive extends ConcurrencyConfig {
  readonly floor: number;
  readonly initial: number;
  readonly forgetAfterMs: number;
}

export interface AdaptiveState extends ConcurrencyState {
  /** Absent: no report has come. */
  readonly learned?: Learned;
}

interface Learned extends Estimate {
  readonly by: string;
  readonly atMs: number;
  readonly samples: number;
}

const DEFAULT_INITIAL = 20;
const DEFAULT_FORGET_AFTER_MS = 600_000;
/** A microsecond, for a call that took no time: the rules divide by durations. */
const MIN_DURATION_MS = 0.001;

type Config = AdaptiveConfig;
type State = AdaptiveState;
const { leasing, ...slots } = concurrency as unknown as Algorithm<Config, State> & {
  leasing: Leasing<Config, State>;
};

export const adaptiveConcurrency: Algorithm<Config, State> = {
  ...slots,
  name: "adaptive-concurrency",
  isPoolable: undefined,
  fields: {
    ...concurrency.fields,
    floor: "units?",
    initial: "units?",
    forgetAfter: "duration?",
    adapt: RULES,
    ...Object.fromEntries(Object.entries(FIELDS).map(([field, { kind }]) => [field, kind])),
  },
  leasing: {
    ...leasing,
    // A holder of slots knows neither the limit nor the reports.
    isRelaxed: () => false,
    released(config, state, nowMs, { outcome, durationMs, inFlight }) {
      // Without a state no lease was granted since the key was forgotten or reset.
      if (outcome === "ignore" || state === undefined) return state;
      const before = learnedAt(config, state, nowMs);
      const sample = {
        durationMs: Math.max(MIN_DURATION_MS, durationMs),
        inFlight,
        isDropped: outcome === "dropped",
      };
      // Of another rule's estimate only the limit is used.
      const limit = within(boundsOf(config), before?.limit ?? config.initial);
      const estimate = before?.by === config.adapt ? { ...before, limit } : { limit };
      const next = nextEstimate(config, boundsOf(config), estimate, sample);
      const samples = (before?.samples ?? 0) + 1;
      const atMs = Math.max(nowMs, before?.atMs ?? 0);
      return { ...state, learned: { ...next, by: config.adapt, atMs, samples } };
    },
  },

  configure(fields) {
    const plain = concurrency.configure(fields);
    if ("problem" in plain) return plain;
    const terms = limitTerms(fields);
    if ("problem" in terms) return terms;
    const { limit } = plain;
    const floor = Number(fields["floor"] ?? 1);
    const initial = Number(fields["initial"] ?? within({ floor, ceiling: limit }, DEFAULT_INITIAL));
    if (floor > limit) return configProblem("floor", `at most the limit, which is ${limit}`);
    if (initial < floor || initial > limit)
      return configProblem("initial", `from the floor of ${floor} to the limit of ${limit}`);
    const forgetAfterMs = Number(fields["forgetAfter"] ?? DEFAULT_FORGET_AFTER_MS);
    return { ...plain, floor, initial, forgetAfterMs, ...terms };
  },

  limitNow,

  scale(config, part) {
    const limit = Math.floor(config.limit * part);
    const scaled = (units: number) => Math.max(1, Math.floor(units * part));
    if (limit < 1) return undefined;
    return { ...config, limit, floor: scaled(config.floor), initial: scaled(config.initial) };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const limit = limitNow(config, state, nowMs);
    const decision = concurrency.decide({ ...config, limit }, state, nowMs, cost, outstanding);
    if (!decision.allowed) {
      // While no lease ends, the limit changes only when what was learned is forgotten.
      const forgottenAtMs = adaptiveConcurrency.untouchedAtMs(config, state);
      const willFit = cost <= limit || (forgottenAtMs > nowMs && cost <= config.initial);
      const retryAfterMs = willFit && cost > limit ? forgottenAtMs - nowMs : null;
      return { ...decision, reason: willFit ? "quota" : "cost-over-limit", retryAfterMs };
    }
    const { learned } = state ?? {};
    if (cost === 0 || learned === undefined || decision.state === undefined) return decision;
    return { ...decision, state: { ...decision.state, learned } };
  },

  untouchedAtMs: ({ forgetAfterMs }, state) =>
    state?.learned === undefined ? -Infinity : state.learned.atMs + forgetAfterMs,

  forecast: (config, state) =>
    constantForecast((atMs, cost, outstanding) => {
      if (cost === 0 || cost + outstanding <= limitNow(config, state, atMs)) return atMs;
      const forgottenAtMs = adaptiveConcurrency.untouchedAtMs(config, state);
      const fitsThen = forgottenAtMs > atMs && cost + outstanding <= config.initial;
      return fitsThen ? forgottenAtMs : Infinity;
    }, false),

  // Every report is written, so a crash forgets none.
  covers(config, stored, ahead, state, outstanding, nowMs) {
    const { learned } = (stored ?? {}) as Partial<AdaptiveState>;
    const isLearned = learned?.samples === state?.learned?.samples && learned?.atMs === state?.learned?.atMs;
    return isLearned && concurrency.covers(config, stored, ahead, state, outstanding, nowMs);
  },
};

function boundsOf({ floor, limit }: Config): Bounds {
  return { floor, ceiling: limit };
}

/** `undefined`: no reports, or they are forgotten. */
function learnedAt(config: Config, state: State | undefined, nowMs: number): Learned | undefined {
  return nowMs < adaptiveConcurrency.untouchedAtMs(config, state) ? state?.learned : undefined;
}

function limitNow(config: Config, state: State | undefined, nowMs: number): number {
  const { limit } = learnedAt(config, state, nowMs) ?? { limit: config.initial };
  return Math.floor(within(boundsOf(config), limit));
}
