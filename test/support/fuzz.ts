/** Random requests: valid HTTP with any content. The limiter has to answer each of them. */
import { TOKENS } from "./fixtures.ts";

export interface FuzzedRequest {
  readonly bytes: Buffer;
  readonly isHead: boolean;
  /** The client leaves before it has sent the whole body that it announced. */
  readonly isBrokenOff: boolean;
}

type Random = () => number;

const STRINGS = [
  "",
  "a",
  "slow",
  "api",
  "export",
  "mixed",
  "several",
  "log",
  "idle",
  "__proto__",
  "constructor",
  "toString",
  "hasOwnProperty",
  "nowhere",
  "\u0000",
  "a\u0000b",
  "é",
  "e\u0301",
  "\u202eabc",
  "\u{1f512}",
  "\ud800",
  "\udfff\ud800",
  "\ufeff",
  "k".repeat(512),
  "k".repeat(513),
  "é".repeat(256),
  "é".repeat(257),
  "../..",
  "a/b",
  "%2F",
  "' OR 1=1 --",
  "<script>",
  "${jndi:ldap://x}",
  "null",
  "1e400",
  "\\",
  '"',
  "\n",
  "::1",
  "192.0.2.1",
];
const NUMBERS = [
  "0",
  "-0",
  "1",
  "-1",
  "1.5",
  "1e9",
  "1000000001",
  "1e400",
  "-1e400",
  "9007199254740992",
  "0.1e1",
  "1e-7",
  "123456789012345678901234567890",
];
const FIELDS = [
  "policy",
  "key",
  "cost",
  "units",
  "used",
  "ttlMs",
  "waitMs",
  "checks",
  "id",
  "tokens",
  "requests",
  "idempotencyKey",
  "__proto__",
  "constructor",
  "Cost",
  "costs",
  "",
  "key\u0000",
];
const METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST", "TRACE", "PROPFIND"];
const CONTENT_TYPES = [
  "text/plain",
  "application/x-www-form-urlencoded",
  "application/json;",
  "application/jsonx",
  "",
  "multipart/form-data; boundary=x",
  "application/json; charset=utf-16",
];
const AUTHORIZATIONS = [
  "",
  "Bearer",
  "Bearer ",
  "Basic Zm9v",
  `bearer  ${TOKENS.full}`,
  "Bearer weir_guess",
  `Bearer ${TOKENS.limit}`,
  `Bearer ${TOKENS.tenant}`,
  `Bearer ${"x".repeat(3_000)}`,
  "Bearer a b c",
  "Bearer \u00ff\u00fe",
];
const PATHS = [
  "/",
  "//",
  "/v1",
  "/v1/limit/",
  "/v1/limit%00",
  "/v2/limit",
  "/openapi.json",
  "/healthz",
  "/v1/policies",
  "/v1/policies/export/keys/a?waitFor=idle&waitMs=1",
  "/v1/policies/export/keys/a?waitFor=x&waitMs=-1",
  "/v1/leases/socket",
  "/v1/leases/socket?policy=export&key=a&units=%00",
  "/v1/leases/lease_x.y",
  "/v1/leases/lease_c2xvdy9h.AAAAAAAAAAAAAAAAAAAAAA",
  "/v1/leases/%ff",
  "/v1/leases/__proto__/renew",
  "/v1/holds/hold_c2xvdy9h.AAAAAAAAAAAAAAAAAAAAAA",
  "/v1/holds/hold_____.AAAAAAAAAAAAAAAAAAAAAA",
  "/v1/policies/slow/keys/",
  "/v1/policies/slow/keys/%",
  "/v1/policies/slow/keys/%ff",
  "/v1/policies/slow/keys/%E0%A4%A",
  "/v1/policies/%2e%2e/keys/a",
  "/v1/policies/slow/keys/..",
  "/v1/policies/__proto__/keys/__proto__",
  "/v1/policies/slow/keys/a%00b",
  "/v1/policies/slow/keys/%F0%9F%94%92",
  "/v1/limit?deny=429&deny=430",
  "/v1/limit?deny=",
  "/v1/limit?%ff=%ff",
  "/v1/limit?deny=__proto__",
  `/${"a".repeat(4_000)}`,
  "/v1/policies/address/keys/::1",
  "/v1/policies/address/keys/zzz",
];

const pick = <Item>(random: Random, items: readonly Item[]): Item =>
  items[Math.floor(random() * items.length)] as Item;

function value(random: Random, depth = 0): string {
  const kind = random();
  if (kind < 0.45) return JSON.stringify(pick(random, STRINGS));
  if (kind < 0.7) return pick(random, NUMBERS);
  if (kind < 0.8) return pick(random, ["null", "true", "false", "{}", "[]"]);
  if (depth > 3) return "1";
  if (kind < 0.9) return `[${value(random, depth + 1)},${value(random, depth + 1)}]`;
  return `{${JSON.stringify(pick(random, FIELDS))}:${value(random, depth + 1)}}`;
}

/** JSON text whose fields may be missing, wrong, unknown or given twice. */
function fields(random: Random): string {
  const given = [
    `"policy":${random() < 0.7 ? pick(random, ['"slow"', '"slow"', '"export"', '"mixed"']) : value(random)}`,
    `"key":${random() < 0.4 ? '"fuzz"' : value(random)}`,
  ];
  while (random() < 0.5) given.push(`${JSON.stringify(pick(random, FIELDS))}:${value(random)}`);
  return `{${given.filter(() => random() < 0.95).join(",")}}`;
}

const POSTS = [
  "/v1/limit",
  "/v1/limit",
  "/v1/limit?deny=429",
  "/v1/refund",
  "/v1/limit/all",
  "/v1/holds",
  "/v1/holds/hold_c2xvdy9mdXp6.AAAAAAAAAAAAAAAAAAAAAA/settle",
  "/v1/leases",
  "/v1/leases/lease_ZXhwb3J0L2Z1eno.AAAAAAAAAAAAAAAAAAAAAA/renew",
];

/** The body of a call on several keys, whose checks mostly look right. */
function checks(random: Random): string {
  const count = random() < 0.1 ? 17 : Math.floor(random() * 4);
  return `{"checks":[${Array.from({ length: count }, () => fields(random)).join(",")}]}`;
}

function body(random: Random): Buffer {
  const kind = random();
  if (kind < 0.1) return Buffer.from(checks(random));
  if (kind < 0.6) return Buffer.from(fields(random));
  if (kind < 0.7) return Buffer.from(fields(random).slice(0, Math.floor(random() * 60)));
  if (kind < 0.78) return Buffer.from(value(random));
  if (kind < 0.84)
    return Buffer.from(Array.from({ length: Math.floor(random() * 80) }, () => Math.floor(random() * 256)));
  if (kind < 0.88) {
    const depth = Math.floor(random() * 8_000);
    return Buffer.from(
      pick(random, ["[".repeat(depth), "[".repeat(depth) + "]".repeat(depth), '{"a":'.repeat(depth / 3)]),
    );
  }
  if (kind < 0.92) return Buffer.from(fields(random).padEnd(16_380 + Math.floor(random() * 10), " "));
  if (kind < 0.96) return Buffer.from(`{"policy":"slow","key":"\xff\xc0\xaf"}`, "latin1");
  return Buffer.alloc(0);
}

/** The next request. One seed makes one sequence. */
export function fuzzedRequest(random: Random): FuzzedRequest {
  const isPlain = random() < 0.75;
  const method = isPlain || random() < 0.4 ? "POST" : pick(random, METHODS);
  const path = isPlain ? pick(random, POSTS) : pick(random, PATHS);
  const authorization = random() < 0.85 ? `Bearer ${TOKENS.full}` : pick(random, AUTHORIZATIONS);
  const contentType = random() < 0.9 ? "application/json" : pick(random, CONTENT_TYPES);
  const hasBody = method !== "GET" && method !== "HEAD" && method !== "TRACE";
  const payload = hasBody ? body(random) : Buffer.alloc(0);
  const isChunked = hasBody && random() < 0.1;
  const isBrokenOff = hasBody && payload.length > 1 && random() < 0.01;
  const lines = [`${method} ${path} HTTP/1.1`, "Host: weir.test"];
  if (authorization !== "") lines.push(`Authorization: ${authorization}`);
  if (hasBody && contentType !== "") lines.push(`Content-Type: ${contentType}`);
  if (isChunked) lines.push("Transfer-Encoding: chunked");
  else if (hasBody) lines.push(`Content-Length: ${payload.length}`);
  const head = Buffer.from(`${lines.join("\r\n")}\r\n\r\n`, "latin1");
  const sent = isBrokenOff ? payload.subarray(0, payload.length >> 1) : payload;
  const end = isBrokenOff ? "" : payload.length === 0 ? "0\r\n\r\n" : "\r\n0\r\n\r\n";
  const chunk = payload.length === 0 ? "" : `${payload.length.toString(16)}\r\n`;
  const framed = isChunked ? Buffer.concat([Buffer.from(chunk), sent, Buffer.from(end)]) : sent;
  return { bytes: Buffer.concat([head, framed]), isHead: method === "HEAD", isBrokenOff };
}
