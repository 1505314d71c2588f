import expressApp from "express";
import { Hono } from "hono";
/** What an application's users get when the limiter refuses the call of the middleware. */
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { describe, expect, test } from "vitest";
import { LIMITER_PROBLEMS, Problem, type ProblemKind, PROBLEMS } from "../../core/protocol/problems.ts";
import { createLimiter, LimiterError } from "../../package/client.ts";
import * as express from "../../package/express.ts";
import { withConcurrency, withRateLimit } from "../../package/fetch.ts";
import * as hono from "../../package/hono.ts";
import { memoryLimiter } from "../../package/testing.ts";

const POLICIES = { api: { algorithm: "token-bucket", limit: 1, window: "1m" } };

type Limiter = ReturnType<typeof createLimiter>;
interface Options {
  readonly limiter: Limiter;
  readonly policy: string;
  readonly key: string | (() => string);
}
type Kind = "limit" | "lease";
/** The status of the answer, by the framework's own handler of errors, and the error that it handled. */
type Answer = readonly [status: number, error: unknown];

async function ask(listener: RequestListener): Promise<number> {
  const server = createServer(listener);
  await new Promise<void>((done) => void server.listen(0, "127.0.0.1", done));
  const response = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  await response.text();
  await new Promise((done) => void server.close(done));
  return response.status;
}

const nodeLimit = (kind: Kind, options: Options) =>
  kind === "limit" ? express.rateLimit(options) : express.concurrency(options);
/** As many handlers of errors do. */
const statusOf = (error: unknown) => (error as { readonly status?: number }).status ?? 500;

const FRAMEWORKS: Readonly<Record<string, (kind: Kind, options: Options) => Promise<Answer>>> = {
  fetch: async (kind, options) => {
    const handler = () => new Response("served");
    const limited = kind === "limit" ? withRateLimit(options, handler) : withConcurrency(options, handler);
    try {
      return [(await limited(new Request("https://a.test/"))).status, undefined];
    } catch (error) {
      return [statusOf(error), error];
    }
  },
  hono: async (kind, options) => {
    let handled: unknown;
    const app = new Hono().use(kind === "limit" ? hono.rateLimit(options) : hono.concurrency(options));
    app.get("/", (c) => c.text("served"));
    app.onError((error, c) => {
      handled = error;
      return c.text("failed", statusOf(error) as 500);
    });
    return [(await app.request("/")).status, handled];
  },
  "node:http": async (kind, options) => {
    let handled: unknown;
    const limit = nodeLimit(kind, options);
    const status = await ask((req, res) => {
      void limit(req, res, (error) => {
        handled = error;
        res.writeHead(error === undefined ? 200 : statusOf(error)).end();
      });
    });
    return [status, handled];
  },
  express: async (kind, options) => {
    let handled: unknown;
    const app = expressApp();
    app.use(nodeLimit(kind, options));
    app.get("/", (_, res) => void res.end("served"));
    const note: expressApp.ErrorRequestHandler = (error, _req, _res, next) => {
      handled = error;
      next(error);
    };
    app.use(note);
    return [await ask(app), handled];
  },
};

/** A client over HTTP of a limiter that refuses each call. */
function refusing(kind: ProblemKind): Limiter {
  const [status, code, title] = kind;
  const body = { type: `urn:weir:problem:${code}`, title, status, detail: "it is so" };
  const headers = { "content-type": "application/problem+json" };
  const answer = async () => new Response(JSON.stringify(body), { status, headers });
  return createLimiter({ url: "https://weir.test", token: "wrong", fetch: answer });
}

const CASES = Object.keys(FRAMEWORKS).flatMap((name) =>
  (["limit", "lease"] as const).map((kind) => [name, kind] as const),
);

describe.each(CASES)("%s: %s", (name, kind) => {
  const answerTo = async (options: Options) => (await FRAMEWORKS[name]?.(kind, options)) ?? [0, undefined];
  const at = (limiter: Limiter) => ({ limiter, policy: "api", key: "k" });

  test.each([
    LIMITER_PROBLEMS.unauthorized,
    LIMITER_PROBLEMS.forbidden,
    PROBLEMS.policyNotFound,
    PROBLEMS.notAllowed,
  ] as const)(
    "a mistake of the operator is answered 500, and said to the operator: %s",
    async (...problem) => {
      const [status, error] = await answerTo(at(refusing(problem)));
      expect(status).toBe(500);
      expect(error).toMatchObject({ status: 500, cause: { status: problem[0], code: problem[1] } });
      const { message } = error as Error;
      expect(message).toContain("it is so");
      expect(message).toContain("correct its token, or the options of the middleware");
    },
  );

  test("so is a policy that a limiter in memory does not have", async () => {
    const limiter = memoryLimiter({ policies: POLICIES });
    const [status, error] = await answerTo({ limiter, policy: "apj", key: "k" });
    expect(status).toBe(500);
    expect((error as Error).message).toContain('"apj"');
    expect((error as Error).cause).toBeInstanceOf(LimiterError);
  });

  test("a bound of the limiter keeps its 429, and an outage its 503", async () => {
    const bound = await answerTo(at(refusing(LIMITER_PROBLEMS.bound)));
    expect(bound).toMatchObject([429, { status: 429, code: "bound-reached" }]);
    const full = new Problem(PROBLEMS.unavailable, "not now").toError();
    const broken = memoryLimiter({ policies: POLICIES });
    broken.limit = broken.acquire = () => Promise.reject(full);
    expect(await answerTo(at(broken))).toEqual([503, full]);
  });

  test("an error of the application's own function is left as it is", async () => {
    const mine = Object.assign(new Error("who are you?"), { status: 401 });
    const key = () => {
      throw mine;
    };
    const answer = await answerTo({ ...at(memoryLimiter({ policies: POLICIES })), key });
    expect(answer).toEqual([401, mine]);
  });
});

test.each(["all", "any"] as const)("of several limits the call is refused alike: %s", async (mode) => {
  const limits = [{ policy: "api", key: "k" }];
  const limited = withRateLimit(
    { limiter: refusing(LIMITER_PROBLEMS.unauthorized), limits, mode },
    () => new Response("served"),
  );
  const answer = limited(new Request("https://a.test/"));
  await expect(answer).rejects.toMatchObject({ status: 500, cause: { status: 401 } });
});
