/** Calls of POST /v1/limit, plain ones and odd ones, that take nothing. */
import type { Env } from "../../worker/bindings/env.ts";
import { TOKENS } from "./fixtures.ts";

export const URL_OF = "https://weir.test/v1/limit";

/** A missing field is plain: POST, this address, a known token, JSON and its length. */
export interface Call {
  readonly url?: string;
  readonly method?: string;
  readonly token?: string | null;
  readonly headers?: Readonly<Record<string, string | null>>;
  readonly body?: unknown;
  readonly env?: Env;
}

const isRaw = (body: unknown) => body instanceof Uint8Array || body instanceof ReadableStream;

const encoder = new TextEncoder();

export function requestOf({
  url = URL_OF,
  method = "POST",
  token = `Bearer ${TOKENS.full}`,
  headers,
  body,
}: Call): Request {
  const text = typeof body === "object" && !isRaw(body) ? JSON.stringify(body) : body;
  const bytes = typeof text === "string" ? encoder.encode(text) : text;
  const length = bytes instanceof Uint8Array ? bytes.length : 0;
  const all = { authorization: token, "content-type": "application/json", "content-length": `${length}` };
  const given = Object.entries({ ...all, ...headers }).filter(([, value]) => value !== null);
  const sent =
    bytes instanceof Uint8Array || bytes instanceof ReadableStream ? { body: bytes as BodyInit } : {};
  return new Request(url, { method, headers: given as [string, string][], ...sent });
}

/** A body whose cost of 0 takes nothing. */
export const look = (fields: object = {}) => ({ policy: "slow", key: "k", cost: 0, ...fields });
export const KNOWN = [TOKENS.full, TOKENS.limit, TOKENS.admin, TOKENS.tenant].map(
  (token) => `Bearer ${token}`,
);

/** Calls, grouped by their oddity. */
export const TABLE: Record<string, Readonly<Record<string, Call>>> = {
  methods: Object.fromEntries(
    ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "post"].map((method) => [
      method,
      { method, ...(/get|head/i.test(method) ? {} : { body: look() }) },
    ]),
  ),
  addresses: Object.fromEntries(
    [
      [
        "",
        "?",
        "?deny=429",
        "?deny=200",
        "?deny=",
        "?deny=429&deny=429",
        "?deny=429&x=1",
        "?x=1",
        "?%64eny=429",
      ],
      ["?deny=4%329", "?deny=429#x", "#x", "#?deny=429", "/", "//", "s", "/all", "%20", ";x", "?/v1/limit"],
      ["?deny=429 ", "?deny=٤٢٩", "?DENY=429", "?deny=503", "?deny=429?", "&deny=429"],
    ]
      .flat()
      .map((end): [string, Call] => [end === "" ? "nothing more" : end, { url: URL_OF + end, body: look() }])
      .concat(
        [
          "//v1/limit",
          "/V1/limit",
          "/v1/Limit",
          "/v1/%6cimit",
          "/x/v1/limit",
          "/v1/./limit",
          "/v1//limit",
          "/",
        ].map((path): [string, Call] => [path, { url: `https://weir.test${path}`, body: look() }]),
        ["http://a", "https://a:8443", "http://127.0.0.1:1", "http://[::1]", "https://limit.v1"].map(
          (origin): [string, Call] => [origin, { url: `${origin}/v1/limit`, body: look() }],
        ),
      ),
  ),
  queries: {
    ...Object.fromEntries(
      [
        ["&cost=0", "&cost=0&deny=429", "&deny=429&cost=0", "&cost=1000000001", "&cost=-1", "&cost=x"],
        ["&cost=0&cost=0", "&cost=", "&cost=0.5", "&cost=00", "&cost=0&deny=200", "&cost=0&dney=429", "&x=1"],
        [
          "&cost=0&priority=low",
          "&cost=0&priority=none",
          "&cost=0&waitMs=x",
          "&cost=0#x",
          "&cost=%30",
          "&cost=0&",
        ],
      ]
        .flat()
        .map((end) => [`a call${end}`, { url: `${URL_OF}?policy=slow&key=k${end}` }]),
    ),
    ...Object.fromEntries(
      [
        ["a%20b", "a+b", "%C3%A9", "é", "%ZZ", "%", "%C3", "%ED%A0%80", "%00", "a%26b", "..", "a%2Fb", "a/b"],
        ["a=b", "", "%E2%82%AC".repeat(170), "%E2%82%AC".repeat(171), "x".repeat(170), "x".repeat(513)],
      ]
        .flat()
        .map((key) => [`the key ${key.slice(0, 20)} of ${key.length}`, `policy=slow&key=${key}&cost=0`])
        .map(([name, query]) => [name, { url: `${URL_OF}?${query}` }]),
    ),
    ...Object.fromEntries(
      ["key=k&policy=slow&cost=0", "policy=none&key=k", "policy=slow", "key=k", "cost=0", "policy=&key="].map(
        (query) => [`the query ${query}`, { url: `${URL_OF}?${query}` }],
      ),
    ),
    "a body too": { url: `${URL_OF}?policy=slow&key=k&cost=0`, body: look() },
    "an empty body of no length": {
      url: `${URL_OF}?policy=slow&key=k&cost=0`,
      headers: { "content-length": null, "content-type": null },
    },
    "another's token": { url: `${URL_OF}?policy=slow&key=k&cost=0`, token: KNOWN[3] ?? "" },
    "no token": { url: `${URL_OF}?policy=slow&key=k&cost=0`, token: null },
  },
  tokens: Object.fromEntries(
    [
      ...KNOWN,
      [null, "", "Bearer", "Bearer ", "Bearer other", "Basic eDp5", TOKENS.full, `Bearer ${TOKENS.full}x`],
      [`bearer ${TOKENS.full}`, `Bearer  ${TOKENS.full}`, `Bearer ${TOKENS.full} x`, "Bearer é"],
    ]
      .flat()
      .map((token) => [String(token), { token, body: look() }]),
  ),
  scopes: {
    "one key of the tenant's": { token: KNOWN[3] ?? "", body: look({ policy: "api", key: "tenant-a:x" }) },
    "another's key": { token: KNOWN[3] ?? "", body: look({ policy: "api", key: "tenant-b:x" }) },
    "another policy": { token: KNOWN[3] ?? "", body: look({ key: "tenant-a:x" }) },
    "a policy that is not there": { token: KNOWN[3] ?? "", body: look({ policy: "none" }) },
  },
  types: Object.fromEntries(
    [
      [null, "", "text/plain", "application/json;", "application/json; charset=utf-8", "Application/JSON"],
      ['application/json;charset="utf-8"', "application/json; charset=latin1", "application/jsonp"],
      ["application/json, application/json", "application/x-www-form-urlencoded", "application/problem+json"],
    ]
      .flat()
      .map((type) => [String(type), { headers: { "content-type": type }, body: look() }]),
  ),
  encodings: Object.fromEntries(
    ["identity", "gzip", "Identity", "", "br, gzip"].map((encoding) => [
      encoding,
      { headers: { "content-encoding": encoding }, body: look() },
    ]),
  ),
  lengths: Object.fromEntries(
    [
      null,
      "",
      "0",
      "1",
      "16384",
      "16385",
      "99999999999999",
      "-1",
      "abc",
      "1e3",
      "0x10",
      "1, 2",
      "Infinity",
    ].map((length) => [String(length), { headers: { "content-length": length }, body: look() }]),
  ),
  bodies: {
    none: { headers: { "content-length": "0" } },
    "none of no length": { headers: { "content-length": null } },
    empty: { body: "" },
    "over the length, undeclared": { headers: { "content-length": null }, body: " ".repeat(16_385) },
    "over the length, declared": { body: " ".repeat(16_385) },
    "just the length": { body: JSON.stringify(look()).padEnd(16_384) },
    "broken UTF-8": {
      body: new Uint8Array([...encoder.encode('{"policy":"slow","key":"'), 0xff, 0x22, 0x7d]),
    },
    "half a character": { body: new Uint8Array([...encoder.encode('"'), 0xf0, 0x9f, 0x22]) },
    "a surrogate in UTF-8": { body: new Uint8Array([0x22, 0xed, 0xa0, 0x80, 0x22]) },
    "UTF-16": { body: new Uint8Array([0xff, 0xfe, 0x7b, 0, 0x7d, 0]) },
    "a byte order mark": { body: `\uFEFF${JSON.stringify(look())}` },
    "space around": { body: ` \n\t${JSON.stringify(look())}\r\n ` },
    ...Object.fromEntries(
      [
        [
          "{",
          "{}",
          "{}{}",
          "[]",
          '[{"policy":"slow","key":"k"}]',
          "null",
          "true",
          "1",
          '"policy"',
          "undefined",
        ],
        ["{'policy':1}", '{"policy":"slow",}', '{"policy":"slow","key":"k","cost":00}', "NaN", "-", "\u0000"],
        [
          '{"policy":"slow","key":"k","cost":0,"cost":0}',
          '{"policy":"none","policy":"slow","key":"k","cost":0}',
        ],
        ['{"policy":"slow","key":"k","cost":0,"__proto__":{}}', '{"__proto__":{"policy":"slow","key":"k"}}'],
        ['{"policy":"slow","key":"k","cost":{"__proto__":1}}', '{"policy":"slow","key":"k","constructor":0}'],
        ['{"policy":"slow","key":"k","cost":-0}', '{"policy":"slow","key":"k","cost":1e400}'],
        ['{"policy":"slow","key":"k","cost":0.0}', '{"policy":"slow","key":"k","cost":0e9}'],
        ['{"policy":"slow","key":"\\ud800","cost":0}', '{"policy":"slow","key":"\\ude00\\ud83d","cost":0}'],
        ['{"policy":"slow","key":"\\ud83d\\ude00","cost":0}', '{"policy":"slow","key":"\\u0000","cost":0}'],
      ]
        .flat()
        .map((body) => [body, { body }]),
    ),
  },
  fields: Object.fromEntries(
    [
      ...["", " ", "a", "é", "💧", '"', "\\", "\n", "\u2028", "\uFEFF", "a/b", "__proto__"].map((key) => ({
        key,
      })),
      ...[170, 171, 172, 512, 513].map((length) => ({ key: "k".repeat(length) })),
      ...[128, 129].map((length) => ({ key: "💧".repeat(length) })),
      ...[170, 171].map((length) => ({ key: "水".repeat(length) })),
      ...[null, 1, true, ["k"], { k: 1 }, undefined].map((key) => ({ key })),
      ...["none", "", "Slow", "slow ", "__proto__", "toString", "constructor"].map((policy) => ({ policy })),
      ...[null, 1, ["slow"], undefined].map((policy) => ({ policy })),
      ...[-1, 0.5, 1e9 + 1, 2 ** 53, 1e300, "0", "", null, true, [], [0], [1]].map((cost) => ({ cost })),
      ...[{ requests: 0 }, { tokens: 0 }, { requests: -1 }, { requests: "0" }].map((cost) => ({ cost })),
      ...["", "once", "é", "k".repeat(256), "k".repeat(257), 1, null, "\ud800"].map((idempotencyKey) => ({
        idempotencyKey,
      })),
      { units: 1 },
      { Cost: 0 },
      { "": 0 },
      { toString: 1 },
      { ttlMs: 1, waitMs: 2 },
      ...["shadow", "shared", "log", "spaced", "hammered", "several", "mixed", "export", "hot", "api"].map(
        (policy) => ({ policy }),
      ),
      ...["export", "mixed"].map((policy) => ({ policy, cost: 1 })),
      ...["1.2.3.4", "::1", "2001:DB8::1", "::ffff:1.2.3.4", "1.2.3", "k", "[::1]", "1.2.3.4 "].map(
        (key) => ({
          policy: "address",
          key,
        }),
      ),
    ].map((fields) => [
      JSON.stringify(fields).slice(0, 80) + JSON.stringify(fields).length,
      { body: look(fields) },
    ]),
  ),
};
