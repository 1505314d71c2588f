/** The fields of a policy that are not those of its rules. */
import * as v from "valibot";
import { table } from "../validation.ts";
import { POLICY_FIELDS } from "./policy-fields.ts";

/** A schema is made once: making one takes longer than reading with it. */
const SCHEMA = table(POLICY_FIELDS);

type Given = Readonly<Record<string, unknown>>;

/**
 * What was read last. Each key with an override has the same policy with other figures in its rules, and reading these
 * fields again is half of what reading a policy takes.
 */
let last: { readonly given: Given; readonly parsed: ReturnType<typeof parse> } | undefined;

/** Reads the fields. They must not change afterwards. */
export function parsePolicyLevel(given: Given): ReturnType<typeof parse> {
  if (last !== undefined && isSame(given, last.given)) return last.parsed;
  const parsed = parse(given);
  last = { given, parsed };
  return parsed;
}

function parse(given: Given) {
  return v.safeParse(SCHEMA, given);
}

/** Whether the fields have the same values, in the same order. What is no plain value may have changed inside. */
function isSame(one: Given, other: Given): boolean {
  const [mine, theirs] = [Object.keys(one), Object.keys(other)];
  return (
    mine.length === theirs.length &&
    mine.every(
      (field, index) => field === theirs[index] && isPlain(one[field]) && one[field] === other[field],
    )
  );
}

function isPlain(value: unknown): boolean {
  return typeof value !== "object" && typeof value !== "function";
}
