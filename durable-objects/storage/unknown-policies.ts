/**
 * What is stored under a policy that this version does not know stays for so long after it was to be whole, in
 * milliseconds: a version that knows the policy may come back. Then it is forgotten, so storage does not grow for ever.
 */
export const UNKNOWN_KEPT_MS = 30 * 24 * 60 * 60 * 1_000;
