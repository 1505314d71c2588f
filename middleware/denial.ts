/** The answer to a request that was denied. */
import { SYSTEM_TIME } from "../core/clock.ts";
import { allDeniedBody, busyBody, deniedBody, type DeniedBody } from "../core/protocol/denied-body.ts";
import type { Outcome } from "./decide.ts";
import type { RequestLimits } from "./request-limits.ts";

/** A problem document, with its status and its headers. */
export interface Denial {
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

/** The answer that the limiter itself would give. */
export function denialOf({ decisions }: Outcome, limits: RequestLimits, time = SYSTEM_TIME): Denial {
  const [only] = decisions;
  const isOne = only !== undefined && decisions.length === 1;
  return documentOf(isOne ? deniedBody(only) : allDeniedBody(decisions), limits, time);
}

/** The answer when all slots are taken: the server is busy, whoever asks. */
export function busyOf({ decisions }: Outcome, limits: RequestLimits, time = SYSTEM_TIME): Denial {
  const [only] = decisions;
  if (only === undefined) throw new RangeError("nothing was decided");
  return documentOf(busyBody(only), limits, time);
}

/** The denial as a `Response`. */
export function responseOf({ status, headers, body }: Denial): Response {
  return new Response(body, { status, headers: [...headers] });
}

function documentOf(body: DeniedBody, limits: RequestLimits, time = SYSTEM_TIME): Denial {
  const headers = new Map([
    ["content-type", "application/problem+json"],
    ["cache-control", "no-store"],
  ]);
  limits.setHeaders(headers, () => time.nowMs());
  return { status: body.status, headers, body: JSON.stringify(body) };
}
