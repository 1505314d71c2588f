import * as v from "valibot";
import { isWithinPrefix } from "../../core/catalog/patterns.ts";
import { type CallerBounds, DEFAULT_BOUNDS, MAX_BOUNDS, type Region } from "../../core/policies/policy.ts";
import { Problem, LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import { integer, oneOf, table, violationsOf } from "../../core/validation.ts";
import { describe } from "../../core/violations.ts";

export interface Principal {
  /** As errors name it: `the token "api"`. */
  readonly title: string;
  /** JSON text unique to the caller. It is stored with what the caller makes: never change how it is made. */
  readonly id: string;
  readonly bounds: CallerBounds;
  readonly scopes: readonly Scope[];
  /** Absent: every policy. */
  readonly policies?: readonly string[] | undefined;
  /** Absent: every key. */
  readonly keyPrefix?: string | undefined;
  /** The region that the call belongs to. Policies without a pool ignore it. */
  readonly region?: Region;
}

interface Token extends Principal {
  readonly digest: Uint8Array;
}

const HOW_TO =
  'Make an entry with "npm run token -- --name NAME --scope limit" and set it with "npx wrangler secret put API_TOKENS".';

/** The last secret that was read. Parsing and hashing it for each call would cost more than deciding. */
let configured:
  | { readonly secret: string | undefined; readonly tokens: readonly Token[] | Problem }
  | undefined;
let issued: readonly Token[] = [];
/** By the header `Bearer TOKEN`, so there is at most one entry for each token. */
const authenticated = new Map<string, Principal>();

/**
 * The caller of an Authorization header; `undefined`: its token is not known. Without tokens every call is refused.
 * @param secret API_TOKENS
 */
export function authenticate(
  authorization: string | null,
  secret: string | undefined,
): Principal | Problem | Promise<Principal | Problem | undefined> {
  const tokens = tokensOf(secret);
  if (tokens instanceof Problem) return tokens;
  if (authorization === null)
    return unauthorized("the Authorization header is missing: must be Bearer TOKEN");
  // Only valid tokens are in here, so a lookup reveals nothing about a guess.
  return authenticated.get(authorization) ?? verify(authorization, tokens);
}

/** The caller of a header that was verified before; `undefined`: `authenticate` has to verify it. */
export function knownCaller(authorization: string | null, secret: string | undefined): Principal | undefined {
  if (authorization === null || tokensOf(secret) instanceof Problem) return undefined;
  return authenticated.get(authorization);
}

export function configurationProblem(secret: string | undefined): Problem | undefined {
  const tokens = tokensOf(secret);
  return tokens instanceof Problem ? tokens : undefined;
}

export function isConfigured(secret: string | undefined, name: string): boolean {
  const tokens = tokensOf(secret);
  return !(tokens instanceof Problem) && tokens.some(({ id }) => id === JSON.stringify({ token: name }));
}

/** @param needed what is said of a call that needs one or another, as its body says */
export function scopeProblem(
  { title, scopes }: Principal,
  anyOf: readonly Scope[],
  needed = anyOf.join(" or "),
): Problem | undefined {
  if (anyOf.some((scope) => scopes.includes(scope))) return undefined;
  return new Problem(LIMITER_PROBLEMS.forbidden, `${title} has no scope ${needed}`);
}

export function mayUse({ policies }: Principal, policy: string): boolean {
  return policies === undefined || policies.includes(policy);
}

export function policyProblem(principal: Principal, policy: string): Problem | undefined {
  if (mayUse(principal, policy)) return undefined;
  return new Problem(LIMITER_PROBLEMS.forbidden, `${principal.title} may not use this policy`);
}

export function keyProblem(principal: Principal, key: string): Problem | undefined {
  const { keyPrefix } = principal;
  return keyPrefix === undefined || key.startsWith(keyPrefix) ? undefined : prefixProblem(principal);
}

/** The problem of a pattern, unless the principal may use all of its keys. */
export function patternProblem(principal: Principal, pattern: string): Problem | undefined {
  const { keyPrefix } = principal;
  return keyPrefix === undefined || isWithinPrefix(pattern, keyPrefix) ? undefined : prefixProblem(principal);
}

function prefixProblem({ title, keyPrefix }: Principal): Problem {
  const detail = `${title} may use keys that begin with ${describe(keyPrefix)} only`;
  return new Problem(LIMITER_PROBLEMS.forbidden, detail);
}

type Grant = Pick<v.InferOutput<typeof StoredToken>, "scopes" | keyof typeof GRANT_FIELDS>;

/** A caller with what its token or binding grants, and the default bounds where that omits them. */
function principalOf(title: string, id: string, grant: Grant): Principal {
  const { scopes, policies, keyPrefix } = grant;
  const {
    maxCallsAtOnce = DEFAULT_BOUNDS.maxCallsAtOnce,
    maxNewKeysPerSecond = DEFAULT_BOUNDS.maxNewKeysPerSecond,
  } = grant;
  return { title, id, scopes, policies, keyPrefix, bounds: { maxCallsAtOnce, maxNewKeysPerSecond } };
}

function tokensOf(secret: string | undefined): readonly Token[] | Problem {
  if (configured === undefined || configured.secret !== secret) {
    configured = { secret, tokens: parseTokens(secret) };
    authenticated.clear();
  }
  return configured.tokens;
}

async function verify(
  authorization: string,
  tokens: readonly Token[],
): Promise<Principal | Problem | undefined> {
  const presented = /^Bearer +([\x21-\x7e]+) *$/i.exec(authorization)?.[1];
  if (presented === undefined)
    return unauthorized("the Authorization header is not of the form Bearer TOKEN");
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(presented));
  let principal: Principal | undefined;
  // Compares every entry in constant time, so that the duration reveals nothing about any of them.
  for (const token of [...tokens, ...issued])
    if (crypto.subtle.timingSafeEqual(digest, token.digest)) principal ??= token;
  // A valid token has many spellings (`bearer`, spaces). Only one is remembered.
  if (principal !== undefined && authorization === `Bearer ${presented}`)
    authenticated.set(authorization, principal);
  return principal;
}

export function unauthorized(detail: string): Problem {
  const headers = { "www-authenticate": 'Bearer realm="weir"' };
  return new Problem(LIMITER_PROBLEMS.unauthorized, detail, { headers });
}

/** Problems name the entry and the field, and quote no value of the secret. */
function parseTokens(secret: string | undefined): readonly Token[] | Problem {
  if (secret === undefined || secret.trim() === "") return notConfigured("the secret API_TOKENS is not set");
  const allowed = `the secret API_TOKENS must be a JSON array of { "name", "sha256", "scopes", "policies"?, "keyPrefix"?, "maxCallsAtOnce"?, "maxNewKeysPerSecond"? }`;
  let value: unknown;
  try {
    value = JSON.parse(secret);
  } catch {
    return notConfigured(`${allowed}, and it is not JSON`);
  }
  const parsed = v.safeParse(v.pipe(v.array(TokenEntry), v.minLength(1)), value);
  if (!parsed.success) {
    const fields = violationsOf(parsed.issues).map(({ path }) => path.join(".") || "the array");
    return notConfigured(`${allowed}, and something is wrong with: ${fields.join(", ")}`);
  }
  return parsed.output.map(tokenOf);
}

function tokenOf(entry: v.InferOutput<typeof TokenEntry>): Token {
  const { name, sha256 } = entry;
  return {
    ...principalOf(`the token ${JSON.stringify(name)}`, JSON.stringify({ token: name }), entry),
    digest: Uint8Array.from(sha256.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16)),
  };
}

/** Sets the tokens issued at run time: all others are refused from now on. */
export function knowTokens(entries: readonly unknown[]): void {
  issued = entries.flatMap((entry) => {
    const parsed = v.safeParse(TokenEntry, entry);
    // Another version of the deployment may have issued tokens that this one cannot read.
    return parsed.success ? [tokenOf(parsed.output)] : [];
  });
  authenticated.clear();
}

function notConfigured(why: string): Problem {
  return new Problem(LIMITER_PROBLEMS.notConfigured, `${why}. ${HOW_TO}`);
}

/**
 * `limit` all calls but the following, `refund` a refund without a charge, `force` a `limit` with `force`,
 * `reserve` holding units in the caller's process, `metrics` reading all counts, `admin` that, and reading
 * and changing keys and policies.
 */
export const SCOPES = ["limit", "refund", "force", "reserve", "metrics", "admin"] as const;
export type Scope = (typeof SCOPES)[number];

const GRANT_FIELDS = {
  policies: v.optional(v.array(v.string("the name of a policy"), "a list of names of policies")),
  keyPrefix: v.optional(v.string("a prefix that keys must have")),
  maxCallsAtOnce: v.optional(integer(1, MAX_BOUNDS.maxCallsAtOnce)),
  maxNewKeysPerSecond: v.optional(integer(1, MAX_BOUNDS.maxNewKeysPerSecond)),
};
const SCOPES_ALLOWED = `a list of ${SCOPES.map((scope) => JSON.stringify(scope)).join(" and ")}, not empty`;
export const SCOPE_LIST = v.pipe(v.array(oneOf(SCOPES), SCOPES_ALLOWED), v.minLength(1, SCOPES_ALLOWED));

/** The longest name, in characters: it is stored with what the caller makes. */
const MAX_NAME_LENGTH = 128;
const NAME_ALLOWED = `a name of 1 to ${MAX_NAME_LENGTH} characters`;
export const CALLER_NAME = v.pipe(
  v.string(NAME_ALLOWED),
  v.minLength(1, NAME_ALLOWED),
  v.maxLength(MAX_NAME_LENGTH, NAME_ALLOWED),
);

export const TokenFields = table({ name: CALLER_NAME, scopes: SCOPE_LIST, ...GRANT_FIELDS });

const SHA256_ALLOWED = "64 hexadecimal digits, the SHA-256 of the token";
/** A token of the catalog, stored under its name. It has only the token's SHA-256. */
export const StoredToken = table({
  sha256: v.pipe(v.string("64 hexadecimal digits"), v.regex(/^[0-9a-f]{64}$/i, SHA256_ALLOWED)),
  scopes: SCOPE_LIST,
  ...GRANT_FIELDS,
});

const TokenEntry = table({ name: CALLER_NAME, ...StoredToken.entries });

/* The callers over service bindings, as the bindings' `props` describe them. */

export const Props = table({
  policy: v.optional(v.string("the name of a policy")),
  region: v.optional(v.string("the name of a region")),
  /** Names the binding: what it makes stays its own when other props change. */
  name: v.optional(CALLER_NAME),
  scopes: v.optional(SCOPE_LIST),
  ...GRANT_FIELDS,
});
export type Props = Readonly<v.InferOutput<typeof Props>>;

export interface BindingCaller extends Pick<Props, "policy" | "region"> {
  readonly principal: Principal;
}

/** By the text of the props, so that a caller's bounds outlive a call. The oldest is dropped first. */
const known = new Map<string, BindingCaller>();
const MAX_KNOWN = 1_000;

/** A binding without scopes has all, because the owner of the account made it. */
export function bindingCaller(
  props: unknown,
  parse: (schema: typeof Props, value: unknown) => Props | Problem,
): BindingCaller | Problem {
  const text = JSON.stringify(props ?? {});
  const found = known.get(text);
  if (found !== undefined) return found;
  const parsed = parse(Props, props ?? {});
  if (parsed instanceof Problem) return parsed;
  const { name, policy, region, scopes = [...SCOPES] } = parsed;
  const title = name === undefined ? "the service binding" : `the service binding ${JSON.stringify(name)}`;
  const id = JSON.stringify({ binding: name ?? sorted(parsed) });
  const caller = { principal: principalOf(title, id, { ...parsed, scopes }), policy, region };
  const [oldest] = known.keys();
  if (known.size >= MAX_KNOWN && oldest !== undefined) known.delete(oldest);
  known.set(text, caller);
  return caller;
}

/** One order of fields, so that equal props are one caller. */
function sorted(props: Props): object {
  return Object.fromEntries(Object.entries(props).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
