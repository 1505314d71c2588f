/**
 * The built bundle with all counted that Cloudflare bills, for a run that is not timed. The real class runs on the real
 * storage, and wrapped methods count. In one workerd process the worker and all its objects share an isolate, so plain
 * variables can count, and all of them have a clock that can be put on. An object that has had nothing to do for 10 s of
 * that clock leaves memory.
 */
// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";
import type { LimiterObject as Real } from "../durable-objects/limiter-object.ts";
import { logLines, pendingTimers, TimeInMemory, watchLogs, watchTimers, whileInObject } from "./in-memory.ts";
import { countRows, noteReads, rowsRead, rowsWritten } from "./rows-written.ts";

/** What has been counted. Each call of an object's method is a request, and so is an alarm that comes. */
export interface Counted {
  readonly objectCalls: number;
  readonly rowsWritten: number;
  readonly rowsRead: number;
  /** Milliseconds in which objects worked, or could not leave memory. */
  readonly activeMs: number;
  /** Milliseconds until each left memory, 10 s after it had worked. */
  readonly awakeMs: number;
  readonly logLines: number;
  /** Timers that objects have set and that have not run. */
  readonly pendingTimers: number;
}

interface Env {
  readonly OBJECTS: DurableObjectNamespace<LimiterObject>;
}

/** What a wrapped method needs of its object. */
interface Inner {
  readonly ctx: DurableObjectState;
}

let objectCalls = 0;
/** The names of all objects that were ever started. */
const names = new Set<string>();
/** Is no request: the process is about to end. */
const UNCOUNTED = ["constructor", "rest"];
const time = new TimeInMemory();
watchTimers();
watchLogs();

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

  /** Leaves memory, as the runtime lets an object do that has nothing to do. */
  leaveMemory(): void {
    this.ctx.abort("nothing to do");
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
    Reflect.set(LimiterObject.prototype, name, async function counted(this: Inner, ...args: unknown[]) {
      objectCalls += 1;
      const { storage, id } = this.ctx;
      const sinceMs = readClockMs();
      try {
        return await whileInObject(() => method.apply(this, args));
      } finally {
        // The answer leaves when what was written is durable.
        await storage.sync();
        noteReads(storage);
        time.worked(String(id.name), Date.now(), readClockMs() - sinceMs);
      }
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
    for (const name of time.leaving(Date.now()))
      await OBJECTS.getByName(name)
        .leaveMemory()
        .catch(() => undefined);
    if (due.length === 0) return;
    for (const { name, atMs } of due) if (atMs === nextMs) await OBJECTS.getByName(name).runAlarm();
  }
}

export default {
  async fetch(request: Request, env: Env, ctx: ExecutionContext): Promise<Response> {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === "/later") await later(Number(searchParams.get("ms")), env);
    if (pathname === "/later" || pathname === "/counts")
      return Response.json({
        objectCalls,
        rowsWritten: rowsWritten(),
        rowsRead: rowsRead(),
        ...time.sums,
        logLines: logLines(),
        pendingTimers: pendingTimers(),
      } satisfies Counted);
    return weir.default.fetch(request, env, ctx);
  },
};
