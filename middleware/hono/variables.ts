import type { Context, Env } from "hono";
import { SYSTEM_TIME } from "../../core/clock.ts";
import { RequestLimits, type Decisions } from "../request-limits.ts";

/** What middleware of limits leaves in the context: `c.var.limits.<policy>` is what was decided under a policy. */
export interface LimitVariables {
  readonly limits: Decisions;
}

/** An application's `Env` with these variables. */
export type Limited<E extends Env> = E & { Variables: LimitVariables };

/** The background of a request, where there is one: asking for it throws in Node. */
export function contextOf(c: Context): unknown {
  try {
    return c.executionCtx;
  } catch {
    return undefined;
  }
}

/** Sets the headers of the decision that binds. An answer that switches protocols cannot be written anew. */
export function setLimitHeaders(c: Context, time = SYSTEM_TIME): void {
  if (c.res.status === 101) return;
  const limits = RequestLimits.of(c);
  const nowMs = () => time.nowMs();
  try {
    // `c.header` would make a new answer for each header, which takes longer than all the rest.
    limits.setHeaders(c.res.headers, nowMs);
  } catch {
    // An answer of `fetch` cannot be changed.
    limits.setHeaders({ set: (name, value) => c.header(name, value) }, nowMs);
  }
}
