/**
 * The built bundle with its object calls and written rows counted, for a run that is not timed. The real class runs on
 * the real storage, and wrapped methods count. In one workerd process the worker and all its objects share an isolate,
 * so plain variables can count.
 */
// @ts-expect-error The built bundle, given to workerd under this name.
import * as weir from "weir.js";

let [objectCalls, rowsWritten] = [0, 0];

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
    if (new URL(request.url).pathname === "/counts") return Response.json({ objectCalls, rowsWritten });
    return weir.default.fetch(request, env, ctx);
  },
};

let isCounting = false;

/** Wraps the runtime's own methods, once: the storage of all objects has one prototype. */
function countRows(storage: DurableObjectStorage): void {
  if (isCounting) return;
  isCounting = true;
  const sql = Object.getPrototypeOf(storage.sql) as SqlStorage;
  const exec = Reflect.get(sql, "exec");
  sql.exec = function countedExec(this: SqlStorage, ...args: Parameters<SqlStorage["exec"]>) {
    const cursor = exec.apply(this, args);
    // When `exec` returns, its write is done. The cursor must not be read here: Weir would find nothing in it.
    rowsWritten += cursor.rowsWritten;
    return cursor;
  } as SqlStorage["exec"];
  const kv = Object.getPrototypeOf(storage.kv) as SyncKvStorage;
  const put = Reflect.get(kv, "put");
  kv.put = function countedPut(this: SyncKvStorage, ...args: Parameters<SyncKvStorage["put"]>) {
    rowsWritten += 1;
    put.apply(this, args);
  };
  const prototype = Object.getPrototypeOf(storage) as DurableObjectStorage;
  const setAlarm = Reflect.get(prototype, "setAlarm");
  prototype.setAlarm = function countedSetAlarm(this: DurableObjectStorage, ...args) {
    rowsWritten += 1;
    return setAlarm.apply(this, args);
  };
}
