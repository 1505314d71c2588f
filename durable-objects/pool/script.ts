/**
 * The script that decides on a pool in Redis: one call, atomic, with the server's `TIME` as its clock. It is the same
 * arithmetic as algorithms/, holds.ts, decisions.ts and grants.ts, and the tests compare the two answer by answer.
 *
 * KEYS as `poolKeys` has them, ARGV a `PoolCall` and a `PoolSizing` as JSON; it returns a `PoolAnswer` as JSON.
 */
import { ANSWERING } from "./lua/answering.ts";
import { ANSWERS } from "./lua/answers.ts";
import { CALLS } from "./lua/calls.ts";
import { CONCURRENCY } from "./lua/concurrency.ts";
import { DECISIONS } from "./lua/decisions.ts";
import { GRANTS } from "./lua/grants.ts";
import { HOLDERS } from "./lua/holders.ts";
import { HOLDS } from "./lua/holds.ts";
import { POOL } from "./lua/pool.ts";
import { SLIDING_LOG } from "./lua/sliding-log.ts";
import { TOKEN_BUCKET } from "./lua/token-bucket.ts";

export const POOL_SCRIPT = [
  TOKEN_BUCKET,
  SLIDING_LOG,
  CONCURRENCY,
  POOL,
  HOLDS,
  DECISIONS,
  HOLDERS,
  GRANTS,
  ANSWERS,
  CALLS,
  ANSWERING,
].join("");
