/** The entries that say what a token may do: in the secret API_TOKENS, and of tokens that were issued at run time. */
import * as v from "valibot";
import { MOST_CALLS_AT_ONCE, MOST_NEW_KEYS_PER_SECOND } from "../../core/policies/caller-bounds.ts";
import { integer, oneOf, table } from "../../core/validation.ts";

/**
 * What a token or a binding allows: `limit` all calls but those that follow, `refund` a refund that names no charge,
 * `force` a `limit` with `force`, `reserve` holding units in the caller's own process, `metrics` reading all counts, `admin` the same, a reset, setting what is used, looking at policies and keys, and
 * listing keys.
 */
export const SCOPES = ["limit", "refund", "force", "reserve", "metrics", "admin"] as const;
export type Scope = (typeof SCOPES)[number];

/** What a token and the props of a binding say in the same words. */
export const GRANT_FIELDS = {
  policies: v.optional(v.array(v.string("the name of a policy"), "a list of names of policies")),
  keyPrefix: v.optional(v.string("a prefix that keys must have")),
  maxCallsAtOnce: v.optional(integer(1, MOST_CALLS_AT_ONCE)),
  maxNewKeysPerSecond: v.optional(integer(1, MOST_NEW_KEYS_PER_SECOND)),
};
const SCOPES_ALLOWED = `a list of ${SCOPES.map((scope) => JSON.stringify(scope)).join(" and ")}, not empty`;
export const SCOPE_LIST = v.pipe(v.array(oneOf(SCOPES), SCOPES_ALLOWED), v.minLength(1, SCOPES_ALLOWED));

/** The longest name, in characters. What a caller makes is stored with its name. */
const MAX_NAME_LENGTH = 128;
const NAME_ALLOWED = `a name of 1 to ${MAX_NAME_LENGTH} characters`;
/** The name of a token or binding. */
export const CALLER_NAME = v.pipe(
  v.string(NAME_ALLOWED),
  v.minLength(1, NAME_ALLOWED),
  v.maxLength(MAX_NAME_LENGTH, NAME_ALLOWED),
);

/** What a token may do, and its name. */
export const TokenFields = table({ name: CALLER_NAME, scopes: SCOPE_LIST, ...GRANT_FIELDS });

/** A token of the catalog, which stands under its name. It has only the SHA-256 of the token, never the token. */
export const StoredToken = table({
  sha256: v.pipe(
    v.string("64 hexadecimal digits"),
    v.regex(/^[0-9a-f]{64}$/i, "64 hexadecimal digits, the SHA-256 of the token"),
  ),
  scopes: SCOPE_LIST,
  ...GRANT_FIELDS,
});

/** One entry of the secret API_TOKENS. */
export const TokenEntry = table({ name: CALLER_NAME, ...StoredToken.entries });
