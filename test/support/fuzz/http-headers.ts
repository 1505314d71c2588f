/** Headers of requests: required ones, odd forms, and irrelevant ones. */
import { TOKENS } from "../fixtures.ts";
import { pick, whole } from "../random.ts";

type Random = () => number;

const CONTENT_TYPES = [
  "text/plain",
  "application/x-www-form-urlencoded",
  "application/json;",
  "application/json; charset=utf-8",
  'application/json;charset="UTF-8"',
  "APPLICATION/JSON",
  "application/json; charset=utf-16",
  "application/json, application/json",
  "application/jsonx",
  "application/problem+json",
  "multipart/form-data; boundary=x",
  `application/json; a=${"b".repeat(2_000)}`,
  "\u00ff",
  "",
];
const AUTHORIZATIONS = [
  "",
  "Bearer",
  "Bearer ",
  "Basic Zm9v",
  "Basic " + "A".repeat(4_000),
  "Digest username=a",
  `bearer  ${TOKENS.full}`,
  `BEARER ${" ".repeat(200)}${TOKENS.full}  `,
  `Bearer\t${TOKENS.full}`,
  `Bearer ${TOKENS.full},Bearer ${TOKENS.full}`,
  `Bearer "${TOKENS.full}"`,
  TOKENS.full,
  "Bearer weir_guess",
  `Bearer ${TOKENS.limit}`,
  `Bearer ${TOKENS.admin}`,
  `Bearer ${TOKENS.tenant}`,
  `Bearer ${"x".repeat(3_000)}`,
  `Bearer ${" ".repeat(3_000)}`,
  `Bearer ${"a ".repeat(1_000)}`,
  "Bearer a b c",
  "Bearer \u00ff\u00fe",
  "Bearer __proto__",
  "__proto__",
];
const OTHERS = [
  "Content-Encoding: gzip",
  "Content-Encoding: identity",
  "Content-Encoding: br, gzip",
  "Accept: text/html",
  "Accept: */*;q=0",
  "Accept-Encoding: gzip, br",
  "Accept-Language: \u00e9",
  "Idempotency-Key: i1",
  `Idempotency-Key: ${"i".repeat(3_000)}`,
  "If-Match: *",
  "If-None-Match: *",
  "Range: bytes=0-1",
  "Cookie: a=b; c=d",
  `Cookie: ${"c=d; ".repeat(800)}`,
  "Origin: null",
  "Origin: https://weir.test",
  "Access-Control-Request-Method: POST",
  "Upgrade: h2c",
  "Upgrade: websocket",
  "Sec-WebSocket-Version: 12",
  "Sec-WebSocket-Key: x",
  "X-HTTP-Method-Override: DELETE",
  "X-Forwarded-For: 192.0.2.1",
  "X-Forwarded-Proto: gopher",
  "Forwarded: for=_x",
  "CF-Connecting-IP: ::1",
  "CF-IPCountry: XX",
  "CF-Ray: x",
  "CF-Worker: weir",
  'cf: {"continent":"__proto__"}',
  "Via: 1.1 a",
  "Date: never",
  "Forced-Name: __proto__",
  "__proto__: a",
  "constructor: a",
  "X-Empty:",
  `X-Long: ${"x".repeat(6_000)}`,
];

export interface HeaderNeeds {
  readonly hasBody: boolean;
  readonly isSocket: boolean;
  /** Without odd headers. */
  readonly isPlain: boolean;
}

export function headerLines(random: Random, { hasBody, isSocket, isPlain }: HeaderNeeds): string[] {
  const lines = isSocket ? socketLines(random, isPlain) : [];
  const authorization = isPlain || random() < 0.5 ? `Bearer ${TOKENS.full}` : pick(random, AUTHORIZATIONS);
  if (authorization !== "") lines.push(`Authorization: ${authorization}`);
  const contentType = isPlain || random() < 0.5 ? "application/json" : pick(random, CONTENT_TYPES);
  if (hasBody && contentType !== "") lines.push(`Content-Type: ${contentType}`);
  if (isPlain) return lines;
  while (random() < 0.5) lines.push(pick(random, OTHERS));
  if (random() < 0.02)
    lines.push(...Array.from({ length: 50 + whole(random, 250) }, (_, each) => `X-Many-${each}: ${each}`));
  return lines.toSorted(() => random() - 0.5);
}

function socketLines(random: Random, isPlain: boolean): string[] {
  const lines = [
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
  ];
  if (isPlain) return lines;
  const odd = [
    "Upgrade: WebSocket",
    "Upgrade: websocket, h2c",
    "Sec-WebSocket-Version: 99",
    "Sec-WebSocket-Key:",
    "Sec-WebSocket-Protocol: a, b",
    "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
    `Sec-WebSocket-Extensions: ${"x; ".repeat(500)}`,
  ];
  return [...lines.filter(() => random() < 0.85), ...odd.filter(() => random() < 0.2)];
}
