// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";
/**
 * The built bundle with its object calls and written rows counted, for a run that is not timed. The real class runs on
 * the real storage, and wrapped methods count. In one workerd process the worker and all its objects share an isolate,
 * so plain variables can count.
 */
import { rowsWritten, countRows } from "./rows-written.ts";

let objectCalls = 0;

export class LimiterObject extends weir.LimiterObject {
  constructor(ctx: DurableObjectState, env: unknown) {
    countRows(ctx.storage);
    super(ctx, env);
  }

  limit(...args: readonly unknown[]): unknown {
    objectCalls += 1;
    return super.limit(...args);
  }

  reserve(...args: readonly unknown[]): unknown {
    objectCalls += 1;
    return super.reserve(...args);
  }

  giveBack(...args: readonly unknown[]): unknown {
    objectCalls += 1;
    return super.giveBack(...args);
  }

  release(...args: readonly unknown[]): unknown {
    objectCalls += 1;
    return super.release(...args);
  }

  fetch(...args: readonly unknown[]): unknown {
    objectCalls += 1;
    return super.fetch(...args);
  }
}

export const Limiter = weir.Limiter;

export default {
  fetch(request: Request, env: unknown, ctx: ExecutionContext): Response | Promise<Response> {
    if (new URL(request.url).pathname === "/counts")
      return Response.json({ objectCalls, rowsWritten: rowsWritten() });
    return weir.default.fetch(request, env, ctx);
  },
};
