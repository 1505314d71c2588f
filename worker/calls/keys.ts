/** The calls about all keys of a policy: list them, and count them. */
import type { SharedPolicy } from "../../client/key-lists.ts";
import type { LimiterClient } from "../../client/limiter-client.ts";
import { keyCursor, readKeyCursor, type KeyPlace } from "../../core/protocol/key-cursors.ts";
import { sharedObjects } from "../../core/protocol/object-names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { keyProblem, type Principal } from "../auth/tokens.ts";
import { KeyCountRequest, KeyListRequest, type KeyCount, type KeyList } from "./key-requests.ts";
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
