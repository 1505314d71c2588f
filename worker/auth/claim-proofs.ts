import { blake2s } from "@noble/hashes/blake2.js";
import type { ClaimKind, ClaimPlace, ProveClaim } from "../../core/protocol/names.ts";

/** Base64url characters (36 bits) that prove a claim's secret. A guess succeeds once in 2^36. */
const PROOF_LENGTH = 6;
const BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/**
 * Proves secrets of claims by a keyed hash (BLAKE2s, RFC 7693) without changing their length and characters,
 * which older versions read.
 * @param secret the text of API_TOKENS. After it changes, earlier ids work unproven
 */
export function claimProofs(secret: string): ProveClaim {
  const key = blake2s(encoder.encode(secret));
  // A hash that has taken in more than its key has compressed that: copies of it do so no more.
  const begun = (kind: ClaimKind) =>
    blake2s.create({ key, dkLen: PROOF_LENGTH }).update(encoder.encode(`${kind}\u0001`));
  const hashes = { hold: begun("hold"), lease: begun("lease") };
  return (kind: ClaimKind, { policy, key: of }: ClaimPlace, id: string): string => {
    const random = id.slice(0, -PROOF_LENGTH);
    // No name and no secret has a control character, so no two claims have the same text.
    const text = encoder.encode(`${policy}\u0001${random}\u0001${of}`);
    let proven = random;
    for (const byte of hashes[kind].clone().update(text).digest()) proven += BASE64URL[byte & 63] ?? "";
    return proven;
  };
}

const encoder = new TextEncoder();
