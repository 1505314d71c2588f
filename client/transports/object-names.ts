import type { HeldPolicy } from "../../core/policies/held-policy.ts";
import { hash } from "../../core/protocol/hash.ts";

/**
 * The name of the object that holds a key. Never change how names are made: another name is another object, where
 * every key begins as new. No policy that clients use has a slash in its name, so no two policies share an object.
 */
export function objectName({ name, objects }: HeldPolicy, key: string): string {
  return objects === "per-key" ? `${name}/key/${key}` : sharedObjectName({ name }, hash(key) % objects);
}

/** The name of one of the objects that share all keys of a policy, from 0. */
export function sharedObjectName({ name }: Pick<HeldPolicy, "name">, index: number): string {
  return `${name}/shared/${index}`;
}
