/** The conditions of writes: they are about what a read answers (RFC 9110, 13.1). */
import { describe, expect, test } from "vitest";
import { call } from "../../../support/limiter.ts";

const FIELDS = { algorithm: "token-bucket", limit: 3, window: "30d", deadlineMs: 20_000 };
const EMPTY = { policies: {}, overrides: {}, tokens: {} };
const admin = (method: string, path: string, body?: unknown, headers?: Record<string, string>) =>
  call(path, { method, ...(body !== undefined && { body }), ...(headers && { headers }) });

const FILE = "/v1/policies/slow";
const MADE = "/v1/policies/made-under-conditions";

/** Whether a write under each condition would be made, beside what a read says. */
async function asked(path: string, body: object) {
  const under = async (headers: Record<string, string>) =>
    (await admin("PUT", `${path}?dryRun=true`, body, headers)).status;
  const { status, headers } = await admin("GET", path);
  return {
    read: status,
    any: await under({ "if-match": "*" }),
    none: await under({ "if-none-match": "*" }),
    same: await under({ "if-match": headers.get("etag") ?? '"0"' }),
  };
}
const THERE = { read: 200, any: 200, none: 412, same: 200 };
const NOTHING = { read: 404, any: 412, none: 200, same: 200 };

describe("a write is made under If-Match: * where something is read, and under If-None-Match: * where nothing is", () => {
  test("of a policy of the file, before it is changed, while it is and after", async () => {
    expect(await asked(FILE, FIELDS)).toEqual(THERE);
    const refused = await admin("PUT", FILE, FIELDS, { "if-none-match": "*" });
    expect(refused).toMatchObject({
      status: 412,
      body: { detail: 'it is there already, with the entity tag "0"' },
    });
    expect((await admin("GET", FILE)).body).toMatchObject({ source: "file" });
    await admin("PUT", FILE, FIELDS);
    expect(await asked(FILE, { ...FIELDS, limit: 4 })).toEqual(THERE);
    await admin("DELETE", FILE, undefined, { "if-match": "*" });
    expect(await asked(FILE, FIELDS)).toEqual(THERE);
  });

  test("of a policy that is made, before it is, while it is there and when it is gone", async () => {
    expect(await asked(MADE, FIELDS)).toEqual(NOTHING);
    await admin("PUT", MADE, FIELDS, { "if-none-match": "*" });
    expect(await asked(MADE, { ...FIELDS, limit: 4 })).toEqual(THERE);
    await admin("DELETE", MADE);
    expect(await asked(MADE, FIELDS)).toEqual(NOTHING);
  });

  test.each([
    ["an override", `${FILE}/overrides/of-conditions`, { limit: 9 }],
    ["a candidate", `${FILE}/candidate`, FIELDS],
  ])("of %s", async (_, path, body) => {
    expect(await asked(path, body)).toEqual(NOTHING);
    await admin("PUT", path, body);
    expect(await asked(path, body)).toEqual(THERE);
    await admin("DELETE", path);
    expect(await asked(path, body)).toEqual(NOTHING);
  });

  test("of the whole catalog, which is always there", async () => {
    expect(await asked("/v1/catalog", EMPTY)).toEqual(THERE);
  });
});
