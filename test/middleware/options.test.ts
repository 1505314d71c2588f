/** What is wrong with options is said when they are given, and what is wrong with a request's key, to whoever sent it. */
import { Hono } from "hono";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { PROBLEMS } from "../../core/protocol/problems.ts";
import { rateLimitBinding } from "../../package/cloudflare.ts";
import * as express from "../../package/express.ts";
import { limitedFetch, withConcurrency, withRateLimit } from "../../package/fetch.ts";
import * as hono from "../../package/hono.ts";
import { manualClock, memoryLimiter } from "../../package/testing.ts";
import { Ratelimit } from "../../package/upstash.ts";

const POLICIES = {
  api: { algorithm: "token-bucket", limit: 3, window: "1m", onFailure: "open" },
  slots: { algorithm: "concurrency", limit: 3, ttl: "1m" },
};
const limiter = memoryLimiter({ policies: POLICIES });
const GOOD = { limiter, policy: "api", key: "k" };
const ok = () => new Response("ok");

/** Options of any kind, as a program without types gives them. */
type Made = (given: object) => unknown;

const LIMITS: Readonly<Record<string, Made>> = {
  "hono's rateLimit": (given) => hono.rateLimit(given as never),
  "express's rateLimit": (given) => express.rateLimit(given as never),
  withRateLimit: (given) => withRateLimit(given as never, ok),
};
const LEASES: Readonly<Record<string, Made>> = {
  "hono's concurrency": (given) => hono.concurrency(given as never),
  "express's concurrency": (given) => express.concurrency(given as never),
  withConcurrency: (given) => withConcurrency(given as never, ok),
};
const OTHERS: Readonly<Record<string, Made>> = {
  limitedFetch: (given) => limitedFetch({ waitMs: 1_000, ...given } as never),
  rateLimitBinding: (given) => rateLimitBinding(given as never),
  Ratelimit: (given) => new Ratelimit(given as never),
};

test.each(Object.entries({ ...LIMITS, ...LEASES }))("%s refuses what nobody would read", (_, make) => {
  expect(() => make({ ...GOOD, waitms: 5 })).toThrow(
    /^waitms is not an option: there are .*mean waitMs\?\)$/,
  );
  expect(() => make({ ...GOOD, waitMs: -1 })).toThrow("waitMs is -1: must be an integer, 0 or more");
  expect(() => make({ ...GOOD, waitMs: "5s" })).toThrow('waitMs is "5s": must be an integer, 0 or more');
  expect(() => make({ policy: "api", key: "k" })).toThrow("limiter is missing: must be a limiter, as");
  expect(() => make({ limiter, policy: "api" })).toThrow("key is missing: must be a text, or a function");
  expect(() => make({ ...GOOD, waitMs: 0, priority: undefined, onDenied: () => undefined })).not.toThrow();
});

test.each(Object.entries(LIMITS))("%s reads each of its limits", (_, make) => {
  const { limiter: who, ...check } = GOOD;
  expect(() => make({ limiter: who, limits: [{ ...check, kee: "k" }] })).toThrow("(did you mean key?)");
  expect(() => make({ limiter: who, limits: [{ policy: "api" }] })).toThrow("key of a limit is missing");
  expect(() => make({ limiter: who, limits: [] })).toThrow(
    "limits is an array of 0: must be a list of 1 or more",
  );
  expect(() => make({ ...GOOD, limits: [check] })).toThrow(
    'policy is "api": must be in a check of limits, not beside',
  );
  expect(() => make({ limiter: who, limits: [check, check] })).not.toThrow();
  expect(() => make({ limiter: who, limits: [check], mode: "any" })).not.toThrow();
  expect(() => make({ limiter: who, limits: [check], mode: "one" })).toThrow(
    'mode is "one": must be "all" or',
  );
  expect(() => make({ ...GOOD, mode: "any" })).toThrow('mode is "any": must be "all" or "any" beside limits');
});

test.each(Object.entries(LEASES))("%s reads its times", (_, make) => {
  expect(() => make({ ...GOOD, ttlMs: 0 })).toThrow("ttlMs is 0: must be an integer, 1 or more");
  expect(() => make({ ...GOOD, mostMs: Number.NaN })).toThrow("mostMs is NaN: must be an integer, 1 or more");
});

test.each(Object.entries(OTHERS))("%s refuses what nobody would read", (name, make) => {
  const given = name === "limitedFetch" ? GOOD : { limiter, policy: "api" };
  expect(() => make({ ...given, polici: "api" })).toThrow("(did you mean policy?)");
  expect(() => make({ ...given, limiter: undefined })).toThrow("limiter is missing: must be a limiter, as");
  expect(() => make(given)).not.toThrow();
});

test.each(["rateLimitBinding", "Ratelimit"])("%s refuses what is no limiter, and no policy", (name) => {
  const make = (given: object) => () => OTHERS[name]?.({ limiter, policy: "api", ...given });
  const allowed = "must be a limiter, as createLimiter makes one";
  expect(make({ limiter: "weir.test" })).toThrow(`limiter is "weir.test": ${allowed}`);
  expect(make({ limiter: {} })).toThrow(`limiter is an object: ${allowed}`);
  expect(make({ limiter: () => limiter })).toThrow(`limiter is a function: ${allowed}`);
  expect(make({ policy: 5 })).toThrow("policy is 5: must be the name of a policy");
  expect(make({ policy: null })).toThrow("policy is null: must be the name of a policy");
  expect(make({ policy: undefined })).not.toThrow();
});

test("Ratelimit refuses what is no clock, and the word that weir-limiter/testing has for it", () => {
  const make = (given: object) => () => OTHERS["Ratelimit"]?.({ limiter, policy: "api", ...given });
  expect(make({ time: Date.now })).toThrow("time is a function: must be a clock, as manualClock()");
  expect(make({ clock: manualClock() })).toThrow(
    "clock is not an option: there are limiter, policy, time (did",
  );
  expect(make({ time: manualClock() })).not.toThrow();
});

test("limitedFetch refuses attempts and waits that are none", () => {
  const make = (given: object) => () => limitedFetch({ ...GOOD, waitMs: 1_000, ...given });
  expect(make({ attempts: 0 })).toThrow("attempts is 0: must be an integer, 1 or more");
  expect(make({ attempts: 1.5 })).toThrow("attempts is 1.5: must be an integer, 1 or more");
  expect(make({ waitMs: -1 })).toThrow("waitMs is -1: must be an integer, 0 or more");
  expect(make({ waitMs: undefined })).toThrow("waitMs is missing: must be an integer, 0 or more");
});

test("a limiter that its function does not find is named", async () => {
  const error = "limiter is missing: must be found by the function that was given for it";
  for (const none of [() => undefined as never, () => Promise.resolve(undefined as never)]) {
    const handler = withRateLimit({ ...GOOD, limiter: none }, ok);
    await expect(handler(new Request("https://a.test"))).rejects.toThrow(error);
  }
});

const LONG = "é".repeat(257);

/** Applications with a limit and a lease that count by a header, each with an answer to a request of that key. */
const APPLICATIONS: Readonly<Record<string, (key: string, isLease: boolean) => Promise<Response>>> = {
  hono: async (key, isLease) => {
    const options = { limiter, policy: isLease ? "slots" : "api", key: () => key };
    const app = new Hono().use(isLease ? hono.concurrency(options) : hono.rateLimit(options));
    return await app.get("/", (c) => c.text("ok")).request("/");
  },
  fetch: async (key, isLease) => {
    const options = { limiter, policy: isLease ? "slots" : "api", key: () => key };
    const handler = isLease ? withConcurrency(options, ok) : withRateLimit(options, ok);
    return await handler(new Request("https://a.test/"));
  },
  express: async (key, isLease) => {
    const options = { limiter, policy: isLease ? "slots" : "api", key: () => key };
    const make = isLease ? express.concurrency : express.rateLimit;
    const limited = make<IncomingMessage, ServerResponse>(options);
    const server = createServer((req, res) => void limited(req, res, (error) => res.end(String(error))));
    await new Promise<void>((done) => void server.listen(0, "127.0.0.1", done));
    const response = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    const copy = new Response(await response.text(), response);
    await new Promise((done) => server.close(done));
    return copy;
  },
};

test.each(
  Object.keys(APPLICATIONS).flatMap((name) => [
    [name, "limit"],
    [name, "lease"],
  ]),
)(
  "%s: a request with a key that is too long is answered with 422, and asks nobody: %s",
  async (name, what) => {
    const answer = (key: string) =>
      APPLICATIONS[name as "hono"]?.(key, what === "lease") as Promise<Response>;
    const before = limiter.calls.length;
    const [status, , title] = PROBLEMS.notAllowed;
    const refused = await answer(LONG);
    expect(refused.status).toBe(422);
    expect(refused.headers.get("content-type")).toBe("application/problem+json");
    expect(await refused.json()).toEqual({
      type: "urn:weir:problem:not-allowed",
      title,
      status,
      detail: "the key of this request is a text of 514 bytes: must be 1 to 512 bytes of UTF-8",
    });
    expect((await answer("\ud800")).status).toBe(422);
    const asked = limiter.calls.slice(before).filter(({ method }) => method !== "policies");
    expect(asked).toEqual([]);
    expect((await answer("é".repeat(256))).status).toBe(200);
  },
);

test("a key that was forgotten is still the application's own error", async () => {
  const forgotten = withRateLimit({ ...GOOD, key: () => "" }, ok);
  await expect(forgotten(new Request("https://a.test"))).rejects.toMatchObject({ cause: { status: 422 } });
  const fixed = withRateLimit({ ...GOOD, key: LONG }, ok);
  await expect(fixed(new Request("https://a.test"))).rejects.toMatchObject({ cause: { status: 422 } });
});
