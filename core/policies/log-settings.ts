/** What is logged: the table LOG in wrangler.toml. */
import * as v from "valibot";
import { number, table, violationsOf } from "../validation.ts";

/** What is logged of calls. */
export interface LogSettings {
  /** The part of the denials that is logged, from 0 to 1. */
  readonly denials: number;
  /** The part of the calls that is logged to which an object did not answer, from 0 to 1. */
  readonly failures: number;
  /** Whether these lines have keys in them. */
  readonly keys: boolean;
}

const IS_KEYS = "true or false";
const LogTable = table({
  denials: v.optional(number(0, 1), 0),
  failures: v.optional(number(0, 1), 1),
  keys: v.optional(v.boolean(IS_KEYS), false),
});

/**
 * Reads the table; `undefined`: there is none, and failures are logged.
 *
 * @throws Error that names each bad field and value, and what is allowed
 */
export function parseLog(given: unknown): LogSettings {
  const parsed = v.safeParse(LogTable, given ?? {});
  if (parsed.success) return parsed.output;
  const wrong = violationsOf(parsed.issues).map(({ detail }) => `LOG: ${detail}`);
  throw new Error(`bad configuration, not serving:\n${wrong.join("\n")}`);
}
