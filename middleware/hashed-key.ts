/** Keys of limits for requests that carry a credential: it must neither be stored with the counts nor be shown. */

/** A shorter secret could be found by trying, and with it the credentials behind stored keys. */
const MIN_SECRET_LENGTH = 16;
/** 128 bits: no two credentials of a deployment share a key. */
const HASH_BYTES = 16;

/** The last secret, imported. A promise of another request must not be awaited in a worker, so it is not one. */
let imported: { readonly secret: string; readonly key: CryptoKey } | undefined;

/**
 * The key of a limit for a credential: `key_` and 32 hexadecimal digits of its HMAC-SHA-256. The same credential and
 * secret make the same key. `Bearer ` before a credential does not count.
 *
 * @param credential a header's value; empty or missing: the key is `otherwise`
 * @param secret of at least 16 characters. With another one every quota begins anew
 * @param otherwise the key that all requests without a credential share
 * @throws TypeError if the secret is too short or missing
 */
export async function hashedKey(
  credential: string | readonly string[] | null | undefined,
  secret: string | undefined,
  otherwise = "anonymous",
): Promise<string> {
  if (typeof secret !== "string" || secret.length < MIN_SECRET_LENGTH) {
    // Not the value: errors are logged.
    const given = typeof secret === "string" ? `has ${secret.length} characters` : "is missing";
    throw new TypeError(`secret ${given}: must be a text of at least ${MIN_SECRET_LENGTH} characters`);
  }
  const text = String(credential ?? "").replace(/^Bearer(?:\s+|$)/i, "");
  if (text === "") return otherwise;
  const encoder = new TextEncoder();
  let key = imported?.secret === secret ? imported.key : undefined;
  if (key === undefined) {
    const algorithm = { name: "HMAC", hash: "SHA-256" };
    key = await crypto.subtle.importKey("raw", encoder.encode(secret), algorithm, false, ["sign"]);
    imported = { secret, key };
  }
  const hash = new Uint8Array(await crypto.subtle.sign("HMAC", key, encoder.encode(text)));
  const digits = [...hash.subarray(0, HASH_BYTES)].map((byte) => byte.toString(16).padStart(2, "0"));
  return `key_${digits.join("")}`;
}
