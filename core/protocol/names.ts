import type { Layout, Policy } from "../policies/policy.ts";

/**
 * The name of the object that holds a key. Never change how names are made: another name is another object, where
 * every key begins as new. Policies' names have no slash, so no two policies share an object.
 */
export function objectName({ name, objects }: Pick<Policy, "name" | "objects">, key: string): string {
  return objects === "per-key" ? `${name}/key/${key}` : sharedObjectName({ name }, hash(key) % objects);
}

/** The name of the object that has, in a region, what this home object has. No home object has such a name. */
export function regionalName(home: string, region: string): string {
  const end = home.indexOf("/");
  return `${home.slice(0, end)}/region/${region}${home.slice(end)}`;
}

/** The name of one of the objects that share all keys of a policy, from 0. */
export function sharedObjectName({ name }: Pick<Policy, "name">, index: number): string {
  return `${name}/shared/${index}`;
}

/** The objects that may have the key: of the present layout, then of earlier ones, the latest first. */
export function objectNames(policy: Policy, key: string): readonly string[] {
  return namesBy(layoutsOf(policy), policy, key);
}

export function namesBy(
  layouts: readonly Layout[],
  { name }: Pick<Policy, "name">,
  key: string,
): readonly string[] {
  const names = layouts.map((objects) => objectName({ name, objects }, key));
  return names.length === 1 ? names : [...new Set(names)];
}

export function layoutsOf({ objects, objectsBefore = [] }: Policy): readonly Layout[] {
  return [objects, ...objectsBefore];
}

/** The most numbered objects of a policy in any of its layouts. */
export function sharedObjects(policy: Policy): number {
  return Math.max(...layoutsOf(policy).map((layout) => (layout === "per-key" ? 0 : layout)));
}

/** FNV-1a over UTF-16 units, 32 bits (http://www.isthe.com/chongo/tech/comp/fnv/). Never change it. */
export function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index);
    value = Math.imul(value ^ (unit & 0xff), 0x01000193);
    value = Math.imul(value ^ (unit >>> 8), 0x01000193);
  }
  return value >>> 0;
}

/*
 * Idempotency keys belong to their caller: objects and pools know them with the token's name or the binding's props in
 * front. Stored: never change.
 */

/** Callers' names are JSON text without control characters, so each pair of caller and key is unique. */
const MARK = "\u0001";
/** Sorts right after everything that begins with `MARK`. */
const AFTER_MARK = "\u0002";

/** The idempotency key with its caller. Without a caller (an embedded client) it is unchanged. */
export function ownKey(caller: string | undefined, idempotencyKey: string): string {
  return caller === undefined ? idempotencyKey : `${MARK}${caller}${MARK}${idempotencyKey}`;
}

/** The idempotency key as stored without its caller; `undefined`: none, or equal to another caller's own key. */
export function sharedKey(own: string): string | undefined {
  const written = writtenKey(own);
  return written === own || written.startsWith(MARK) ? undefined : written;
}

export function writtenKey(own: string): string {
  const end = own.startsWith(MARK) ? own.indexOf(MARK, 1) : -1;
  return end < 0 ? own : own.slice(end + 1);
}

/** The caller of an own key, as written before the key. */
export function callerIn(own: string): string | undefined {
  return own.startsWith(MARK) ? own.slice(0, own.indexOf(MARK, 1)) : undefined;
}

/** All idempotency keys of an own key's caller: from the first (included) to the second (not included). */
export type KeyRange = readonly [from: string, to: string];

export function rangeOf(own: string): KeyRange {
  const end = own.startsWith(MARK) ? own.indexOf(MARK, 1) : -1;
  // Those without a caller, and those of older versions.
  if (end < 0) return [AFTER_MARK, "\u{10FFFF}"];
  const caller = own.slice(0, end);
  return [`${caller}${MARK}`, `${caller}${AFTER_MARK}`];
}

/** The characters of an id that mark who made it: 24 bits. Of the other 108 bits 72 or more are unguessable. */
const ID_MARK = 4;
const BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/** The id with the mark of another one. */
export function withMark(id: string, of: string): string {
  return markOf(of) + id.slice(ID_MARK);
}

/** The mark of an id: its caller's, or of a lease the name of the holder that made it. */
export function markOf(id: string): string {
  // The name of a client's holder has its caller in front.
  return writtenKey(id).slice(0, ID_MARK);
}

/** All hold ids of a caller have the same first characters, so the stored ends of its holds can be counted. */
export function ownHoldId(caller: string | undefined, id: string): string {
  const mark = hash(caller ?? "");
  let own = "";
  for (let digit = 0; digit < ID_MARK; digit += 1) own += BASE64URL[(mark >>> (6 * digit)) & 63] ?? "";
  return own + id.slice(ID_MARK);
}

/** The ids of all holds of the caller that held this one. */
export function rangeOfEnds(holdId: string): KeyRange {
  const mark = markOf(holdId);
  // No character of an id sorts after this one.
  return [mark, `${mark}\u007f`];
}

export const MAX_KEY_BYTES = 512;

/** Whether a text has at most this many bytes of UTF-8. Lone surrogates have no UTF-8. */
export function isKeySized(text: string, maxBytes = MAX_KEY_BYTES): boolean {
  // A UTF-16 unit takes at most three bytes, so short text need not be encoded.
  if (text.length > maxBytes || !text.isWellFormed()) return false;
  return text.length * 3 <= maxBytes || new TextEncoder().encode(text).length <= maxBytes;
}

export type ClaimKind = "hold" | "lease";

export interface ClaimPlace {
  /** The full name, including a region's. */
  readonly policy: string;
  readonly key: string;
}

/**
 * The id `lease_<policy/key in base64url>.<secret>`. The secret, 22 characters of base64url with at least 72 random
 * bits, makes it valid. Policy and key are readable: a caller with the id knows them.
 */
export function claimId(kind: ClaimKind, { policy, key }: ClaimPlace, secret: string): string {
  const place = `${policy}/${key}`;
  if (place !== lastPlace.text) lastPlace = { text: place, encoded: toBase64Url(place) };
  return `${kind}_${lastPlace.encoded}.${secret}`;
}

/** A hot key makes one id after another. */
let lastPlace = { text: "", encoded: "" };

/** The secret, ending in a proof that this deployment made it for this claim. It leaves a proven secret unchanged. */
export type ProveClaim = (kind: ClaimKind, place: ClaimPlace, secret: string) => string;

/** Of base64url: a region's policy (two names of 64 characters) and a key of 512 bytes are 648 bytes. */
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

/** The secret of an id that is known to be one. */
export function secretOf(id: string): string {
  return id.slice(id.lastIndexOf(".") + 1);
}

/** The cursor of a list of keys of a policy with several objects. */
export interface KeyPlace {
  readonly object: number;
  readonly after?: string;
}

/** The longest cursor: five digits, a slash and a key of 512 bytes are 518 bytes. */
const MAX_LENGTH = 692;

export function keyCursor({ object, after }: KeyPlace): string {
  return toBase64Url(after === undefined ? String(object) : `${object}/${after}`);
}

/** The place of a cursor; `undefined`: it is invalid, or of a policy with more objects. */
export function readKeyCursor(cursor: string, objects: number): KeyPlace | undefined {
  if (cursor.length > MAX_LENGTH || !/^[A-Za-z0-9_-]+$/.test(cursor)) return undefined;
  const [, digits, , after] = /^(0|[1-9]\d{0,4})(\/([^]+))?$/.exec(fromBase64Url(cursor) ?? "") ?? [];
  const object = Number(digits ?? Infinity);
  if (object >= objects) return undefined;
  return after === undefined ? { object } : { object, after };
}

function toBase64Url(text: string): string {
  const binary = ASCII.test(text)
    ? text
    : Array.from(encoder.encode(text), (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The text; `undefined`: it is not base64url, or not of UTF-8. */
function fromBase64Url(encoded: string): string | undefined {
  try {
    const binary = atob(encoded.replaceAll("-", "+").replaceAll("_", "/"));
    if (ASCII.test(binary)) return binary;
    return decoder.decode(Uint8Array.from(binary, (character) => character.charCodeAt(0)));
  } catch {
    return undefined;
  }
}

/** Text whose UTF-8 is itself: most names and keys. */
const ASCII = /^[\0-\x7f]*$/;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
