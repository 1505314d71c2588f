import type { Policy } from "../../core/policies/policy.ts";

/**
 * The name of the object that holds a key. Never change how names are made: another name is another object, where
 * every key begins as new. The name of a policy that an object has is free of slashes, so no two policies share a
 * name.
 */
export function objectName({ name, objects }: Policy, key: string): string {
  return objects === "per-key" ? `${name}/key/${key}` : `${name}/shared/${hash(key) % objects}`;
}

/**
 * FNV-1a over UTF-16 units, 32 bits: http://www.isthe.com/chongo/tech/comp/fnv/. It spreads keys evenly; it is not
 * for secrets.
 */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index);
    value = Math.imul(value ^ (unit & 0xff), 0x01000193);
    value = Math.imul(value ^ (unit >>> 8), 0x01000193);
  }
  return value >>> 0;
}
