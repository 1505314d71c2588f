// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";
/**
 * The built bundle with its object requests and written rows counted, for a run that is not timed. The real class runs on
 * the real storage, and wrapped methods count. In one workerd process the worker and all its objects share an isolate,
 * so plain variables can count, and all of them have a clock that can be put on.
 */
import type { LimiterObject as Real } from "../durable-objects/limiter-object.ts";
import { countRows, rowsWritten } from "./rows-written.ts";

/** What has been counted. Each call of an object's method is a request, and so is an alarm that comes. */
export interface Counted {
  readonly objectCalls: number;
  readonly rowsWritten: number;
}

interface Env {
  readonly OBJECTS: DurableObjectNamespace<LimiterObject>;
}

let objectCalls = 0;
/** The names of all objects that were ever started. */
const names = new Set<string>();
/** Is no request: the process is about to end. */
const UNCOUNTED = ["constructor", "rest"];

export class LimiterObject extends (weir.LimiterObject as typeof Real) {
  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    countRows(ctx.storage);
    super(ctx, env);
    names.add(String(ctx.id.name));
  }

  /** When the object's alarm is due, in milliseconds; `null`: none is set. */
  async alarmAtMs(): Promise<number | null> {
    return await this.ctx.storage.getAlarm();
  }

  /** The alarm comes now. */
  async runAlarm(): Promise<void> {
    // As the runtime does when it comes.
    await this.ctx.storage.deleteAlarm();
    await this.alarm();
  }
}

for (const name of Object.getOwnPropertyNames(weir.LimiterObject.prototype))
  if (!UNCOUNTED.includes(name)) {
    const method = Reflect.get(weir.LimiterObject.prototype, name) as (...args: unknown[]) => unknown;
    Reflect.set(LimiterObject.prototype, name, function counted(this: unknown, ...args: unknown[]) {
      objectCalls += 1;
      return method.apply(this, args);
    });
  }

export const Limiter = weir.Limiter;

const readClockMs = Date.now.bind(Date);
let laterMs = 0;
Date.now = () => readClockMs() + laterMs;

/** Puts the clock on. Alarms come when they are due. */
async function later(ms: number, { OBJECTS }: Env): Promise<void> {
  const untilMs = Date.now() + ms;
  for (;;) {
    const alarms = await Promise.all(
      Array.from(names, async (name) => ({ name, atMs: await OBJECTS.getByName(name).alarmAtMs() })),
    );
    const due = alarms.filter(({ atMs }) => atMs !== null && atMs <= untilMs);
    const nextMs = Math.min(...due.map(({ atMs }) => atMs ?? Infinity));
    laterMs += Math.max(0, Math.min(nextMs, untilMs) - Date.now());
    if (due.length === 0) return;
    for (const { name, atMs } of due) if (atMs === nextMs) await OBJECTS.getByName(name).runAlarm();
  }
}

export default {
  async fetch(request: Request, env: Env, ctx: ExecutionContext): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/later") await later(Number(searchParams.get("ms")), env);
    if (pathname === "/later" || pathname === "/counts")
      return Response.json({ objectCalls, rowsWritten: rowsWritten() } satisfies Counted);
    return weir.default.fetch(request, env, ctx);
  },
};
