/**
 * The ids of claims (holds and leases) as callers know them. An id cannot be guessed, and says which key it is of.
 */
import { fromBase64Url, toBase64Url } from "./base64url.ts";

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
const MOST_PLACE_LENGTH = 864;

/** The parts of an id; `undefined`: the text is not an id of this kind. */
export function readClaimId(
  kind: ClaimKind,
  id: string,
): (ClaimPlace & { readonly secret: string }) | undefined {
  const match = /^([a-z]+)_([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{22})$/.exec(id);
  const [, itsKind, place = "", secret = ""] = match ?? [];
  if (itsKind !== kind || place.length > MOST_PLACE_LENGTH) return undefined;
  const text = fromBase64Url(place) ?? "";
  const slash = text.indexOf("/");
  return slash < 0 ? undefined : { policy: text.slice(0, slash), key: text.slice(slash + 1), secret };
}
