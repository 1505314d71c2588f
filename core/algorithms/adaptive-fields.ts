/** The fields by which a policy sets a limit rule. Each one's default is that of Netflix's concurrency-limits. */
import type { LimitTerms } from "./adaptive-limits.ts";
import type { ConfigProblem, Fields, FieldKind } from "./fields.ts";

/** The limit rules. The first one is the default. */
const RULES = ["gradient2", "vegas", "aimd"] as const;

/** The fields of the limit rules, and which rules each belongs to. */
const FIELDS = {
  backoffRatio: { kind: "ratio?", of: ["aimd"] },
  timeout: { kind: "duration?", of: ["aimd"] },
  alpha: { kind: "units?", of: ["vegas"] },
  beta: { kind: "units?", of: ["vegas"] },
  probeMultiplier: { kind: "units?", of: ["vegas"] },
  smoothing: { kind: "ratio?", of: ["vegas", "gradient2"] },
  rttTolerance: { kind: "ratio?", of: ["gradient2"] },
  longWindow: { kind: "units?", of: ["gradient2"] },
  queueSize: { kind: "units?", of: ["gradient2"] },
} as const satisfies Record<string, { kind: FieldKind; of: readonly (typeof RULES)[number][] }>;

/** The kinds of these fields, and of the one that names the rule. */
export const ADAPT_FIELDS: Readonly<Record<string, FieldKind>> = {
  adapt: RULES,
  ...Object.fromEntries(Object.entries(FIELDS).map(([field, { kind }]) => [field, kind])),
};

const DEFAULT_BACKOFF_RATIO = 0.9;
const DEFAULT_TIMEOUT_MS = 5_000;
const DEFAULT_PROBE_MULTIPLIER = 30;
const DEFAULT_VEGAS_SMOOTHING = 1;
const DEFAULT_GRADIENT_SMOOTHING = 0.2;
const DEFAULT_RTT_TOLERANCE = 1.5;
const DEFAULT_LONG_WINDOW = 600;
const DEFAULT_QUEUE_SIZE = 4;

/** Reads the fields of the rule that `adapt` names. A field of another rule is a mistake, and is refused. */
export function limitTerms(fields: Fields): LimitTerms | ConfigProblem {
  const adapt = (fields["adapt"] ?? RULES[0]) as (typeof RULES)[number];
  for (const [field, { of }] of Object.entries(FIELDS))
    if (fields[field] !== undefined && !of.some((each) => each === adapt))
      return problem(field, `left out with adapt = "${adapt}": it is of ${of.join(" and ")}`);
  const number = (field: string, otherwise: number) => Number(fields[field] ?? otherwise);
  if (number("smoothing", 1) > 1) return problem("smoothing", "a number above 0 and at most 1");
  if (adapt === "aimd") {
    const backoffRatio = number("backoffRatio", DEFAULT_BACKOFF_RATIO);
    if (backoffRatio < 0.5 || backoffRatio >= 1) return problem("backoffRatio", "from 0.5 to below 1");
    return { adapt, backoffRatio, timeoutMs: number("timeout", DEFAULT_TIMEOUT_MS) };
  }
  if (adapt === "vegas") {
    const { alpha, beta } = fields;
    if ((alpha === undefined) !== (beta === undefined))
      return alpha === undefined ? problem("alpha", "given with beta") : problem("beta", "given with alpha");
    if (Number(alpha) > Number(beta)) return problem("beta", `at least alpha, which is ${String(alpha)}`);
    return {
      adapt,
      ...(alpha !== undefined && { alpha: Number(alpha), beta: Number(beta) }),
      smoothing: number("smoothing", DEFAULT_VEGAS_SMOOTHING),
      probeMultiplier: number("probeMultiplier", DEFAULT_PROBE_MULTIPLIER),
    };
  }
  const rttTolerance = number("rttTolerance", DEFAULT_RTT_TOLERANCE);
  if (rttTolerance < 1) return problem("rttTolerance", "at least 1");
  return {
    adapt,
    rttTolerance,
    smoothing: number("smoothing", DEFAULT_GRADIENT_SMOOTHING),
    longWindow: number("longWindow", DEFAULT_LONG_WINDOW),
    queueSize: number("queueSize", DEFAULT_QUEUE_SIZE),
  };
}

function problem(field: string, allowed: string): ConfigProblem {
  return { problem: { field, allowed } };
}
