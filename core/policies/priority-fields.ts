import * as v from "valibot";
import { bothReadings, DURATION_ALLOWED, parseDurationMs } from "./durations.ts";

const NAMES = ["critical", "high", "normal", "low"];
/** The priority of calls that say none, where a policy has it. */
export const USUAL = "normal";
const DEFAULT_AGEING = "10s";
/** Every priority with something kept has reservations of its own in each isolate. */
const MOST_NAMES = 8;
const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$/;
const NAMES_ALLOWED = `a list of 2 to ${MOST_NAMES} different names of up to 32 letters, digits, - or _, the most important first`;
const SHARES_ALLOWED = 'a table of parts by priority, such as { critical = "20%" }';

/** The fields of a policy that say how important its calls are. */
export const PRIORITY_FIELDS = {
  priorities: v.optional(
    v.pipe(
      v.array(v.string(NAMES_ALLOWED), NAMES_ALLOWED),
      v.check(
        (names) =>
          names.length >= 2 &&
          names.length <= MOST_NAMES &&
          names.every((name) => NAME.test(name)) &&
          new Set(names).size === names.length,
        NAMES_ALLOWED,
      ),
    ),
    NAMES,
  ),
  ageing: v.pipe(
    v.optional(
      v.custom(
        (value) => parseDurationMs(value) !== undefined,
        ({ input }) => DURATION_ALLOWED + bothReadings(input),
      ),
      DEFAULT_AGEING,
    ),
    v.transform((value) => parseDurationMs(value) ?? 0),
  ),
  defaultPriority: v.optional(v.string("the name of a priority")),
  reserve: v.optional(v.record(v.string(), v.unknown(), SHARES_ALLOWED), {}),
};

/** The fields as they are parsed. */
export interface GivenPriorities {
  readonly priorities: readonly string[];
  readonly defaultPriority?: string | undefined;
  readonly reserve: Readonly<Record<string, unknown>>;
  readonly ageing: number;
}
