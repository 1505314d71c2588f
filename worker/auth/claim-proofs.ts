import { blake2s } from "@noble/hashes/blake2.js";
import type { ClaimKind, ClaimPlace, ProveClaim } from "../../core/protocol/names.ts";

/** So many characters of base64url, 36 bits, at the end of a claim's secret prove it. Of these a guess hits one in 2^36. */
const PROOF_LENGTH = 6;
const BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/**
 * Proves secrets of claims by a keyed hash (BLAKE2s, RFC 7693) of the claim's kind, its place and the rest of the secret.
 * The secret keeps its length and its characters, so versions that know no proofs read it as they did.
 *
 * @param secret what only the deployment knows: the text of API_TOKENS. When that changes, earlier ids are not proven any
 * more; they go on working, as ids of versions before do
 */
export function claimProofs(secret: string): ProveClaim {
  const key = blake2s(new TextEncoder().encode(secret));
  return (kind: ClaimKind, { policy, key: of }: ClaimPlace, id: string): string => {
    const random = id.slice(0, -PROOF_LENGTH);
    // No name and no secret has a control character, so no two claims are the same text.
    const text = new TextEncoder().encode(`${kind}\u0001${policy}\u0001${random}\u0001${of}`);
    const digest = blake2s(text, { key, dkLen: PROOF_LENGTH });
    return random + Array.from(digest, (byte) => BASE64URL[byte & 63]).join("");
  };
}
