/** What verify --account does with the answers of Cloudflare's API, recorded and hostile ones, over real HTTP. */
import { afterEach, describe, expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { CloudflareApi, plain } from "../../scripts/verify/account/cloudflare.ts";
import {
  analytics,
  type Api,
  type ApiReply,
  listOf,
  namespaceOf,
  startApi,
} from "../support/cloudflare-api.ts";

const TOKEN = "cf_secret_0123456789";
const ACCOUNT = "0123456789abcdef0123456789abcdef";
const limiter = { script: "weir", namespaceIds: ["weir LimiterObject"] };
let server: Api | undefined;
afterEach(() => server?.stop());

async function apiThat(
  reply: (query: string, request: number) => ApiReply,
  patienceMs = 60_000,
): Promise<CloudflareApi> {
  let request = 0;
  server = await startApi(({ query }) => {
    request += 1;
    return reply(query, request);
  });
  return new CloudflareApi({
    accountId: ACCOUNT,
    token: TOKEN,
    baseUrl: server.url,
    patienceMs,
    maxPauseMs: 50,
  });
}

/** The problem with answers, which must not show the token. */
async function problemOf(
  reply: (query: string, request: number) => ApiReply,
  patienceMs?: number,
): Promise<string> {
  const found = await (await apiThat(reply, patienceMs)).usage(0, 1_000, limiter);
  if (!("problem" in found)) throw new Error(`no problem: ${JSON.stringify(found)}`);
  expect(found.problem).not.toContain(TOKEN);
  expect(found.problem).not.toMatch(/\p{Cc}/u);
  expect(found.problem.length).toBeLessThan(800);
  return found.problem;
}

test("recorded answers are read: use, places and namespaces", async () => {
  const api = await apiThat((query) => ({
    body: query === "" ? listOf([namespaceOf("weir", "LimiterObject")]) : analytics(query),
  }));
  expect(await api.usage(0, 86_400_000, limiter)).toEqual({
    value: {
      workerRequests: 1_000_000,
      objectRequests: 100_000,
      rowsRead: 7_000,
      rowsWritten: 2_000,
      gbSeconds: 40,
    },
  });
  expect(await api.colos(0, 86_400_000, "an id")).toEqual({
    value: new Map([
      ["AMS", 900],
      ["FRA", 100],
    ]),
  });
  expect(await api.namespaces()).toEqual({
    value: [{ id: "weir LimiterObject", script: "weir", class: "LimiterObject" }],
  });
  const [use, , list] = server?.requests ?? [];
  expect(use?.path).toBe("/graphql");
  expect(use?.authorization).toBe(`Bearer ${TOKEN}`);
  expect(use?.query).toContain(`accountTag: "${ACCOUNT}"`);
  expect(use?.query).toContain(
    'datetime_geq: "1970-01-01T00:00:00.000Z", datetime_leq: "1970-01-02T00:00:00.000Z"',
  );
  expect(use?.query).toContain('scriptName: "weir"');
  expect(use?.query).toContain('namespaceId_in: ["weir LimiterObject"]');
  expect(list?.path).toBe(`/accounts/${ACCOUNT}/workers/durable_objects/namespaces?per_page=1000`);
});

test("no row means that nothing was used, and the whole account is asked without a filter of a worker", async () => {
  const empty = {
    workersInvocationsAdaptive: [],
    durableObjectsInvocationsAdaptiveGroups: [],
    durableObjectsPeriodicGroups: [],
  };
  const api = await apiThat(() => ({ body: { data: { viewer: { accounts: [empty] } } } }));
  expect(await api.usage(0, 1_000)).toEqual({
    value: { workerRequests: 0, objectRequests: 0, rowsRead: 0, rowsWritten: 0, gbSeconds: 0 },
  });
  expect(server?.requests[0]?.query).not.toMatch(/scriptName|namespaceId/);
});

test("a name from the account cannot change the query", async () => {
  const api = await apiThat((query) => ({ body: analytics(query) }));
  await api.usage(0, 1_000, { script: 'a" } ) { x', namespaceIds: ['b"] }'] });
  expect(server?.requests[0]?.query).toContain(String.raw`scriptName: "a\" } ) { x"`);
  expect(server?.requests[0]?.query).toContain(String.raw`namespaceId_in: ["b\"] }"]`);
});

describe("hostile answers are problems in words", () => {
  const account = (body: object) => ({ body: { data: { viewer: { accounts: [body] } } } });
  test.each<[string, ApiReply, RegExp]>([
    [
      "HTML",
      { body: `<html>\u0007\u001B[31m ${TOKEN}</html>` },
      /answers no JSON \(200\): <html> \[31m \*\*\*<\/html>/,
    ],
    ["truncated JSON", { body: '{"data":{"viewer":{"acc' }, /answers no JSON \(200\)/],
    ["a text without anything", { body: "" }, /answers no JSON/],
    ["JSON that is no record", { body: "null" }, /answers no JSON/],
    [
      "errors beside data",
      { body: { data: null, errors: [{ message: `unknown field of ${TOKEN}` }, {}, null] } },
      /answers 200: unknown field of \*\*\*; an error without a message; an error without a message/,
    ],
    [
      "401",
      { status: 401, body: { errors: [{ code: 10_000, message: "Authentication error" }] } },
      /CLOUDFLARE_API_TOKEN is refused \(401\).*Account Analytics: Read and Workers Scripts: Edit: Authentication error/,
    ],
    ["403 in HTML", { status: 403, body: "<h1>no</h1>" }, /CLOUDFLARE_API_TOKEN is refused \(403\)/],
    ["404", { status: 404, body: {} }, /answers 404/],
    ["no accounts", { body: { data: { viewer: { accounts: [] } } } }, /no such account/],
    ["no viewer", { body: { data: null } }, /no such account/],
    [
      "a missing dataset",
      account({ workersInvocationsAdaptive: [], durableObjectsPeriodicGroups: [] }),
      /no dataset durableObjectsInvocationsAdaptiveGroups/,
    ],
    [
      "a number that is a text",
      account({
        workersInvocationsAdaptive: [{ sum: { requests: "7" } }],
        durableObjectsInvocationsAdaptiveGroups: [],
        durableObjectsPeriodicGroups: [],
      }),
      /no number for workerRequests/,
    ],
    [
      "a missing field",
      account({
        workersInvocationsAdaptive: [],
        durableObjectsInvocationsAdaptiveGroups: [],
        durableObjectsPeriodicGroups: [{ sum: { duration: 1, rowsRead: 1 } }, null],
      }),
      /no number for rowsRead/,
    ],
    ["a huge answer", { body: `"${"a".repeat(5 * 2 ** 20)}"` }, /answers more than 4194304 bytes/],
    [
      "a redirect",
      { status: 302, headers: { location: "http://127.0.0.1:1/" }, body: "" },
      /is not reached: unexpected redirect/,
    ],
  ])("%s", async (_, reply, words) => {
    expect(await problemOf(() => reply)).toMatch(words);
  });

  test("silence", async () => {
    expect(await problemOf(() => ({}), 300)).toMatch(/does not answer within 300 ms/);
    expect(server?.requests.length).toBeGreaterThan(0);
  });

  test("nobody there", async () => {
    const baseUrl = `http://127.0.0.1:${await freePort()}`;
    const api = new CloudflareApi({ accountId: ACCOUNT, token: TOKEN, baseUrl, maxPauseMs: 10 });
    expect(await api.usage(0, 1_000)).toEqual({ problem: `${baseUrl} is not reached: ECONNREFUSED` });
  });

  test("places without a name", async () => {
    const api = await apiThat(() =>
      account({ durableObjectsInvocationsAdaptiveGroups: [{ sum: { requests: 1 } }] }),
    );
    expect(await api.colos(0, 1_000, "id")).toEqual({ problem: "the analytics name no place of objects" });
  });

  test("a list of namespaces that is none, and entries that are none", async () => {
    const api = await apiThat((_, request) => ({
      body: { result: request === 1 ? {} : [7, { id: "a", script: 7 }] },
    }));
    expect(await api.namespaces()).toEqual({ problem: "the list of namespaces has no result" });
    expect(await api.namespaces()).toEqual({
      value: [
        { id: "", script: "", class: "" },
        { id: "a", script: "", class: "" },
      ],
    });
  });
});

describe("what may pass is asked again, three times at most", () => {
  test.each<[string, ApiReply, RegExp]>([
    ["429", { status: 429, headers: { "retry-after": "0" }, body: "slow down" }, /answers 429: slow down/],
    [
      "429 with a date",
      { status: 429, headers: { "retry-after": "Fri, 27 Nov 2026 00:00:00 GMT" }, body: "" },
      /answers 429/,
    ],
    ["429 for an hour", { status: 429, headers: { "retry-after": "3600" }, body: "" }, /answers 429/],
    ["503", { status: 503, body: "<html>busy</html>" }, /answers 503: <html>busy/],
  ])("%s", async (_, reply, words) => {
    expect(await problemOf(() => reply)).toMatch(words);
    expect(server?.requests.length).toBe(3);
    await server?.stop();
    const api = await apiThat((query, request) => (request < 3 ? reply : { body: analytics(query) }));
    expect(await api.usage(0, 1_000, limiter)).toMatchObject({ value: { gbSeconds: 40 } });
  });

  test("what is refused is asked once", async () => {
    await problemOf(() => ({ status: 401, body: {} }));
    expect(server?.requests.length).toBe(1);
  });
});

test("a text on one line has no secret, not even one in another, and no control character", () => {
  expect(plain("a\n\tb \u001B[2J c", [])).toBe("a b [2J c");
  expect(plain("x secret y", ["secret", ""])).toBe("x *** y");
  expect(plain("a".repeat(400), []).length).toBe(301);
});
