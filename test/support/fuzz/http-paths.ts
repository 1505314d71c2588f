/** Paths: texts written in an address, and broken addresses. */
import { pick, whole } from "../random.ts";

type Random = () => number;

/** A text in an address, as JavaScript encodes it, or fully encoded. Sometimes an escape is broken. */
export function percentEncoded(random: Random, text: string): string {
  const kind = random();
  if (kind < 0.04) return everyByte(text);
  if (kind < 0.07) return `${encodeURIComponent(text.toWellFormed())}${pick(random, BROKEN_ESCAPES)}`;
  return encodeURIComponent(text.toWellFormed());
}

const BROKEN_ESCAPES = [
  "%",
  "%f",
  "%ff",
  "%E0%A4%A",
  "%zz",
  "%00",
  "%2e%2e",
  "%C0%AF",
  "%ED%A0%80",
  "+",
  ";a=b",
];

function everyByte(text: string): string {
  return Buffer.from(text).toString("hex").replaceAll(/../g, "%$&");
}

const WHOLE_PATHS = [
  "/",
  "//",
  "///v1/limit",
  "/v1",
  "/v1/",
  "/v2/limit",
  "/V1/LIMIT",
  "/v1/limit%00",
  "/v1/policies/slow/keys/",
  "/v1/policies//keys/",
  "/v1/policies/slow/keys/..",
  "/v1/policies/%2e%2e/keys/a",
  "/v1/leases//renew",
  "/v1/leases/__proto__/renew",
  "/..%2f..%2fetc/passwd",
  "/.well-known/openapi",
  "/favicon.ico",
  "/:policy",
  "/*",
  `/${"a".repeat(4_000)}`,
  `/${"a/".repeat(2_000)}`,
  `/v1/policies/slow/keys/${"%F0%9F%94%92".repeat(500)}`,
];

/** The path with a change, or another. It is still one that a request may have. */
export function oddPath(random: Random, path: string): string {
  const at = whole(random, path.length);
  switch (whole(random, 8)) {
    case 0:
      return `${path}/`;
    case 1:
      return `/${path}`;
    case 2:
      return path.replace(
        "/v1",
        pick(random, ["/v1/.", "/v1/../v1", "/./v1", "/v1//", "/v1;a=b", "/%76%31"]),
      );
    case 3:
      return `${path.slice(0, at)}/${path.slice(at)}`.replace(/^[^/]/, "/");
    case 4:
      return `/${path.slice(1, at)}${pick(random, ["%", "%00", "%2F", "..", "\\", "~", "%25", "@", ":", "[", "|"])}${path.slice(Math.max(1, at))}`;
    case 5:
      return `${path}/${pick(random, ["settle", "renew", "keys", "a", ".."])}`;
    default:
      return pick(random, WHOLE_PATHS);
  }
}
