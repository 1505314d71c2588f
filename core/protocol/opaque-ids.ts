/**
 * The ids of claims (holds and leases) as callers know them. An id cannot be guessed, and says which key it is of.
 */

export type ClaimKind = "hold" | "lease";

/** The key that a claim has units of. */
export interface ClaimPlace {
  /** The full name, a region's included. */
  readonly policy: string;
  /** As `normaliseKey` returns it. */
  readonly key: string;
}

/**
 * The id `lease_<policy/key in base64url>.<secret>`. Policy and key can be read in it, since the caller that has the
 * id knows them. The secret makes it valid: the key's object looks for a claim with that secret.
 *
 * @param secret 22 characters of base64url, of which at least 72 bits are random
 */
export function claimId(kind: ClaimKind, { policy, key }: ClaimPlace, secret: string): string {
  return `${kind}_${toBase64Url(`${policy}/${key}`)}.${secret}`;
}

/**
 * The secret with a proof at its end that this deployment made it for this claim. A secret is proven if that changes
 * nothing of it.
 */
export type ProveClaim = (kind: ClaimKind, place: ClaimPlace, secret: string) => string;

/**
 * The longest part of an id that says where to go, in characters of base64url: a policy in a region that is alone, two
 * names of 64 characters, and a key of 512 bytes are 648 bytes.
 */
const MAX_PLACE_LENGTH = 864;

/** The parts of an id; `undefined`: the text is not an id of this kind. */
export function readClaimId(
  kind: ClaimKind,
  id: string,
): (ClaimPlace & { readonly secret: string }) | undefined {
  const match = /^([a-z]+)_([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{22})$/.exec(id);
  const [, itsKind, place = "", secret = ""] = match ?? [];
  if (itsKind !== kind || place.length > MAX_PLACE_LENGTH) return undefined;
  const text = fromBase64Url(place) ?? "";
  const slash = text.indexOf("/");
  return slash < 0 ? undefined : { policy: text.slice(0, slash), key: text.slice(slash + 1), secret };
}

/* Where a list of a policy's keys goes on: a cursor, which callers bring back as they were given it. */

/** A place among all keys of a policy with a number of objects. */
export interface KeyPlace {
  /** The number of the object, from 0. */
  readonly object: number;
  /** Keys of the object after this one; absent: all of them. */
  readonly after?: string;
}

/** The longest cursor: five digits, a slash and a key of 512 bytes are 518 bytes. */
const MAX_LENGTH = 692;

export function keyCursor({ object, after }: KeyPlace): string {
  return toBase64Url(after === undefined ? String(object) : `${object}/${after}`);
}

/** The place of a cursor; `undefined`: it is none, or not of a policy with so many objects. */
export function readKeyCursor(cursor: string, objects: number): KeyPlace | undefined {
  if (cursor.length > MAX_LENGTH || !/^[A-Za-z0-9_-]+$/.test(cursor)) return undefined;
  const [, digits, , after] = /^(0|[1-9]\d{0,4})(\/([^]+))?$/.exec(fromBase64Url(cursor) ?? "") ?? [];
  const object = Number(digits ?? Infinity);
  if (object >= objects) return undefined;
  return after === undefined ? { object } : { object, after };
}

/** Text as base64url of its UTF-8, for what callers are given and bring back. */

function toBase64Url(text: string): string {
  const bytes = new TextEncoder().encode(text);
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The text; `undefined`: it is not base64url, or not of UTF-8. */
function fromBase64Url(encoded: string): string | undefined {
  try {
    const binary = atob(encoded.replaceAll("-", "+").replaceAll("_", "/"));
    return decoder.decode(Uint8Array.from(binary, (character) => character.charCodeAt(0)));
  } catch {
    return undefined;
  }
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
