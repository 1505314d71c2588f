import type { DurableObject } from "cloudflare:workers";
/**
 * The built bundle with all counted that Cloudflare bills, for a run that is not timed. The real class runs on the real
 * storage, and wrapped methods count. In one workerd process the worker and all its objects share an isolate, so plain
 * variables can count, and all of them have a clock that can be put on. An object that has had nothing to do for 10 s of
 * that clock leaves memory.
 */
// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";
import {
  logLines,
  pendingTimers,
  runLongTimers,
  TimeInMemory,
  watchLogs,
  watchTimers,
  whileInObject,
} from "./in-memory.ts";
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

/** What a wrapped object answers beside its own methods. */
interface Counting {
  /** When the object's alarm is due, in milliseconds; `null`: none is set. */
  alarmAtMs(): Promise<number | null>;
  /** Leaves memory, as the runtime lets an object do that has nothing to do. */
  leaveMemory(): Promise<void>;
  /** The alarm comes now. */
  runAlarm(): Promise<void>;
}

/** What a wrapped method needs of its object. */
interface Inner {
  readonly ctx: DurableObjectState;
}

type Env = Readonly<Record<string, { getByName(name: string): Counting }>>;

let objectCalls = 0;
/** The bindings and names of all objects that were ever started, as one text. */
const names = new Set<string>();
/** Is no request: the process is about to end. */
const UNCOUNTED = ["constructor", "rest"];
const time = new TimeInMemory();
watchTimers();
watchLogs();

type Real = new (
  ctx: DurableObjectState,
  env: Cloudflare.Env,
) => DurableObject & {
  alarm?: () => unknown;
};

/** The class of a binding, with all counted that its objects do. */
function counted(real: Real, binding: string) {
  const nameOf = (ctx: DurableObjectState) => `${binding} ${String(ctx.id.name)}`;
  class Counted extends real {
    constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
      countRows(ctx.storage);
      super(ctx, env);
      const name = nameOf(ctx);
      names.add(name);
      const waitUntil = ctx.waitUntil.bind(ctx);
      // What it waits for after its answer keeps it in memory too.
      ctx.waitUntil = (work: Promise<unknown>) => {
        const sinceMs = readClockMs();
        const ended = () => time.worked(name, Date.now(), readClockMs() - sinceMs);
        waitUntil(work.then(ended, ended));
      };
    }

    async alarmAtMs(): Promise<number | null> {
      return await this.ctx.storage.getAlarm();
    }

    leaveMemory(): void {
      this.ctx.abort("nothing to do");
    }

    async runAlarm(): Promise<void> {
      // As the runtime does when it comes.
      await this.ctx.storage.deleteAlarm();
      await this.alarm?.();
    }
  }
  for (const name of Object.getOwnPropertyNames(real.prototype))
    if (!UNCOUNTED.includes(name)) {
      const method = Reflect.get(real.prototype, name) as (...args: unknown[]) => unknown;
      Reflect.set(Counted.prototype, name, async function call(this: Inner, ...args: unknown[]) {
        objectCalls += 1;
        const { storage } = this.ctx;
        const sinceMs = readClockMs();
        try {
          return await whileInObject(() => method.apply(this, args));
        } finally {
          // The answer leaves when what was written is durable.
          await storage.sync();
          noteReads(storage);
          time.worked(nameOf(this.ctx), Date.now(), readClockMs() - sinceMs);
        }
      });
    }
  return Counted;
}

export const LimiterObject = counted(weir.LimiterObject, "OBJECTS");
export const CatalogObject = counted(weir.CatalogObject, "CATALOG");
export const StatsObject = counted(weir.StatsObject, "STATS");
export const Limiter = weir.Limiter;

const readClockMs = Date.now.bind(Date);
let laterMs = 0;
Date.now = () => readClockMs() + laterMs;

/** Puts the clock on. Alarms, and the isolate's own long timers, come when they are due. */
async function later(ms: number, env: Env): Promise<void> {
  const untilMs = Date.now() + ms;
  const objectOf = (name: string) => {
    const [binding = "", ...rest] = name.split(" ");
    return env[binding]?.getByName(rest.join(" "));
  };
  for (;;) {
    const alarms = await Promise.all(
      Array.from(names, async (name) => ({ name, atMs: (await objectOf(name)?.alarmAtMs()) ?? null })),
    );
    const due = alarms.filter(({ atMs }) => atMs !== null && atMs <= untilMs);
    const nextMs = Math.min(untilMs, ...due.map(({ atMs }) => atMs ?? Infinity));
    const runMs = await runLongTimers(nextMs, (atMs) => (laterMs += Math.max(0, atMs - Date.now())));
    if (runMs !== undefined) continue;
    laterMs += Math.max(0, nextMs - Date.now());
    for (const name of time.leaving(Date.now()))
      await objectOf(name)
        ?.leaveMemory()
        .catch(() => undefined);
    if (due.length === 0) return;
    for (const { name, atMs } of due) if (atMs === nextMs) await objectOf(name)?.runAlarm();
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
