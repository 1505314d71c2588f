/** The schemas of requests and answers about what the limiter did. */
import * as v from "valibot";
import { parseDurationMs } from "../../core/policies/durations.ts";
import { parseInstantMs } from "../../core/policies/instants.ts";
import { STEPS, TOP_KINDS, type Step } from "../../core/stats/messages.ts";
import { oneOf, table } from "../../core/validation.ts";
import { figure } from "./answer-schemas.ts";
import { KeyRequest } from "./request-schemas.ts";

const { policy } = KeyRequest.entries;

/** By step: how far back there is a history, as it is written. */
export const MOST_SINCE = { minute: "1d", hour: "30d" } as const satisfies Record<Step, string>;
/** By step: how far back a request looks that does not say. */
export const USUAL_SINCE = { minute: "1h", hour: "1d" } as const satisfies Record<Step, string>;

/** What errors say is allowed. */
export const SINCE_ALLOWED = 'a duration such as "15m" "6h", or an instant such as "2026-11-22T18:00:00Z"';

/** The instant that a request means; `undefined`: it is neither a duration nor an instant. */
export function readSince(text: string, nowMs: number): number | undefined {
  const durationMs = parseDurationMs(text);
  if (durationMs !== undefined) return nowMs - durationMs;
  return parseInstantMs(text);
}

export const HistoryRequest = table({
  policy,
  since: v.optional(
    v.pipe(
      v.string(SINCE_ALLOWED),
      v.check((text) => readSince(text, 0) !== undefined, SINCE_ALLOWED),
      v.description(
        `From when on: ${SINCE_ALLOWED}. ${MOST_SINCE.minute} ago at most by the minute, ${MOST_SINCE.hour} by the ` +
          `hour. Default: ${USUAL_SINCE.minute} by the minute, ${USUAL_SINCE.hour} by the hour.`,
      ),
    ),
  ),
  step: v.optional(oneOf(STEPS), "minute"),
});

export const TopKeysRequest = table({ policy, by: v.optional(oneOf(TOP_KINDS), "denied") });

const instant = (description: string) => v.pipe(v.string(), v.isoTimestamp(), v.description(description));

export const HistoryPoint = v.object({
  at: instant("When the step began."),
  admitted: figure("Decisions that admitted."),
  denied: figure("Decisions that denied."),
  degraded: figure("Those of both that nobody could decide, so that `onFailure` did."),
  reasons: v.pipe(
    v.record(v.string(), figure("How often.")),
    v.description("By reason, how many were denied."),
  ),
});

export const History = v.object({
  policy: v.string(),
  step: v.picklist(STEPS),
  since: instant("From when on."),
  points: v.pipe(v.array(HistoryPoint), v.description("In their order. Steps without traffic are left out.")),
});
export type History = Readonly<v.InferOutput<typeof History>>;

export const TopKey = v.object({
  key: v.string(),
  count: figure("How often it came, or was denied: not more often than this."),
  error: figure("The count may be too high by so much at most."),
});

export const TopKeyList = v.object({
  policy: v.string(),
  by: v.picklist(TOP_KINDS),
  since: instant("From when on: the beginning of the last hour."),
  keys: v.pipe(v.array(TopKey), v.description("The highest counts first, 64 at most.")),
});
export type TopKeyList = Readonly<v.InferOutput<typeof TopKeyList>>;
