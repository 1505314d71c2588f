/** How long a provider asks to be left alone, by the headers of its answer. */
import { pauseOf } from "../fetch/pauses.ts";

/** The longest pause that Retry-After may ask for, in milliseconds: a wrong value does not stop all requests for a day. */
const MAX_PAUSE_MS = 60_000;
/**
 * The longest pause after "nothing remains", in milliseconds. Reset names the instant at which all is back, and something
 * is back sooner.
 */
const MAX_RESET_MS = 10_000;
/** Overloaded, as Anthropic says it. */
const OVERLOADED = 529;

/** The names of what remains and of when it is whole again, of OpenAI and of Anthropic. */
const REMAINING: readonly { readonly remaining: string; readonly reset: string }[] = [
  ...["requests", "tokens"].map((unit) => ({
    remaining: `x-ratelimit-remaining-${unit}`,
    reset: `x-ratelimit-reset-${unit}`,
  })),
  ...["requests", "tokens", "input-tokens", "output-tokens"].map((unit) => ({
    remaining: `anthropic-ratelimit-${unit}-remaining`,
    reset: `anthropic-ratelimit-${unit}-reset`,
  })),
];

/** The pause after an answer, in milliseconds; 0: none. */
export function providerPauseMs(
  { status, headers }: Pick<Response, "status" | "headers">,
  nowMs: number,
): number {
  const asked = pauseOf({ status: status === OVERLOADED ? 503 : status, headers }, nowMs) ?? 0;
  const serverMs = Date.parse(headers.get("date") ?? "");
  const resets = REMAINING.filter(({ remaining }) => headers.get(remaining)?.trim() === "0").map(
    ({ reset }) => untilResetMs(headers.get(reset)?.trim() ?? "", Number.isNaN(serverMs) ? nowMs : serverMs),
  );
  return Math.max(Math.min(asked, MAX_PAUSE_MS), Math.min(Math.max(0, ...resets), MAX_RESET_MS));
}

const UNITS_MS: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};

/** A duration such as 6m0s or 20ms, a number of seconds, or an instant of RFC 3339. Anything else is no wait. */
function untilResetMs(reset: string, nowMs: number): number {
  if (/^\d+(\.\d+)?$/.test(reset)) return Math.ceil(Number(reset) * 1_000);
  if (/^(\d+(\.\d+)?(ms|[smhd]))+$/.test(reset)) {
    const parts = [...reset.matchAll(/([\d.]+)(ms|[smhd])/g)];
    return Math.ceil(
      parts.reduce((ms, [, count, unit = ""]) => ms + Number(count) * (UNITS_MS[unit] ?? 0), 0),
    );
  }
  const atMs = /^\d{4}-\d\d-\d\dT/.test(reset) ? Date.parse(reset) : Number.NaN;
  return Number.isNaN(atMs) ? 0 : Math.max(0, atMs - nowMs);
}
