/** The names that policies have in regions. */
import type { Policy } from "./policy.ts";

/**
 * A region's copy of the policy `api` is called `api@eu`. By this name objects are found, reservations kept and leases
 * identified, so all these are apart for each region by themselves. No policy of a deployment has an @. For ever.
 */
export const SEPARATOR = "@";
/** What the region goes on with alone, `api@eu/local`. Its name is stored with keys. For ever. */
export const LOCAL = "/local";

/** The name that the deployment gave the policy, for callers. */
export function publicName(name: string): string {
  const end = name.indexOf(SEPARATOR);
  return end < 0 ? name : name.slice(0, end);
}

/** The name of what a region goes on with alone. */
export function localName({ name }: Policy): string {
  return `${name}${LOCAL}`;
}
