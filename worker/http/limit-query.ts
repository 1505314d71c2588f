import type { DenyStatus } from "./responses.ts";

/** A call that stands in the query. */
export interface QueryCall {
  readonly policy: string;
  readonly key: string;
  readonly cost: number;
  readonly deny: DenyStatus;
}

const PLAIN = /^policy=([\w-]{1,64})&key=([^&#+]{1,512})(?:&cost=(\d{1,9}))?(&deny=429)?$/;

/**
 * A call in the query whose fields stand in this order, and whose key fits whatever its characters; `undefined`: the
 * schema has to parse it, or say what is wrong.
 *
 * @param query what follows the `?`
 */
export function plainQuery(query: string): QueryCall | undefined {
  const [, policy, given, cost = "1", deny] = PLAIN.exec(query) ?? [];
  if (policy === undefined || given === undefined) return undefined;
  let key = given;
  if (given.includes("%")) {
    try {
      key = decodeURIComponent(given);
    } catch {
      return undefined;
    }
  }
  // A UTF-16 unit takes at most three bytes of UTF-8. The schema measures longer text.
  if (key.length > MOST_LENGTH || !key.isWellFormed()) return undefined;
  return { policy, key, cost: Number(cost), deny: deny === undefined ? 200 : 429 };
}

/** A third of the bytes that a key may have. */
const MOST_LENGTH = 170;
