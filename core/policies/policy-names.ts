/** The names of the copies that a policy with a pool has: one for each region. */
import type { Policy } from "./policy.ts";

/**
 * A region's copy of the policy `api` is called `api@eu`. The copy's name is part of the names of objects, of
 * reservations and of ids of leases, so these differ from region to region. No policy of a deployment has an @ in its
 * name. The separator is stored: never change it.
 */
export const SEPARATOR = "@";
/**
 * Ends the name of the policy that a region goes on with alone when its pool does not answer: `api@eu/local`. The
 * name is stored with keys: never change it.
 */
export const LOCAL = "/local";

/** Ends the name of a policy's candidate. It is part of the names of objects, and stored with keys: never change it. */
const CANDIDATE = "~candidate";

/** The name under which a policy's candidate decides: no policy of a deployment has a ~ in its name. */
export function candidateName(policy: string): string {
  return `${policy}${CANDIDATE}`;
}

/** The name that the deployment gave the policy, and that callers know. */
export function publicName(name: string): string {
  const end = name.indexOf(SEPARATOR);
  return end < 0 ? name : name.slice(0, end);
}

/** The name of the policy that a region goes on with alone, when its pool does not answer. */
export function localName({ name }: Policy): string {
  return `${name}${LOCAL}`;
}
