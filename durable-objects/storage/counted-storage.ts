import type { Counter } from "../../core/stats/tally.ts";

/** The storage of an object as the parts here use it. */
type Used = Pick<DurableObjectStorage, "transactionSync" | "deleteAll" | "getAlarm" | "setAlarm"> & {
  readonly sql: Pick<SqlStorage, "exec">;
  readonly kv: Pick<SyncKvStorage, "get" | "put" | "delete">;
};

/**
 * The storage of an object, with the rows counted that it reads and writes, as Cloudflare bills them: what a cursor says of
 * each statement, a row for each value that is put into the key-value table or taken out of it, and one for an alarm.
 */
export function countedStorage(storage: Used, counter: Pick<Counter, "add">): DurableObjectStorage {
  /** Rows are read when the cursor is, so they are counted with the next statement. */
  let last: Pick<SqlStorageCursor<Record<string, SqlStorageValue>>, "rowsRead"> | undefined;
  const read = (rows: number) => (rows > 0 ? counter.add("rows_read", [], rows) : undefined);
  const wrote = (rows: number) => (rows > 0 ? counter.add("rows_written", [], rows) : undefined);
  const counted: Used = {
    sql: {
      exec: (query, ...bindings) => {
        if (last !== undefined) read(last.rowsRead);
        last = undefined;
        const cursor = storage.sql.exec(query, ...bindings);
        // When `exec` returns, its write is done.
        wrote(cursor.rowsWritten);
        last = cursor;
        return cursor as never;
      },
    },
    kv: {
      get: (key: string) => {
        read(1);
        return storage.kv.get(key);
      },
      put: (key, value) => {
        storage.kv.put(key, value);
        wrote(1);
      },
      delete: (key) => {
        const wasThere = storage.kv.delete(key);
        if (wasThere) wrote(1);
        return wasThere;
      },
    },
    transactionSync: (work) => storage.transactionSync(work),
    deleteAll: (options) => storage.deleteAll(options),
    getAlarm: (options) => storage.getAlarm(options),
    setAlarm: (atMs, options) => {
      wrote(1);
      return storage.setAlarm(atMs, options);
    },
  };
  return counted as DurableObjectStorage;
}
