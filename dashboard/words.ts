import type { Override, PolicyDescription, RuleDescription } from "./answers.ts";

const INTEGER = new Intl.NumberFormat("en");
const TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function count(value: number): string {
  return INTEGER.format(value);
}

/** A rate per second: small ones with decimals. */
export function perSecond(value: number): string {
  return value >= 10 || value === 0 ? count(Math.round(value)) : value.toFixed(1);
}

export function percent(part: number): string {
  return `${Math.round(part * 100)} %`;
}

const SPANS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
  ["s", 1_000],
] as const;

/** A duration in its largest fitting unit. */
export function duration(ms: number): string {
  const [unit, size] = SPANS.find(([, each]) => ms >= each) ?? ["ms", 1];
  const value = ms / size;
  return `${value >= 10 || Number.isInteger(value) ? count(Math.round(value)) : value.toFixed(1)} ${unit}`;
}

/** When a denied call is admitted, if no other comes. */
export function retryAfter(decision: {
  readonly success: boolean;
  readonly retryAfterMs?: number | null;
}): string {
  if (decision.success) return "now";
  return typeof decision.retryAfterMs === "number" ? duration(decision.retryAfterMs) : "never";
}

const WIRE_SPANS = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
] as const;

/** A duration as `wrangler.toml` has it: exact, such as `90s`. */
export function wireDuration(ms: number): string {
  const [unit, size] = WIRE_SPANS.find(([, each]) => ms >= each && ms % each === 0) ?? ["ms", 1];
  return `${ms / size}${unit}`;
}

/** An instant in local time: of a text, or in milliseconds. */
export function instant(at: string | number): string {
  const atMs = typeof at === "number" ? at : Date.parse(at);
  return Number.isNaN(atMs) ? String(at) : TIME.format(atMs);
}

/** When an override, a policy or a token that was changed has an effect. */
export const SOON = "In force everywhere within 10 s.";

const ONE: Readonly<Record<number, string>> = {
  1_000: "second",
  60_000: "minute",
  3_600_000: "hour",
  86_400_000: "day",
};

/** A rule in one line: `token-bucket: 100 per second, up to 500 at once`. */
export function ruleLine(rule: RuleDescription): string {
  const { algorithm, limit, windowMs, burst } = rule;
  const values = [
    typeof limit === "number" ? count(limit) : "",
    typeof windowMs === "number" ? ` per ${ONE[windowMs] ?? duration(windowMs)}` : "",
    typeof burst === "number" && burst !== limit ? `, up to ${count(burst)} at once` : "",
  ].join("");
  return values === "" ? algorithm : `${algorithm}: ${values}`;
}

/** What a policy limits, in one line. */
export function policyLine({ rules, shadow }: PolicyDescription): string {
  return rules.map(ruleLine).join("; ") + (shadow ? " (shadow: denies no call)" : "");
}

const BESIDE: ReadonlySet<string> = new Set([
  "policy",
  "pattern",
  "version",
  "startsAt",
  "expiresAt",
  "note",
]);

export function overrideFields(override: Override): Record<string, unknown> {
  const beside = new Set(["policy", "pattern", "version"]);
  return Object.fromEntries(Object.entries(override).filter(([field]) => !beside.has(field)));
}

export function overrideLine(override: Override): string {
  if (override.blocked === true) return "blocked";
  if (override.unlimited === true) return "unlimited";
  if (override.multiply !== undefined) return `all limits × ${override.multiply}`;
  const { rules, ...fields } = override;
  const line = (table: object) =>
    Object.entries(table)
      .filter(([field]) => !BESIDE.has(field))
      .map(([field, value]) => `${field} ${typeof value === "number" ? count(value) : String(value)}`)
      .join(", ");
  const byRule = Object.entries((rules ?? {}) as Readonly<Record<string, object>>);
  return [line(fields), ...byRule.map(([rule, table]) => `${rule}: ${line(table)}`)]
    .filter((each) => each !== "")
    .join("; ");
}

/** How long it takes until an override begins; 0: it has. */
export function startsInMs({ startsAt = "" }: Override, nowMs: number): number {
  return Math.max(0, (Date.parse(startsAt) || 0) - nowMs);
}

/** An override in one line, also when it starts if it has not begun. */
export function scheduledLine(override: Override, nowMs: number): string {
  const inMs = startsInMs(override, nowMs);
  return `${overrideLine(override)}${inMs === 0 ? "" : `, starts in ${duration(inMs)}`}`;
}
