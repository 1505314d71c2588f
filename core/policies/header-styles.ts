/**
 * The styles in which the headers of decisions tell of limits: draft-ietf-httpapi-ratelimit-headers in two versions,
 * and `X-RateLimit-*`, whose reset is an instant in Unix seconds (`x-ratelimit`) or the seconds until then
 * (`x-ratelimit-delta`). Styles of one line have headers in common, so a policy has at most one of each line.
 */
const STYLES = [
  ["draft-11", "draft-7"],
  ["x-ratelimit", "x-ratelimit-delta"],
] as const;

/** A style of headers. */
export type HeaderStyle = (typeof STYLES)[number][number];

/** What errors say is allowed. */
export const HEADERS_ALLOWED = `${STYLES.flat()
  .map((style) => JSON.stringify(style))
  .join(", ")}, or a list of one of the first two and one of the last two`;

/** Reads one style, or a list of them; `undefined`: it is not allowed. */
export function parseHeaders(value: unknown): readonly HeaderStyle[] | undefined {
  const given: readonly unknown[] = Array.isArray(value) ? value : [value];
  const found = STYLES.map((line): readonly HeaderStyle[] => line.filter((style) => given.includes(style)));
  const styles = found.flat();
  const isAllowed = given.length > 0 && found.every(({ length }) => length <= 1);
  return isAllowed && styles.length === given.length ? styles : undefined;
}
