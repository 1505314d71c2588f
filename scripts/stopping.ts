/** How a process ends in an orderly way: isolates give their units back, and objects write what they know. */
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { STOP_HEADER } from "../worker/http/stop-header.ts";

/** An object that has written nothing for so long, in milliseconds, is not ahead of its storage: a lead lasts less. */
const AHEAD_MS = 120_000;
/** The process is ended after so long, in milliseconds, whatever it does. */
export const MAX_MS = 5_000;
/** An object's file, or its log. */
const OBJECT_OR_LOG = /^(?<id>[0-9a-f]{64})\.sqlite(-wal)?$/;

/** Tells the worker at each of these addresses that it ends. If one does not answer in time, it ends all the same. */
export async function giveAllBack(urls: readonly string[], stateDir: string, secret: string): Promise<void> {
  const signal = AbortSignal.timeout(MAX_MS);
  const tell = (url: string, ids: readonly string[]) =>
    fetch(url, { method: "POST", headers: { [STOP_HEADER]: secret }, body: JSON.stringify(ids), signal });
  await Promise.allSettled(urls.map((url) => tell(url, [])));
  const [first] = urls;
  if (first !== undefined) await Promise.allSettled([tell(first, activeObjects(stateDir))]);
}

/** The ids of the objects that have written lately. */
function activeObjects(stateDir: string): string[] {
  const sinceMs = Date.now() - AHEAD_MS;
  const ids = new Set<string>();
  for (const folder of readdirSync(stateDir, { withFileTypes: true })) {
    // Those of other classes are ahead of nothing: they write before they answer.
    if (!folder.isDirectory() || !folder.name.endsWith("-LimiterObject")) continue;
    for (const name of readdirSync(join(stateDir, folder.name))) {
      const id = OBJECT_OR_LOG.exec(name)?.groups?.["id"];
      // workerd removes the log of an object that it drops, at any moment.
      const file = id && statSync(join(stateDir, folder.name, name), { throwIfNoEntry: false });
      if (id !== undefined && file && file.mtimeMs > sinceMs) ids.add(id);
    }
  }
  return [...ids];
}
