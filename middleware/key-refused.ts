/** Keys that callers send and that are none. Not even `onFailure = "open"` lets them go on: then whoever sends one is not limited. */
import { isKeySized, MAX_KEY_BYTES } from "../core/protocol/names.ts";
import { valueOf, type Given } from "./given.ts";

/** A request has a key that is too long, or no text. Other errors about keys are the application's. */
export class KeyRefused extends Error {}

/**
 * The key of this request. An empty one goes on to the limiter, which throws: the application has forgotten something.
 *
 * @throws KeyRefused when it was found in the request, and is longer than a key may be
 */
export async function keyOf<Args extends readonly unknown[]>(
  key: Given<Args, string>,
  args: Args,
): Promise<string> {
  const found = await valueOf(key, args);
  if (typeof key !== "function" || typeof found !== "string" || isKeySized(found)) return found;
  const bytes = new TextEncoder().encode(found).length;
  const size = found.isWellFormed() ? `of ${bytes} bytes` : "with half a character";
  throw new KeyRefused(
    `the key of this request is a text ${size}: must be 1 to ${MAX_KEY_BYTES} bytes of UTF-8`,
  );
}
