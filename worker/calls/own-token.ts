/** What the token of the caller may do. */
import type { Principal } from "../auth/tokens.ts";

/** The token's name, and what it may do. Absent: every policy, every key. */
export function describeToken({ id, scopes, policies, keyPrefix }: Principal): object {
  const { token: name } = JSON.parse(id) as { readonly token: string };
  return {
    name,
    scopes,
    ...(policies !== undefined && { policies }),
    ...(keyPrefix !== undefined && { keyPrefix }),
  };
}
