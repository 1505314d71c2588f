/** The ids of holds and leases as callers have them: nobody can guess one, and it says where to go. */

export type ClaimKind = "hold" | "lease";

export interface ClaimPlace {
  readonly policy: string;
  /** Normalised. */
  readonly key: string;
}

/**
 * `lease_<policy/key in base64url>.<128 random bits>`. Policy and key are in the clear, for whoever has the id knows
 * them; what makes it valid is the random part, which the key's object compares with the ones it gave out.
 */
export function claimId(kind: ClaimKind, { policy, key }: ClaimPlace, secret: string): string {
  const bytes = new TextEncoder().encode(`${policy}/${key}`);
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return `${kind}_${btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}.${secret}`;
}

/** The parts of an id; `undefined`: it is none of this kind. */
export function readClaimId(
  kind: ClaimKind,
  id: string,
): (ClaimPlace & { readonly secret: string }) | undefined {
  const match = /^([a-z]+)_([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{22})$/.exec(id);
  const [, itsKind, place = "", secret = ""] = match ?? [];
  if (itsKind !== kind) return undefined;
  try {
    const binary = atob(place.replaceAll("-", "+").replaceAll("_", "/"));
    const text = decoder.decode(Uint8Array.from(binary, (character) => character.charCodeAt(0)));
    const slash = text.indexOf("/");
    return slash < 0 ? undefined : { policy: text.slice(0, slash), key: text.slice(slash + 1), secret };
  } catch {
    return undefined;
  }
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
