import type { ObjectBounds } from "../client/call-gate.ts";
import type { Policies } from "../core/policies/policy.ts";

/** A start takes 1 ms in memory, and 3 to 10 ms on a disk: these take about half the deadline of 1 s. */
const STARTS_AT_ONCE = 64;
/** An object's file, its log, and the log's index. */
const FILES_OF_AN_OBJECT = 3;
/** For connections, at most half of the files. */
const MAX_FILES_FOR_OTHERS = 4_096;
/** Each takes some 50 KB of memory, so these take a gigabyte. */
const MAX_OBJECTS = 20_000;

/** The bounds for the worker, as JSON. workerd may open as many files as this process. */
export function objectBounds(): string {
  const files = openFiles();
  const others = Math.min(MAX_FILES_FOR_OTHERS, files / 2);
  const inMemory = Math.min(MAX_OBJECTS, Math.floor((files - others) / FILES_OF_AN_OBJECT));
  return JSON.stringify({ startsAtOnce: STARTS_AT_ONCE, inMemory } satisfies ObjectBounds);
}

/** What a server should know before it meets many keys: here, unlike on Cloudflare, each start waits for one disk. */
export function newKeysNote(policies: Policies): string | undefined {
  const names = [...policies.values()].filter(({ objects }) => objects === "per-key").map(({ name }) => name);
  if (names.length === 0) return undefined;
  return (
    `Each new key of ${names.join(", ")} starts an object: a disk takes 20 to 330 a second. ` +
    `With objects = 64 keys share objects, and a new one starts none (docs/deploying.md).`
  );
}

/** The maximum number of open files of this process; `Infinity` where it is unknown. */
function openFiles(): number {
  const { userLimits } = process.report.getReport() as {
    readonly userLimits?: { readonly open_files?: { readonly soft: number | "unlimited" } };
  };
  return Number(userLimits?.open_files?.soft ?? Infinity) || Infinity;
}
