import type { Policy } from "../../core/policies/policy.ts";

/**
 * The name of the object that holds a key. Never change how names are made: another name is another object, where
 * every key begins as new. No policy that clients use has a slash in its name, so no two policies share an object.
 */
export function objectName({ name, objects }: Policy, key: string): string {
  return objects === "per-key" ? `${name}/key/${key}` : `${name}/shared/${hash(key) % objects}`;
}

/** FNV-1a over UTF-16 units, 32 bits: http://www.isthe.com/chongo/tech/comp/fnv/. Spreads keys, keeps no secrets. */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index);
    value = Math.imul(value ^ (unit & 0xff), 0x01000193);
    value = Math.imul(value ^ (unit >>> 8), 0x01000193);
  }
  return value >>> 0;
}
