import { describe, expect, test } from "vitest";
import { parseNotices, parseWebhook } from "../../../core/policies/parse-notices.ts";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";

const SECRET = `whsec_${Buffer.alloc(32, 1).toString("base64")}`;
const accepts = (webhook: string, isHere = false) => {
  try {
    return parseWebhook({ webhook }, isHere) === webhook;
  } catch (error) {
    expect(String(error)).toMatch(
      /^Error: bad configuration, not serving:\nNOTICES\.webhook is .*: must be an https/,
    );
    return false;
  }
};

describe("a webhook", () => {
  test.each([
    "https://example.com",
    "https://hooks.example.com:8443/a/b?c=d",
    "https://93.184.216.34/notices",
    "https://[2606:4700::1111]/",
    "https://müller.example/",
  ])("may be %s", (webhook) => {
    expect(accepts(webhook)).toBe(true);
    expect(accepts(webhook, true)).toBe(true);
  });

  test.each([
    "http://example.com",
    "ftp://example.com",
    "example.com/notices",
    "",
    "https://user:word@example.com",
    "https://user@example.com",
    "https://example.com/#part",
    `https://example.com/${"a".repeat(2_048)}`,
    ...[
      "10.0.0.1",
      "172.16.0.1",
      "172.31.255.1",
      "192.168.1.1",
      "169.254.169.254",
      "100.64.0.1",
      "0.0.0.0",
    ].map((address) => `https://${address}/`),
    // Other ways to write addresses of that kind.
    "https://0xa.1/",
    "https://167772161/",
    "https://0300.0250.1.1/",
    "https://192.168.1.1./",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[fd00::1]/",
    "https://[fe80::1]/",
    "https://[::]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[64:ff9b::a00:1]/",
    "https://[2002:a00:1::]/",
    "https://[2001:db8::1]/",
    "https://[2001::1]/",
    "https://intranet/",
    "https://metadata.google.internal/",
    "https://printer.local/",
    "https://printer.local./",
    "https://a.localhost/",
    "https://router.home.arpa/",
  ])("may not be %s, wherever the limiter is", (webhook) => {
    expect(accepts(webhook)).toBe(false);
    expect(accepts(webhook, true)).toBe(false);
  });

  test.each([
    "http://localhost:8788/",
    "http://127.0.0.1:1/",
    "http://[::1]/",
    "https://localhost/",
    "http://127.1/",
  ])("%s is only for a limiter that is there too", (webhook) => {
    expect(accepts(webhook)).toBe(false);
    expect(accepts(webhook, true)).toBe(true);
  });
});

test.each([
  [{ webhook: "https://a.example", url: "b" }, "NOTICES.url is not a field: NOTICES must be"],
  [{ webook: "https://a.example" }, "NOTICES.webook is not a field (did you mean webhook?)"],
  [{}, "NOTICES is an object"],
  [[], "NOTICES is an array of 0"],
  ["https://a.example", 'NOTICES is "https://a.example"'],
  [null, "NOTICES is null"],
  [{ webhook: 7 }, "NOTICES.webhook is 7"],
])("NOTICES = %j is refused, and the error says what may be there", (given, beginning) => {
  const parsed = () => parseNotices({ NOTICES: given, NOTICES_SECRET: SECRET }, false);
  expect(parsed).toThrow(beginning);
  expect(parsed).toThrow(/must be (the binding of a Queue, or a table of one field|an https address)/);
});

test("a webhook needs a secret of 24 to 64 bytes, which no error shows", () => {
  const NOTICES = '{"webhook":"https://a.example/n"}';
  expect(parseNotices({ NOTICES, NOTICES_SECRET: SECRET }, false)).toEqual({
    webhook: "https://a.example/n",
    secret: SECRET,
  });
  const bytes = (count: number) => `whsec_${Buffer.alloc(count, 2).toString("base64")}`;
  for (const secret of [bytes(24), bytes(64)])
    expect(parseNotices({ NOTICES, NOTICES_SECRET: secret }, false)).toMatchObject({ secret });
  for (const secret of [undefined, "", "word", bytes(23), bytes(65), SECRET.slice(6), `${SECRET}x`]) {
    const parsed = () => parseNotices({ NOTICES, NOTICES_SECRET: secret }, false);
    expect(parsed).toThrow(/^bad configuration, not serving:\nNOTICES_SECRET is (missing|not one)/);
    if (secret) expect(parsed).not.toThrow(secret);
  }
});

test("a Queue needs no secret, and thresholds need somebody to tell", () => {
  const queue = { send: () => Promise.resolve() };
  expect(parseNotices({ NOTICES: queue }, false)).toEqual({ queue });
  const policies = parsePolicies({
    a: { algorithm: "token-bucket", limit: 1, window: "1s" },
    b: { algorithm: "token-bucket", limit: 1, window: "1s", notify: [1, 0.5] },
  });
  expect(policies.get("b")?.notify).toEqual([0.5, 1]);
  expect(() => parseNotices({}, false, policies)).toThrow(
    'policy "b": notify is an array of 2: must be left out, or with NOTICES, which says where notices go',
  );
  expect(parseNotices({}, false)).toBeUndefined();
});

const A_LIST = "must be a list of 1 to 8 different fractions of the limit, each above 0 and at most 1";
const A_FRACTION = "must be a fraction of the limit, above 0 and at most 1";

test.each([
  [[], `notify is an array of 0: ${A_LIST}`],
  [[0], `notify.0 is 0: ${A_FRACTION}`],
  [[0.5, 1.1], `notify.1 is 1.1: ${A_FRACTION}`],
  [[-0.1], `notify.0 is -0.1: ${A_FRACTION}`],
  [["0.8"], `notify.0 is "0.8": ${A_FRACTION}`],
  [0.8, `notify is 0.8: ${A_LIST}`],
  ["80%", `notify is "80%": ${A_LIST}`],
  [[0.5, 0.5], "notify.1 is 0.5: must be another fraction than those before"],
  [[NaN], `notify.0 is NaN: ${A_FRACTION}`],
  [Array(9).fill(0.1), `notify is an array of 9: ${A_LIST}`],
])("notify = %j is refused, and the error says what is allowed", (notify, problem) => {
  expect(() => parsePolicies({ a: { algorithm: "token-bucket", limit: 1, window: "1s", notify } })).toThrow(
    `policy "a": ${problem}`,
  );
});

test("notify is refused with a pool", () => {
  const table = { algorithm: "token-bucket", limit: 1, window: "1s", notify: [1], pool: "redis" };
  expect(() => parsePolicies({ a: table })).toThrow(
    "notify is an array of 1: must be left out, or without a pool",
  );
});
