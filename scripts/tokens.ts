/** Makes tokens. A token is random, is shown once, and is kept only as a hash. */
import { createHash, randomBytes } from "node:crypto";

/** One entry of the secret API_TOKENS: docs/deploying.md has the meaning of its fields. */
export interface TokenEntry {
  readonly name: string;
  /** Of the whole token, in hexadecimal. */
  readonly sha256: string;
  readonly scopes: readonly string[];
  readonly policies?: readonly string[];
  readonly keyPrefix?: string;
  readonly maxCallsAtOnce?: number;
  readonly maxNewKeysPerSecond?: number;
}

/** A new token of 256 random bits, and its entry for API_TOKENS. */
export function makeToken(fields: Omit<TokenEntry, "sha256">): { token: string; entry: TokenEntry } {
  const token = `weir_${randomBytes(32).toString("base64url")}`;
  const { name, ...rest } = fields;
  return { token, entry: { name, sha256: createHash("sha256").update(token).digest("hex"), ...rest } };
}
