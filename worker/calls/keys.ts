/** The calls about all keys of a policy: list them, and count them. */
import * as v from "valibot";
import type { SharedPolicy } from "../../client/objects/key-lists.ts";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { keyCursor, type KeyPlace, readKeyCursor } from "../../core/protocol/caller-keys.ts";
import { sharedObjects } from "../../core/protocol/object-names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { integer, table } from "../../core/validation.ts";
import { keyProblem, type Principal } from "../auth/tokens.ts";
import { MAX_KEY_BYTES, text } from "./schemas/request-parts.ts";
import { KeyRequest } from "./schemas/request-schemas.ts";
import { findPolicy } from "./target.ts";
import { parse, refused } from "./validate.ts";

/** Lists keys, page by page. */
export async function callKeys(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<KeyList | Problem> {
  const request = parse(KeyListRequest, input);
  if (request instanceof Problem) return request;
  const among = amongOf(client, principal, request);
  if (among instanceof Problem) return among;
  const page = await client.keys.list(among.policy, among.from, among.prefix, request.limit);
  return page instanceof Problem ? page : { keys: [...page.keys], ...cursorOf(page) };
}

/** Counts keys, 256 objects at a time. */
export async function callKeyCount(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<KeyCount | Problem> {
  const request = parse(KeyCountRequest, input);
  if (request instanceof Problem) return request;
  const among = amongOf(client, principal, request);
  if (among instanceof Problem) return among;
  const page = await client.keys.count(among.policy, among.from, among.prefix);
  return page instanceof Problem ? page : { count: page.count, ...cursorOf(page) };
}

/** Among which keys a request looks. */
interface Among {
  readonly policy: SharedPolicy;
  readonly prefix: string;
  readonly from: KeyPlace;
}

function amongOf(
  { policies }: LimiterClient,
  principal: Principal,
  request: {
    readonly policy: string;
    readonly prefix?: string | undefined;
    readonly cursor?: string | undefined;
  },
): Among | Problem {
  const policy = findPolicy(policies, principal, request.policy, []);
  if (policy instanceof Problem) return policy;
  if (policy.pool !== undefined) {
    const allowed = "a policy without a pool (the keys of this one are in its Redis: list them there)";
    return refused(["policy"], request.policy, allowed);
  }
  const { objects } = policy;
  if (objects === "per-key") {
    const allowed =
      "a policy whose keys share a number of objects (this one has an object for each key, and nobody knows all " +
      'objects: keep a list of your keys and look at each, or set objects in the policy, with objectsBefore = "per-key")';
    return refused(["policy"], request.policy, allowed);
  }
  // A token for keys with a prefix sees these and no others.
  const { prefix = principal.keyPrefix ?? "" } = request;
  const from =
    request.cursor === undefined ? { object: 0 } : readKeyCursor(request.cursor, sharedObjects(policy));
  if (from === undefined || from.after?.startsWith(prefix) === false)
    return refused(["cursor"], request.cursor, "the cursor of an answer to the same request");
  return keyProblem(principal, prefix) ?? { policy: { ...policy, objects }, prefix, from };
}

function cursorOf({ next }: { readonly next?: KeyPlace }): { cursor?: string } {
  return next === undefined ? {} : { cursor: keyCursor(next) };
}

/* The schemas of requests and answers about all keys of a policy. */

/** The most keys on a page, and how many there are if the request does not say. */
export const MAX_LISTED = 1_000;
const DEFAULT_LISTED = 100;

const { policy } = KeyRequest.entries;
const prefix = v.optional(
  v.pipe(text(MAX_KEY_BYTES), v.description("Only keys that begin with it, compared byte by byte.")),
);
const cursor = v.optional(
  v.pipe(
    v.string("the cursor of an answer"),
    v.description("The `cursor` of the page before; absent: the first page."),
  ),
);

const KeyCountRequest = table({ policy, prefix, cursor });

export const KeyListRequest = table({
  policy,
  prefix,
  cursor,
  limit: v.optional(
    v.pipe(integer(1, MAX_LISTED), v.description("The most keys on the page.")),
    DEFAULT_LISTED,
  ),
});

const figure = (description: string) =>
  v.pipe(v.number(), v.integer(), v.minValue(0), v.description(description));
const next = v.optional(v.pipe(v.string(), v.description("Absent: this was the last page.")));

export const ListedKey = v.object({
  key: v.string(),
  limit: figure("The most units that can be admitted at once."),
  remaining: figure("The largest cost that would pass now."),
  resetAfterMs: figure("How long until the quota is whole again if no other call comes, in milliseconds."),
  outstanding: figure("Units that are held, reserved or leased at this moment."),
  holds: figure("Callers' holds that have not ended."),
  leases: figure("Leases that have not ended."),
});

export const KeyList = v.object({
  keys: v.pipe(
    v.array(ListedKey),
    v.description(
      "Keys of which something is stored. A page may have few or none, and another one after it.",
    ),
  ),
  cursor: next,
});
export type KeyList = Readonly<v.InferOutput<typeof KeyList>>;

export const KeyCount = v.object({
  count: figure("How many keys something is stored of: of the objects that were asked, 256 at most."),
  cursor: next,
});
export type KeyCount = Readonly<v.InferOutput<typeof KeyCount>>;
