/**
 * Files of objects that have nothing.
 *
 * workerd makes an object's file when the object starts, before any code of the object runs, and never deletes it
 * (tried on workerd 1.20261023.1: also when the object touches no storage, and after `deleteAll`). So a key that is
 * only looked at costs an object of its own a page of 4 KiB, for good. While the object is in memory there are 32 KiB
 * more beside it (`-shm`). On Cloudflare an object that stores nothing ceases to exist.
 */
import { existsSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";

/** An object's file is named by the object's id. The file of all alarms (`metadata.sqlite`) is not. */
const OBJECT_FILE = /^[0-9a-f]{64}\.sqlite$/;
/** One page of SQLite has the header and no table: the first table would take a second page. */
const PAGE_BYTES = 4_096;

/** Removes these files. No workerd may run on the folder: one that has such a file open would go on in no file. */
export function removeEmptyDatabases(stateDir: string): void {
  for (const folder of readdirSync(stateDir, { withFileTypes: true })) {
    if (!folder.isDirectory()) continue;
    for (const name of readdirSync(join(stateDir, folder.name))) {
      const path = join(stateDir, folder.name, name);
      // With a log beside it (`-wal`) the object was killed, or is open: what is in the log is not in the file.
      if (OBJECT_FILE.test(name) && !existsSync(`${path}-wal`) && statSync(path).size === PAGE_BYTES)
        rmSync(path);
    }
  }
}
