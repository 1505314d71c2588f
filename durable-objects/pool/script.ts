/**
 * The script that decides on a pool in Redis: one call, atomic, with the server's `TIME` as its clock. It is the same
 * arithmetic as algorithms/, holds.ts, decisions.ts and grants.ts, and the tests compare the two answer by answer.
 *
 * KEYS as `poolKeys` has them, ARGV a `PoolCall` and a `PoolSizing` as JSON; it returns a `PoolAnswer` as JSON.
 *
 * Redis keeps nothing of a script from one call to the next but its text, so all functions are made anew each time: that
 * was a third of what a plain call took. Those that not every call needs are therefore made when they are.
 */
import { ANSWERING } from "./lua/answering.ts";
import { ANSWERS } from "./lua/answers.ts";
import { CALLS, OTHER_CALLS } from "./lua/calls.ts";
import { CONCURRENCY } from "./lua/concurrency.ts";
import { DECISIONS } from "./lua/decisions.ts";
import { GRANTS } from "./lua/grants.ts";
import { HOLDERS } from "./lua/holders.ts";
import { HOLDS, WHOLE } from "./lua/holds.ts";
import { POOL, READING } from "./lua/pool.ts";
import { SLIDING_LOG } from "./lua/sliding-log.ts";
import { TOKEN_BUCKET } from "./lua/token-bucket.ts";
import { WAITS } from "./lua/waits.ts";

/** Functions that exist from when on `define` is called. */
function later(define: string, functions: readonly string[], lua: string): string {
  const declared = functions.length > 0 ? `local ${functions.join(", ")}\n` : "";
  const isDone = functions[0] === undefined ? "" : `if ${functions[0]} then return end\n`;
  return `${declared}local function ${define}()\n${isDone}${lua}end\n`;
}

export const POOL_SCRIPT = [
  POOL,
  later("tokenBucket", [], TOKEN_BUCKET),
  later("slidingLog", [], SLIDING_LOG),
  later("concurrency", [], CONCURRENCY),
  later(
    "defineHolds",
    ["loadHolds", "readRest", "findHold", "removeHold", "placeHold", "isRegional", "exactly", "takeTokens"],
    HOLDS,
  ),
  READING,
  WHOLE,
  later("defineWaits", ["withHolds", "blocked"], WAITS),
  DECISIONS,
  ANSWERS,
  CALLS,
  later("defineHolders", ["readHolders", "noteHolding", "charged", "grant", "refuse"], HOLDERS + GRANTS),
  later("defineCalls", ["holdText"], OTHER_CALLS),
  ANSWERING,
].join("");
