import type { Layout } from "../policies/placement.ts";
import type { Policy } from "../policies/policy.ts";

/**
 * The name of the object that holds a key. Never change how names are made: another name is another object, where
 * every key begins as new. No policy that clients use has a slash in its name, so no two policies share an object.
 */
export function objectName({ name, objects }: Pick<Policy, "name" | "objects">, key: string): string {
  return objects === "per-key" ? `${name}/key/${key}` : sharedObjectName({ name }, hash(key) % objects);
}

/** The name of one of the objects that share all keys of a policy, from 0. */
export function sharedObjectName({ name }: Pick<Policy, "name">, index: number): string {
  return `${name}/shared/${index}`;
}

/**
 * The names of the objects that may have a key: first the one that is to have it, then those of layouts before, the
 * last one first. Many keys are in the same object by two layouts.
 */
export function objectNames(policy: Policy, key: string): readonly string[] {
  return namesBy(layoutsOf(policy), policy, key);
}

/** The same by these layouts. */
export function namesBy(
  layouts: readonly Layout[],
  { name }: Pick<Policy, "name">,
  key: string,
): readonly string[] {
  const names = layouts.map((objects) => objectName({ name, objects }, key));
  return names.length === 1 ? names : [...new Set(names)];
}

/** The layouts of a policy, today's first. */
export function layoutsOf({ objects, objectsBefore = [] }: Policy): readonly Layout[] {
  return [objects, ...objectsBefore];
}

/** Of how many objects with numbers a policy's keys may be in one, by any of its layouts. */
export function sharedObjects(policy: Policy): number {
  return Math.max(...layoutsOf(policy).map((layout) => (layout === "per-key" ? 0 : layout)));
}

/** FNV-1a over UTF-16 units, 32 bits: http://www.isthe.com/chongo/tech/comp/fnv/. Spreads keys, keeps no secrets. Names of objects are made with it: never change it. */
export function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index);
    value = Math.imul(value ^ (unit & 0xff), 0x01000193);
    value = Math.imul(value ^ (unit >>> 8), 0x01000193);
  }
  return value >>> 0;
}
