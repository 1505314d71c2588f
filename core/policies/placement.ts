/** Where Cloudflare places a policy's objects: https://developers.cloudflare.com/durable-objects/reference/data-location/ */
import { violation } from "../validation.ts";

/** Where an object is to be near, when it is made. Later it stays where it is. */
export const LOCATION_HINTS = ["wnam", "enam", "sam", "weur", "eeur", "apac", "oc", "afr", "me"] as const;
export type LocationHint = (typeof LOCATION_HINTS)[number];

/** What an object and all that it stores never leave. It is a part of the object's id. */
export const JURISDICTIONS = ["eu", "us", "fedramp", "fedramp-high"] as const;
export type Jurisdiction = (typeof JURISDICTIONS)[number];

/** What a policy says of the place of its objects. */
export interface Placement {
  readonly locationHint?: LocationHint;
  readonly jurisdiction?: Jurisdiction;
}

/** The placement, unless it contradicts itself or the pool, whose regions say where their objects are. */
export function placementOf(
  { locationHint, jurisdiction }: { [Field in keyof Placement]: Placement[Field] | undefined },
  pool: string | undefined,
): Placement | { readonly problems: readonly string[] } {
  const given = { ...(locationHint && { locationHint }), ...(jurisdiction && { jurisdiction }) };
  const [[field, value] = []] = Object.entries(given);
  if (field !== undefined && pool !== undefined)
    return {
      problems: [violation([field], value, "left out, or without a pool: regions have a locationHint")],
    };
  if (locationHint !== undefined && jurisdiction !== undefined)
    return {
      problems: [
        violation(["locationHint"], locationHint, "left out, or without a jurisdiction, which says where"),
      ],
    };
  return given;
}
