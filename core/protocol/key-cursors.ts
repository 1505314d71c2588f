/** Where a list of a policy's keys goes on: a cursor, which callers bring back as they were given it. */
import { fromBase64Url, toBase64Url } from "./base64url.ts";

/** A place among all keys of a policy with a number of objects. */
export interface KeyPlace {
  /** The number of the object, from 0. */
  readonly object: number;
  /** Keys of the object after this one; absent: all of them. */
  readonly after?: string;
}

/** The longest cursor: five digits, a slash and a key of 512 bytes are 518 bytes. */
const MOST_LENGTH = 692;

export function keyCursor({ object, after }: KeyPlace): string {
  return toBase64Url(after === undefined ? String(object) : `${object}/${after}`);
}

/** The place of a cursor; `undefined`: it is none, or not of a policy with so many objects. */
export function readKeyCursor(cursor: string, objects: number): KeyPlace | undefined {
  if (cursor.length > MOST_LENGTH || !/^[A-Za-z0-9_-]+$/.test(cursor)) return undefined;
  const [, digits, , after] = /^(0|[1-9]\d{0,4})(\/([^]+))?$/.exec(fromBase64Url(cursor) ?? "") ?? [];
  const object = Number(digits ?? Infinity);
  if (object >= objects) return undefined;
  return after === undefined ? { object } : { object, after };
}
