/** What no message can carry, and options that are none: both would look like a limiter that does not answer. */
import { expect, test, vi } from "vitest";
import { createLimiter } from "../../package/client.ts";
import { createMemoryLimiter } from "../../package/memory.ts";

const WAY = { url: "https://weir.test", token: "weir_token" };
const nobody = () => Promise.reject(new Error("it was asked"));
const POLICIES = { api: { algorithm: "token-bucket", limit: 400, window: "1h", onFailure: "open" } };
const circle: { units?: unknown } = {};
circle.units = circle;

const STRAY: Record<string, unknown> = {
  "a bigint": 9n,
  "a Map": new Map([["requests", 400]]),
  "a function": () => 9,
  "a circle": circle,
  NaN: Number.NaN,
  Infinity,
};

test.each(Object.keys(STRAY))("a cost that is %s is bad input, and no outage", async (name) => {
  const far = createLimiter({ ...WAY, onFailure: "open", fetch: nobody });
  const memory = createMemoryLimiter({ policies: POLICIES });
  const cost = STRAY[name] as number;
  const refused = { status: 422, code: "not-allowed" };
  for (const limiter of [far, memory]) {
    await expect(limiter.limit({ policy: "api", key: "a", cost })).rejects.toMatchObject(refused);
    await expect(limiter.hold({ policy: "api", key: "a", units: cost })).rejects.toMatchObject(refused);
    const checks = [{ policy: "api", key: "a", cost }];
    await expect(limiter.limitAll({ checks })).rejects.toMatchObject(refused);
    await expect(limiter.limitAny({ checks })).rejects.toMatchObject(refused);
  }
  expect(await memory.peek({ policy: "api", key: "a" })).toMatchObject({ remaining: 400 });
});

test.each([Number.NaN, Infinity, -Infinity])(
  "a number that JSON has not is named, and not sent: %s",
  async (cost) => {
    const far = createLimiter({ ...WAY, onFailure: "open", fetch: nobody });
    const memory = createMemoryLimiter({ policies: POLICIES });
    const asked = { policy: "api", key: "a" };
    for (const limiter of [far, memory])
      for (const call of [
        () => limiter.limit({ ...asked, cost }),
        () => limiter.limitAll({ checks: [{ ...asked, cost }] }),
        () => limiter.limitAny({ checks: [{ ...asked, cost }] }),
      ])
        await expect(call()).rejects.toMatchObject({
          status: 422,
          code: "not-allowed",
          errors: [{ detail: expect.stringContaining(`cost is ${cost}: must be a`) as string }],
        });
  },
);

test("what JSON would carry as another value is refused by its path", async () => {
  const far = createLimiter({ ...WAY, onFailure: "open", fetch: nobody });
  const asked = { policy: "llm", key: "a", cost: { tokens: Number.NaN } };
  const detail = "cost.tokens is NaN: must be a finite number";
  await expect(far.limit(asked)).rejects.toMatchObject({ errors: [{ pointer: "/cost/tokens", detail }] });
});

test("a wait is as long as the limiter allows, and is no reason to give up at once", async () => {
  const warned = vi.spyOn(process, "emitWarning").mockImplementation(() => undefined);
  const fetch = async () => {
    await new Promise((done) => setTimeout(done, 20));
    return Response.json({ success: true, policy: "api", key: "a", rules: [] });
  };
  const far = createLimiter({ ...WAY, deadlineMs: 600_000, fetch });
  const asked = { policy: "api", key: "a", waitMs: 2_147_483_647 };
  for (const decided of [far.limit(asked), far.acquire(asked), far.peek({ ...asked, waitFor: "idle" })])
    expect(await decided).toMatchObject({ success: true });
  expect(warned).not.toHaveBeenCalled();
  warned.mockRestore();
});

test("a call that is no object says so", () => {
  const limiter = createLimiter({ ...WAY, onFailure: "open", fetch: nobody });
  expect(() => limiter.limit("api" as unknown as { key: string })).toThrow('the argument is "api"');
});

test("a call without arguments, and a signal that is none, say so", async () => {
  const way = { ...WAY, onFailure: "open" as const, fetch: nobody };
  const none = undefined as never;
  const signal = "no" as never;
  for (const limiter of [createLimiter(way), createMemoryLimiter({ policies: POLICIES })]) {
    const refused = { status: 422, code: "not-allowed" };
    for (const call of [
      "limit",
      "limitAll",
      "limitAny",
      "acquire",
      "hold",
      "peek",
      "reset",
      "settle",
      "release",
    ] as const)
      await expect((async () => await limiter[call](none))(), call).rejects.toMatchObject(refused);
    for (const call of ["limit", "acquire"] as const) {
      const made = (async () => await limiter[call]({ policy: "api", key: "a", signal }))();
      await expect(made).rejects.toMatchObject({
        ...refused,
        errors: [{ pointer: "/signal", detail: 'signal is "no": must be an AbortSignal' }],
      });
    }
  }
});

test.each([undefined, null, "weir", {}])("a service that is no binding is refused: %o", (service) => {
  const make = () => createLimiter({ service } as never);
  expect(make).toThrow(TypeError);
  expect(make).toThrow(/^service is .*must be a service binding to the entrypoint Limiter$/);
});

test.each([
  [{ deadlineMs: Number.NaN }, "deadlineMs is NaN: must be an integer, from 1"],
  [{ deadlineMs: -5 }, "deadlineMs is -5"],
  [{ deadlineMs: "5s" }, 'deadlineMs is "5s"'],
  [{ onFailure: "opne" }, 'onFailure is "opne": must be "closed" or "open"'],
  [{ onfailure: "open" }, "policy, deadlineMs, onFailure (did you mean onFailure?)"],
  [{ urll: "x" }, "urll is not an option: there are url, token"],
  [{ policy: 5 }, "policy is 5"],
  [{ token: "weir\ntoken" }, "token has a space, line break or character beyond ASCII"],
  [{ token: "" }, "token is missing"],
  [{ url: "weir.test" }, 'url is "weir.test"'],
])("%o is refused", (given, said) => {
  expect(() => createLimiter({ ...WAY, ...(given as object) })).toThrow(said);
});
