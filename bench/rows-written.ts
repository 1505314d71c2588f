/**
 * Counts the rows that objects write and read, as Cloudflare bills them. Written: what a cursor says of each statement, a
 * row for each value that is put into the key-value table or taken out of it, and a row for an alarm that is set. The
 * key-value table and that of the alarm are the runtime's own, and making them costs nothing; nor does `deleteAll`. Read:
 * what a cursor says, and a row for each value that is read.
 */

type Cursor = Pick<SqlStorageCursor<Record<string, SqlStorageValue>>, "rowsRead">;

let rows = 0;
let read = 0;
let isCounting = false;
/** By the storage of an object, its SQL and its key-value table: the rows that each has written. */
const rowsBy = new WeakMap<object, number>();
/** Cursors may be read after `exec` has returned, and only by their own object. */
const cursors = new WeakMap<SqlStorage, Cursor[]>();

/** How many rows were written since `countRows` was called first. */
export function rowsWritten(): number {
  return rows;
}

/** How many of them by the object with this storage, since it is in memory. */
export function rowsWrittenBy(storage: DurableObjectStorage): number {
  return [storage, storage.sql, storage.kv].reduce((sum, part) => sum + (rowsBy.get(part) ?? 0), 0);
}

function note(part: object, count: number): void {
  rows += count;
  rowsBy.set(part, (rowsBy.get(part) ?? 0) + count);
}

/** How many were read, as far as `noteReads` was called. */
export function rowsRead(): number {
  return read;
}

/** A call of an object has ended, so its cursors have counted all. */
export function noteReads({ sql }: DurableObjectStorage): void {
  for (const cursor of cursors.get(sql) ?? []) read += cursor.rowsRead;
  cursors.delete(sql);
}

/** Wraps the runtime's own methods, once: the storage of all objects has one prototype. */
export function countRows(storage: DurableObjectStorage): void {
  if (isCounting) return;
  isCounting = true;
  const sql = Object.getPrototypeOf(storage.sql) as SqlStorage;
  const exec = Reflect.get(sql, "exec");
  sql.exec = function countedExec(this: SqlStorage, ...args: Parameters<SqlStorage["exec"]>) {
    const cursor = exec.apply(this, args);
    // When `exec` returns, its write is done. The cursor must not be read here: Weir would find nothing in it.
    note(this, cursor.rowsWritten);
    cursors.set(this, [...(cursors.get(this) ?? []), cursor]);
    return cursor;
  } as SqlStorage["exec"];
  const kv = Object.getPrototypeOf(storage.kv) as SyncKvStorage;
  const get = Reflect.get(kv, "get");
  kv.get = function countedGet(this: SyncKvStorage, ...args: Parameters<SyncKvStorage["get"]>) {
    read += 1;
    return get.apply(this, args);
  } as SyncKvStorage["get"];
  const put = Reflect.get(kv, "put");
  kv.put = function countedPut(this: SyncKvStorage, ...args: Parameters<SyncKvStorage["put"]>) {
    note(this, 1);
    put.apply(this, args);
  };
  const remove = Reflect.get(kv, "delete");
  kv.delete = function countedDelete(this: SyncKvStorage, ...args: Parameters<SyncKvStorage["delete"]>) {
    const wasThere = remove.apply(this, args);
    if (wasThere) note(this, 1);
    return wasThere;
  };
  const prototype = Object.getPrototypeOf(storage) as DurableObjectStorage;
  const setAlarm = Reflect.get(prototype, "setAlarm");
  prototype.setAlarm = function countedSetAlarm(this: DurableObjectStorage, ...args) {
    note(this, 1);
    return setAlarm.apply(this, args);
  };
}
