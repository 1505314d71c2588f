/** POST /v1/limit has a short way past the router: whatever comes, it answers what the router would. */
import { describe, expect, test } from "vitest";
import type { Env } from "../../../worker/bindings/env.ts";
import { answerLimit } from "../../../worker/http/fast-path.ts";
import {
  answerBy,
  expectAlike,
  type Fetch,
  LONG,
  real,
  standStill,
  untilIdle,
  WHOLE,
  withoutTime,
} from "../../support/both-ways.ts";
import { KNOWN, look, requestOf, TABLE, URL_OF, type Call } from "../../support/limit-calls.ts";
import { freshKey } from "../../support/limiter.ts";

/** Whether the short way takes a call. */
async function isShort(call: Call): Promise<boolean> {
  const answered = answerLimit(requestOf(call), call.env ?? real);
  if (answered !== undefined) await (await withoutTime(answered)).text();
  return answered !== undefined;
}

standStill();

test.each<[string, Call]>([
  ["plain", { body: look() }],
  ["with ?deny=429", { url: `${URL_OF}?deny=429`, body: look() }],
  ["to another host", { url: "http://h/v1/limit", body: look() }],
  ["not allowed", { body: look({ cost: -1 }) }],
  ["not JSON", { body: "{" }],
  ["in the query", { url: `${URL_OF}?policy=slow&key=a%20b&cost=0&deny=429` }],
  ["by a token for one policy", { token: KNOWN[3] ?? "", body: look() }],
])("a call that is %s goes the short way", async (_, call) => {
  expect(await isShort(call)).toBe(true);
});

test.each<[string, Call]>([
  ["GET", { method: "GET" }],
  ["by a token that is not known", { token: "Bearer other", body: look() }],
  ["by a token that may only administer", { token: KNOWN[2] ?? "", body: look() }],
  ["without a length", { headers: { "content-length": null }, body: look() }],
  ["too long", { headers: { "content-length": "16385" }, body: look() }],
  ["encoded", { headers: { "content-encoding": "identity" }, body: look() }],
  ["of another type", { headers: { "content-type": "application/json; charset=utf-8" }, body: look() }],
  ["in the query, in another order", { url: `${URL_OF}?key=k&policy=slow&cost=0` }],
  ["in the query, with a body", { url: `${URL_OF}?policy=slow&key=k&cost=0`, body: look() }],
  ["with another query", { url: `${URL_OF}?deny=200`, body: look() }],
])("a call that is %s goes the long way", async (_, call) => {
  expect(await isShort(call)).toBe(false);
});

describe.each(Object.entries(TABLE))("%s", (_, calls) => {
  test.each(Object.entries(calls))("%s", async (__, call) => {
    await expectAlike(call);
  });
});

test("a policy with older headers has them both ways, also when the isolate decides", async () => {
  const key = freshKey();
  const body = (cost: number) => JSON.stringify({ policy: "older-headers", key, cost });
  for (let calls = 0; calls < 5; calls += 1) {
    const { headers, body: text } = await answerBy(calls % 2 === 0 ? WHOLE : LONG, { body: body(1) });
    const { remaining, resetAfterMs } = JSON.parse(text) as { remaining: number; resetAfterMs: number };
    expect(headers).toMatchObject({
      "ratelimit-policy": "100000;w=2592000",
      ratelimit: `limit=100000, remaining=${remaining}, reset=${Math.ceil(resetAfterMs / 1_000)}`,
    });
    if (calls === 4) expect(JSON.parse(text)).toMatchObject({ source: "isolate" });
  }
  for (const fetch of [WHOLE, LONG]) {
    const { status, headers } = await answerBy(fetch, { url: `${URL_OF}?deny=429`, body: body(100_001) });
    expect(status).toBe(429);
    expect(headers).toHaveProperty(
      "ratelimit",
      expect.stringMatching(/^limit=100000, remaining=\d+, reset=\d+$/),
    );
  }
});

test("a call in the query is answered as the same call in a body", async () => {
  for (const [key, escaped] of [
    ["a b", "a%20b"],
    ["a+b", "a%2Bb"],
    ["é/#?&", "%C3%A9%2F%23%3F%26"],
    ["a b", "a+b"],
  ] as const)
    for (const deny of ["", "&deny=429"]) {
      const inQuery = await expectAlike({ url: `${URL_OF}?policy=slow&key=${escaped}&cost=0${deny}` });
      expect(inQuery).toMatchObject({ status: 200 });
      expect(await expectAlike({ body: look({ key }) })).toEqual(inQuery);
    }
});

test("a broken escape, or a body beside the query, is refused", async () => {
  const broken = await expectAlike({ url: `${URL_OF}?policy=slow&key=%zz` });
  expect(broken).toMatchObject({ status: 400, body: expect.stringContaining("percent-encoded") as string });
  const both = await expectAlike({ url: `${URL_OF}?policy=slow&key=k`, body: look() });
  expect(both).toMatchObject({ status: 400, body: expect.stringContaining("leave the body out") as string });
});

test("the table has answers of every status that a call may have", async () => {
  const statuses = new Set<number>();
  for (const call of Object.values(TABLE).flatMap((calls) => Object.values(calls)))
    statuses.add((await answerBy(WHOLE, call)).status);
  expect(statuses).toEqual(new Set([200, 400, 401, 403, 404, 405, 413, 415, 422]));
});

test("without tokens, or with new ones, nothing that was known before is let in", async () => {
  for (const secret of [undefined, "", "[]", "{"]) {
    const bindings = { OBJECTS: real.OBJECTS, ...(secret !== undefined && { API_TOKENS: secret }) };
    expect(await expectAlike({ env: bindings, body: look() })).toMatchObject({ status: 503 });
  }
  expect(await expectAlike({ body: look() })).toMatchObject({ status: 200 });
});

test("a body that breaks off is answered alike", async () => {
  const broken = () =>
    new ReadableStream({
      pull(controller) {
        controller.error(new Error("gone"));
      },
    });
  const answers = [];
  for (const fetch of [LONG, WHOLE])
    answers.push(await answerBy(fetch, { headers: { "content-length": "20" }, body: broken() }));
  expect(answers[1]).toEqual(answers[0]);
  expect(answers[0]).toMatchObject({ status: 400 });
});

test("an object that throws is answered alike", async () => {
  const bindings: Env = {
    ...real,
    OBJECTS: {
      getByName: () => {
        throw new Error("broken on purpose");
      },
    },
  };
  for (const policy of ["slow", "open", "shadow-closed"])
    for (const cost of [0, 1])
      for (const url of [URL_OF, `${URL_OF}?deny=429`])
        await expectAlike({
          env: bindings,
          url,
          body: look({ policy, cost, key: `${freshKey()}-${policy}` }),
        });
});

/** The same calls on a key of its own each way, one after another. */
async function historyBy(fetch: Fetch, policy: string, costs: readonly unknown[], url: string) {
  const key = freshKey();
  const answers = [];
  for (const cost of costs) {
    const { body, ...answer } = await answerBy(fetch, { url, body: { policy, key, cost } });
    // What the isolate asks for beside the answer comes before the next call, whichever way it goes.
    await untilIdle();
    answers.push({ ...answer, body: body.replaceAll(key, "KEY") });
  }
  return answers;
}

describe.each([
  ["slow", [undefined, 1, 4, 4, 3, undefined, 6, 0]],
  ["shadow", [1, 1, 1, 1]],
  ["log", [5, 1, 1, 6]],
  ["hammered", [2, 1, 1]],
  ["spaced", [1, 1, 1]],
  ["several", [{ requests: 1, tokens: 60 }, { tokens: 60 }, { tokens: 60 }, 1]],
  ["hot", [1, undefined, 1, 1, undefined, 1, 1, 2, 1, 100_001, 100_001, 99_990, 99_990, 1]],
  ["hot-rules", [1, 1, 1, 1, 1, { tokens: 2 }, { requests: 0 }, 99_990, 99_990]],
  ["hot-shadow", [40, 40, 40, 40, 40]],
] as const)("a history of calls on %s", (policy, costs) => {
  test.each([URL_OF, `${URL_OF}?deny=429`])("is answered alike at %s", async (url) => {
    const long = await historyBy(LONG, policy, costs, url);
    expect(await historyBy(WHOLE, policy, costs, url)).toEqual(long);
    if (policy.startsWith("hot"))
      expect(long.some(({ body }) => body.includes('"source":"isolate"'))).toBe(true);
  });
});
