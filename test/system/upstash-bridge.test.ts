/** The bridge, with Upstash's own client against it and a real Redis behind it. */
import { Redis } from "@upstash/redis";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startRedis, type RedisServer } from "../../scripts/redis-server.ts";
import { startBridge, type Bridge } from "../../scripts/upstash-bridge.ts";
import { eventually } from "../support/eventually.ts";
import { startUnreliable, type Unreliable } from "../support/unreliable-http.ts";

const TOKEN = "a-token";

let server: RedisServer;
let bridge: Bridge;
let redis: Redis;

beforeAll(async () => {
  server = await startRedis();
  bridge = await startBridge({ redisUrl: `redis://127.0.0.1:${server.port}`, token: TOKEN });
  redis = clientOf(bridge.url);
});
afterAll(async () => {
  await bridge.stop();
  await server.stop();
});
beforeEach(() => redis.flushall());

/**
 * As it comes, but for two things: strings stay strings, and a broken request is not tried again. For that, `retry:
 * false` is not enough: version 1.39 then still tries twice.
 */
function clientOf(url: string, token = TOKEN): Redis {
  return new Redis({
    url,
    token,
    automaticDeserialization: false,
    retry: { retries: 0 },
    enableTelemetry: false,
  });
}

function call(path: string, init: RequestInit = {}, token = TOKEN): Promise<Response> {
  return fetch(bridge.url + path, { ...init, headers: { Authorization: `Bearer ${token}` } });
}

async function answerTo(path: string, init: RequestInit = {}): Promise<[number, unknown]> {
  const response = await call(path, init);
  return [response.status, await response.json()];
}

describe("commands", () => {
  test("what was set is what is got, and what was not is null", async () => {
    expect(await redis.set("key", "value")).toBe("OK");
    expect(await redis.get("key")).toBe("value");
    expect(await redis.get("nothing")).toBeNull();
    expect(await redis.mget("key", "nothing")).toEqual(["value", null]);
  });

  test("integers beyond 32 bits are exact", async () => {
    await redis.set("count", 2 ** 31);
    expect(await redis.incr("count")).toBe(2 ** 31 + 1);
    expect(await redis.incrby("count", 2 ** 52)).toBe(2 ** 52 + 2 ** 31 + 1);
    expect(await redis.decrby("negative", 2 ** 40)).toBe(-(2 ** 40));
  });

  const texts = [
    "",
    "OK",
    "T0s=",
    "é ü 漢 🚰",
    '{"a":[1]}',
    "line\r\nbreak\0null",
    " \u{10FFFF}",
    "a".repeat(100_000),
  ];
  test.each(texts)("text comes back as it was, with base64 and without (case %#)", async (text) => {
    await redis.set("text", text);
    expect(await redis.get("text")).toBe(text);
    expect(
      await redis.eval("return {redis.call('GET', KEYS[1]), {ARGV[1], 'OK'}}", ["text"], [text]),
    ).toEqual([text, [text, "OK"]]);
    expect(await answerTo("/get/text")).toEqual([200, { result: text }]);
  });

  test("bytes that are no text come through in base64", async () => {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, index) => index));
    await call("/set/bytes", { method: "POST", body: bytes });
    const response = await fetch(`${bridge.url}/get/bytes`, {
      headers: { Authorization: `Bearer ${TOKEN}`, "Upstash-Encoding": "base64" },
    });
    expect(await response.json()).toEqual({ result: bytes.toString("base64") });
  });

  test("a script that Redis does not know is said to be unknown, and known once loaded", async () => {
    const script = "return {tonumber(ARGV[1]), KEYS[1], false, {1}}";
    await expect(redis.evalsha("0".repeat(40), ["key"], [7])).rejects.toThrow("NOSCRIPT");
    const sha = await redis.scriptLoad(script);
    expect(await redis.evalsha(sha, ["key"], [7])).toEqual([7, "key", null, [1]]);
  });

  test("a command that Redis refuses is an error, with Redis' words", async () => {
    await redis.set("text", "no number");
    await expect(redis.incr("text")).rejects.toThrow("ERR value is not an integer or out of range");
  });

  test("what would change the shared connection is refused, and changes nothing", async () => {
    for (const command of ["multi", "subscribe/channel", "select/1", "BLPOP/key/0", "quit"])
      expect((await call(`/${command}`)).status).toBe(400);
    await redis.set("key", "value");
    expect(await redis.get("key")).toBe("value");
  });

  test("each of many at once gets its own reply, and each is counted", async () => {
    const before = bridge.commands();
    const numbers = Array.from({ length: 500 }, (_, index) => String(index));
    expect(await Promise.all(numbers.map((each) => redis.echo(each)))).toEqual(numbers);
    expect(bridge.commands() - before).toBe(numbers.length);
  });
});

describe("several at once", () => {
  test("a pipeline goes on after an error, and says it in its place", async () => {
    const pipeline = redis.pipeline().set("text", "a").incr("text").set("after", "b").get("after");
    const [set, failed, ...others] = await pipeline.exec({ keepErrors: true });
    expect([set.result, others.map(({ result }) => result)]).toEqual(["OK", ["OK", "b"]]);
    expect(failed.error).toContain("ERR value is not an integer");
  });

  test("a transaction is executed as one", async () => {
    const additions = Array.from({ length: 50 }, () =>
      redis.multi().incr("a").incr("a").exec<[number, number]>(),
    );
    for (const [first, second] of await Promise.all(additions)) expect(second).toBe(first + 1);
  });

  test("a transaction with a command that cannot be queued is discarded whole", async () => {
    const body = JSON.stringify([["SET", "key", "value"], ["GET"]]);
    const [status, answer] = await answerTo("/multi-exec", { method: "POST", body });
    expect([status, answer]).toEqual([400, { error: expect.stringContaining("EXECABORT") as string }]);
    expect(await redis.exists("key")).toBe(0);
  });
});

describe("requests", () => {
  test("a wrong token or none is refused, and nothing is executed", async () => {
    await expect(clientOf(bridge.url, "another").set("key", "value")).rejects.toThrow("WRONGPASS");
    const refusal = { error: "WRONGPASS invalid or missing auth token" };
    const response = await fetch(`${bridge.url}/set/key/value?_token=another`);
    expect([response.status, await response.json()]).toEqual([401, refusal]);
    expect(await redis.exists("key")).toBe(0);
  });

  test("a command may be in the path, its token in the query", async () => {
    expect(await answerTo("/set/foo/b%2Far?EX=100")).toEqual([200, { result: "OK" }]);
    expect(await answerTo("/get/foo")).toEqual([200, { result: "b/ar" }]);
    expect(await redis.ttl("foo")).toBeGreaterThan(90);
    const response = await fetch(`${bridge.url}/get/foo?_token=${TOKEN}`);
    expect(await response.json()).toEqual({ result: "b/ar" });
  });

  test("a body is the path's last argument, before the query's", async () => {
    await call("/set/foo?EX=100", { method: "POST", body: "body" });
    expect([await redis.get("foo"), (await redis.ttl("foo")) > 90]).toEqual(["body", true]);
  });

  const malformed = [
    "",
    "{",
    "{}",
    "[]",
    "null",
    "7",
    '"GET"',
    "[[]]",
    '[["GET"]]',
    '["GET",{}]',
    '["GET",null]',
    '[""]',
  ];
  test.each(malformed)("the body %j is an error, and is not passed on", async (body) => {
    const before = bridge.commands();
    for (const path of body === '[["GET"]]' ? ["/"] : ["/", "/pipeline", "/multi-exec"]) {
      const [status, answer] = await answerTo(path, { method: "POST", body });
      expect([status, answer]).toEqual([400, { error: expect.stringMatching(/^ERR /) as string }]);
    }
    expect(bridge.commands()).toBe(before);
  });

  test("a body that is too large, a path that is no path and a method that is none are errors", async () => {
    const large = JSON.stringify(["SET", "key", "a".repeat(11 * 1024 * 1024)]);
    expect((await call("/", { method: "POST", body: large })).status).toBe(400);
    expect((await call("/get/%ff")).status).toBe(400);
    expect((await call("/get/key", { method: "DELETE" })).status).toBe(405);
  });
});

describe("a Redis that fails", () => {
  test("killed: 503 soon and nothing is kept for later; back: it answers again, empty", async () => {
    await redis.set("key", "value");
    const { port } = server;
    await server.stop("SIGKILL");
    await eventually(async () => expect((await call("/incr/late")).status).toBe(503));
    const before = bridge.commands();
    await expect(redis.incr("late")).rejects.toThrow("Redis is not available");
    expect(bridge.commands()).toBe(before);
    server = await startRedis({ port });
    await eventually(async () => expect((await call("/ping")).status).toBe(200));
    expect(await redis.mget("key", "late")).toEqual([null, null]);
  });

  test("killed while a command waits: the command is answered 503 and not sent again", async () => {
    const { port } = server;
    server.process.kill("SIGSTOP");
    const before = bridge.commands();
    const waiting = call("/incr/count");
    await eventually(() => expect(bridge.commands()).toBe(before + 1));
    await server.stop("SIGKILL");
    expect((await waiting).status).toBe(503);
    server = await startRedis({ port });
    await eventually(async () => expect((await call("/ping")).status).toBe(200));
    expect(await redis.get("count")).toBeNull();
  });

  test("paused: requests hang, and are answered once it goes on", async () => {
    server.process.kill("SIGSTOP");
    const before = bridge.commands();
    const waiting = redis.incr("count");
    await eventually(() => expect(bridge.commands()).toBe(before + 1));
    const hung = call("/incr/count", { signal: AbortSignal.timeout(200) });
    await expect(hung).rejects.toThrow("timeout");
    server.process.kill("SIGCONT");
    expect(await waiting).toBe(1);
  });
});

describe("the unreliable proxy", () => {
  let proxy: Unreliable;
  let through: Redis;
  beforeAll(async () => {
    proxy = await startUnreliable(bridge.url);
    through = clientOf(proxy.url);
  });
  afterAll(() => proxy.stop());
  beforeEach(() => proxy.setFault({ kind: "pass" }));

  test("a lost request is not executed, a lost reply is, a duplicate is twice", async () => {
    proxy.setFault({ kind: "lose-request" });
    await expect(through.incr("count")).rejects.toThrow();
    expect(await redis.get("count")).toBeNull();
    proxy.setFault({ kind: "lose-reply" });
    await expect(through.incr("count")).rejects.toThrow();
    expect(await redis.get("count")).toBe("1");
    proxy.setFault({ kind: "duplicate" });
    expect(await through.incr("count")).toBe(3);
  });

  test("delayed requests are executed and answered, hanging ones are not answered", async () => {
    proxy.setFault({ kind: "delay-request", ms: 5 });
    expect(await through.incr("count")).toBe(1);
    proxy.setFault({ kind: "delay-reply", ms: 5 });
    expect(await through.incr("count")).toBe(2);
    for (const kind of ["hang", "hang-reply"] as const) {
      proxy.setFault({ kind });
      await expect(fetch(proxy.url, { signal: AbortSignal.timeout(200) })).rejects.toThrow("timeout");
    }
  });

  test("an invented answer comes instead, and nothing is forwarded", async () => {
    const error = "ERR max requests limit exceeded. Limit: 500000, Usage: 500000.";
    const before = proxy.forwarded();
    proxy.setFault({ kind: "answer", status: 400, body: JSON.stringify({ error }) });
    await expect(through.incr("count")).rejects.toThrow(error);
    expect(proxy.forwarded()).toBe(before);
  });

  test("a probability hits some and passes the others, the same ones for a seed", async () => {
    const run = async () => {
      const seeded = await startUnreliable(bridge.url, 7);
      seeded.setFault({ kind: "answer", status: 500, body: "{}" }, 0.5);
      const statuses: number[] = [];
      for (let index = 0; index < 40; index += 1)
        statuses.push((await fetch(`${seeded.url}/ping?_token=${TOKEN}`)).status);
      await seeded.stop();
      return statuses;
    };
    const statuses = await run();
    expect(new Set(statuses)).toEqual(new Set([200, 500]));
    expect(await run()).toEqual(statuses);
  });
});
