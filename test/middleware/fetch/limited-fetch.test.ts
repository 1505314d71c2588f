import fc from "fast-check";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { pauseOf } from "../../../middleware/fetch/pauses.ts";
import { FetchLimitedError, limitedFetch, type Fetch } from "../../../package/fetch.ts";
import { assertNotAsked, manualClock, memoryLimiter } from "../../../package/testing.ts";

const POLICIES = {
  partner: { algorithm: "sliding-log", limit: 2, window: "10s", maxWait: "1m" },
  free: { algorithm: "token-bucket", limit: 1_000, window: "1s", maxWait: "1m" },
  paced: { algorithm: "leaky-bucket", limit: 1, window: "1s", burst: 9, maxWait: "1m" },
};

/** The partner: it answers each request with what is next in line, and 200 when there is nothing. */
let server: Server;
let url = "";
let answers: ((request: IncomingMessage, response: ServerResponse) => void)[] = [];
let bodies: string[] = [];
beforeAll(async () => {
  server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += String(part);
    bodies.push(body);
    const next = answers.shift() ?? ((_, last) => void last.end("served"));
    next(request, response);
  });
  await new Promise<void>((done) => void server.listen(0, "127.0.0.1", done));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
});
afterAll(() => new Promise((done) => server.close(done)));
beforeEach(() => {
  answers = [];
  bodies = [];
});

const later = (status: number, after?: string, date?: string) => (_: unknown, response: ServerResponse) => {
  const headers = {
    ...(after !== undefined && { "retry-after": after }),
    ...(date !== undefined && { date }),
  };
  response.writeHead(status, headers).end("later");
};

function start(waitMs = 30_000) {
  const clock = manualClock();
  const limiter = memoryLimiter({ policies: POLICIES, clock });
  let onItsWay = 0;
  const counted = async (input: string | URL | Request, init?: RequestInit) => {
    onItsWay += 1;
    return await fetch(input, init).finally(() => (onItsWay -= 1));
  };
  const of = (policy: string, more: object = {}) =>
    limitedFetch({ limiter, policy, key: "partner", waitMs, time: clock, fetch: counted, ...more });
  /** What became of requests, and when. The clock moves until they are over, but not while the server is asked. */
  const timed = async (...asked: readonly Promise<Response>[]) => {
    const beganMs = clock.nowMs();
    let isOver = false;
    const ends = asked.map(async (each) => {
      const end: unknown = await each.then((response) => response.text()).catch((error: unknown) => error);
      return [end, clock.nowMs() - beganMs] as const;
    });
    const all = Promise.all(ends).finally(() => (isOver = true));
    while (!isOver) {
      if (onItsWay > 0) await new Promise((done) => setTimeout(done, 1));
      else await clock.advance(500);
    }
    return await all;
  };
  return { clock, limiter, of, timed };
}

describe("it keeps within the limit", () => {
  test("each request waits for its turn", async () => {
    const { of, timed } = start();
    const get = of("partner");
    const all = await timed(get(url), get(url), get(url));
    expect(all.map(([text]) => text)).toEqual(["served", "served", "served"]);
    expect(all.map(([, ms]) => ms >= 10_000)).toEqual([false, false, true]);
  });

  test("and as long as a policy that paces tells it to", async () => {
    const { of, timed } = start();
    const get = of("paced");
    await timed(get(url));
    const [[, ms] = []] = await timed(get(new URL(url)));
    expect(ms).toBeGreaterThanOrEqual(500);
  });

  test("a request whose turn comes too late is given up, and says when it would come", async () => {
    const { of, limiter } = start(5_000);
    const get = of("partner", { key: (input: unknown) => String(input).slice(0, 7), cost: () => 2 });
    await get(url);
    const error = (await get(url).catch((thrown: unknown) => thrown)) as FetchLimitedError;
    expect(error).toBeInstanceOf(FetchLimitedError);
    expect(error).toMatchObject({ retryAfterMs: 10_000, decision: { success: false }, response: undefined });
    expect(error.message).toMatch(/^request given up: the limiter said .*; it would pass in 10000 ms$/);
    expect([bodies.length, limiter.asked("limit", { key: "http://", cost: 2 }).length]).toEqual([1, 2]);
  });

  test("a function finds the policy of each request, whose pauses are its own", async () => {
    const { limiter, clock } = start();
    const policy = (input: unknown) => (String(input).endsWith("free") ? "free" : "partner");
    const get = limitedFetch({ limiter, policy, key: "partner", waitMs: 1_000, attempts: 1, time: clock });
    answers = [later(429, "60")];
    await expect(get(url)).rejects.toMatchObject({ retryAfterMs: 60_000 });
    await expect(get(url)).rejects.toMatchObject({ retryAfterMs: 60_000, response: undefined });
    expect((await get(`${url}/free`)).status).toBe(200);
    const asked = limiter.asked("limit").map((call) => (call.asked as { readonly policy: string }).policy);
    expect([asked, bodies.length]).toEqual([["partner", "free"], 2]);
  });

  test("a limiter that cannot be reached is no leave to go", async () => {
    const { of, limiter } = start();
    limiter.fail();
    await expect(of("free")(url)).rejects.toMatchObject({
      retryAfterMs: null,
      message: "request given up: the limiter said degraded; it is not known when it would pass",
    });
    expect(bodies).toEqual([]);
  });
});

describe("it learns from the server", () => {
  test.each([
    [429, "3"],
    [503, "3"],
    [429, "Thu, 01 Jan 2026 00:00:03 GMT"],
  ])("%i with Retry-After %s: it waits, and asks again", async (status, after) => {
    const { of, timed } = start();
    answers = [later(status, after, "Thu, 01 Jan 2026 00:00:00 GMT")];
    const [[text, ms] = []] = await timed(of("free")(url));
    expect([text, bodies.length, Number(ms) >= 3_000]).toEqual(["served", 2, true]);
  });

  test("all requests of the key wait, and those that had units already take new ones", async () => {
    const { of, timed, clock, limiter } = start(60_000);
    const get = of("partner");
    answers = [later(429, "20"), later(429, "20")];
    await timed(get(url), get(url), get(url));
    const asked = limiter.asked("limit").length;
    // Three at first; two were answered later; the third got its units during the pause.
    expect([asked, bodies.length]).toEqual([6, 5]);
    expect(clock.nowMs()).toBeGreaterThanOrEqual(1_767_225_600_000 + 30_000);
  });

  test("other keys go on", async () => {
    const { of } = start(1_000);
    answers = [later(429, "20")];
    await expect(of("free")(url)).rejects.toMatchObject({ retryAfterMs: 20_000, response: { status: 429 } });
    await expect(of("free")(url)).rejects.toThrow("the server asked for a pause; it would pass in 20000 ms");
    expect(await (await of("free", { key: "other" })(url)).text()).toBe("served");
    expect(bodies).toHaveLength(2);
  });

  test("at most so often, and not for longer than it may", async () => {
    const { of, timed } = start();
    answers = Array.from({ length: 9 }, () => later(429, "1"));
    expect((await timed(of("free", { attempts: 4 })(url)))[0]?.[0]).toMatchObject({
      retryAfterMs: 1_000,
      message: "request given up: the server answered 429; it would pass in 1000 ms",
    });
    expect(bodies).toHaveLength(4);
  });

  test("an answer that does not say when is the caller's", async () => {
    const { of } = start();
    answers = [later(429), later(503, "soon"), later(500, "1")];
    const statuses = [];
    for (let call = 0; call < 3; call += 1) statuses.push((await of("free")(url)).status);
    expect(statuses).toEqual([429, 503, 500]);
  });

  test.each([
    ["text", 429, () => "body", 2],
    ["bytes", 429, () => new TextEncoder().encode("body"), 2],
    ["a form", 429, () => new URLSearchParams("body"), 2],
    ["a stream", 429, () => new Response("body").body, 1],
    ["text, but it may have been done", 503, () => "body", 1],
  ])("a POST of %s after %i is sent again only if it can be", async (_, status, bodyOf, sent) => {
    const { of, timed } = start();
    answers = [later(status, "1")];
    const init = { method: "POST", body: bodyOf(), duplex: "half" } as RequestInit;
    const [[ended] = []] = await timed(of("free")(url, init));
    expect(bodies).toHaveLength(sent);
    expect(new Set(bodies).size).toBe(1);
    if (sent === 1) expect(ended).toMatchObject({ name: "FetchLimitedError", response: { status } });
    else expect(ended).toBe("served");
  });

  test("a request of a `Request` with a body is not sent again", async () => {
    const { of, timed } = start();
    answers = [later(429, "1"), later(429, "1")];
    expect((await timed(of("free")(new Request(url, { method: "POST", body: "a" }))))[0]?.[0]).toBeInstanceOf(
      Error,
    );
    expect((await timed(of("free")(new Request(url))))[0]?.[0]).toBe("served");
  });

  test("who is aborted waits no longer", async () => {
    const { of, clock } = start();
    answers = [later(429, "20")];
    const aborting = new AbortController();
    const asked = of("free")(url, { signal: aborting.signal });
    while (bodies.length === 0) await new Promise((done) => setTimeout(done, 1));
    await clock.advance(1_000);
    aborting.abort(new Error("enough"));
    await expect(asked).rejects.toThrow("enough");
    expect(bodies).toHaveLength(1);
  });
});

describe("a caller that gives up", () => {
  const PARTNER = { policy: "partner", key: "partner" };
  const GONE = new Error("the caller has gone");

  test.each<[string, (get: Fetch, signal: AbortSignal) => Promise<Response>]>([
    ["init", (get, signal) => get(url, { signal })],
    ["the request", (get, signal) => get(new Request(url, { signal }))],
    ["init, before that of the request", (get, signal) => get(new Request(url), { signal })],
  ])("leaves the line at once, and is charged nothing: by the signal of %s", async (_, ask) => {
    const { of, clock, limiter } = start();
    await limiter.limit({ ...PARTNER, cost: 2 });
    const waiting = async () => (await limiter.peek(PARTNER)).queueLength;
    const leaving = new AbortController();
    const asked = ask(of("partner"), leaving.signal);
    await expect.poll(waiting).toBe(1);
    leaving.abort(GONE);
    // The clock stands still: it was not its turn that ended this.
    await expect(asked).rejects.toBe(GONE);
    await expect.poll(waiting).toBe(0);
    await clock.advance(10_000);
    expect(await limiter.peek(PARTNER)).toMatchObject({ remaining: 2 });
    expect(bodies).toEqual([]);
  });

  test("before it has begun asks nobody", async () => {
    const { of, limiter } = start();
    await expect(of("partner")(url, { signal: AbortSignal.abort(GONE) })).rejects.toBe(GONE);
    assertNotAsked(limiter, "limit");
  });

  test("is who has the signal that counts for `fetch`: `init` may say that there is none", async () => {
    const { of } = start();
    const request = new Request(url, { signal: AbortSignal.abort(GONE) });
    expect(await (await of("partner")(request, { signal: null })).text()).toBe("served");
  });
});

test("an instant counts by the clock of the server that names it", () => {
  const instants = fc.integer({ min: 0, max: 2 ** 31 }).map((seconds) => seconds * 1_000);
  fc.assert(
    fc.property(instants, instants, fc.nat(100_000), (serverMs, ownMs, seconds) => {
      const text = (ms: number) => new Date(ms).toUTCString();
      const response = new Response(null, {
        status: 429,
        headers: { date: text(serverMs), "retry-after": text(serverMs + seconds * 1_000) },
      });
      expect(pauseOf(response, ownMs)).toBe(seconds * 1_000);
      response.headers.delete("date");
      const leftMs = serverMs + seconds * 1_000 - ownMs;
      expect(pauseOf(response, ownMs)).toBe(leftMs < 0 ? undefined : leftMs);
    }),
  );
});

test.each(["-5", "1.5", "soon", "soon 2099", "", "5 minutes", "2001-05-01", "Thu, 01 Jan 1970 00:00:00 GMT"])(
  "Retry-After: %j says nothing: the answer is given back, as without it, and nothing is asked again",
  async (said) => {
    const { of, timed } = start();
    answers = [later(429, said), later(429, said)];
    const send = of("free");
    const [[body] = []] = await timed(send(url));
    expect([body, bodies.length]).toEqual(["later", 1]);
  },
);
