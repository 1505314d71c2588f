/**
 * The script that decides on a pool in Redis. One call is atomic, and its clock is the server's `TIME`. The
 * arithmetic is that of core/algorithms/, core/accounts/ and core/reservations/sizing.ts, and the tests compare the
 * two sides answer by answer.
 *
 * KEYS are as `poolKeys` has them. ARGV are a `PoolCall` and a `PoolSizing` as JSON. The script returns a
 * `PoolAnswer` as JSON.
 *
 * Redis keeps nothing of a script from one call to the next but its text, so all functions are made anew in each
 * call. That was a third of the time of a plain call. So functions that not every call needs are made only when they
 * are needed.
 */
import { ANSWERING, ANSWERS, CHARGES } from "./lua/answers.ts";
import { CALLS, OTHER_CALLS } from "./lua/calls.ts";
import { CONCURRENCY } from "./lua/concurrency.ts";
import { DECISIONS } from "./lua/decisions.ts";
import { GCRA } from "./lua/gcra.ts";
import { GRANTS } from "./lua/grants.ts";
import { HOLDERS } from "./lua/holders.ts";
import { HOLDS, WAITS, WHOLE } from "./lua/holds.ts";
import { POOL, READING } from "./lua/pool.ts";
import { SLIDING_LOG } from "./lua/sliding-log.ts";
import { TOKEN_BUCKET } from "./lua/token-bucket.ts";
import { HOLES, UNIT_LOG } from "./lua/unit-log.ts";

/** Lua text of functions that exist once `define` has been called. */
function later(define: string, functions: readonly string[], lua: string): string {
  const declared = functions.length > 0 ? `local ${functions.join(", ")}\n` : "";
  const isDone = functions[0] === undefined ? "" : `if ${functions[0]} then return end\n`;
  return `${declared}local function ${define}()\n${isDone}${lua}end\n`;
}

/**
 * Wraps the rest of the script in a function of its own. Making a function mostly means finding the variables of the
 * function around it. For each, Lua 5.1 walks the list of all that were found before at that level (7 us of 22). A
 * new level begins a new list.
 */
function within(...lua: readonly string[]): string {
  return `return (function()\n${lua.join("")}end)()\n`;
}

const ALGORITHMS = [
  later("tokenBucket", [], TOKEN_BUCKET),
  later("gcra", [], GCRA),
  later("slidingLog", [], HOLES + UNIT_LOG + SLIDING_LOG),
  later("concurrency", [], CONCURRENCY),
];
const HOLDS_LATER = later(
  "defineHolds",
  ["loadHolds", "readRest", "findHold", "removeHold", "placeHold", "isRegional", "exactly", "takeTokens"],
  HOLDS,
);
const WAITS_LATER = later("defineWaits", ["withHolds", "blocked"], WAITS);
const HOLDERS_LATER = later(
  "defineHolders",
  ["readHolders", "noteHolding", "charged", "grant", "refuse"],
  HOLDERS + GRANTS,
);
const CHARGES_LATER = later("defineCharges", ["chargeOf", "uncharge"], CHARGES);
const CALLS_LATER = later("defineCalls", ["holdText"], OTHER_CALLS);

/** The whole text of the script. Redis knows it by its digest. */
export const POOL_SCRIPT =
  POOL +
  within(
    ...ALGORITHMS,
    HOLDS_LATER,
    READING,
    WHOLE,
    within(WAITS_LATER, DECISIONS, ANSWERS, CHARGES_LATER, CALLS, HOLDERS_LATER, CALLS_LATER, ANSWERING),
  );
