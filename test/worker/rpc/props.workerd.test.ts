/** What a service binding may do, as its `props` say. */
import { exports } from "cloudflare:workers";
import { describe, expect, test } from "vitest";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { freshKey } from "../../support/limiter.ts";

function bound(props?: unknown): Service<typeof Limiter> {
  const loopback = exports as unknown as {
    Limiter: (options: { props: unknown }) => Service<typeof Limiter>;
  };
  return loopback.Limiter({ props });
}

async function thrownBy(call: () => Promise<unknown>): Promise<unknown> {
  try {
    return await call();
  } catch (error) {
    return error;
  }
}

/** A call as untyped callers make it. */
type Untyped = Record<string, (call: object) => Promise<unknown>>;

describe("what the props do not allow throws", () => {
  const key = "tenant-a:1";
  const ID = `lease_${btoa("export/tenant-b:1").replaceAll("=", "")}.${"A".repeat(22)}`;
  test.each([
    ["limit", { scopes: ["admin"] }, "has no scope limit"],
    ["hold", { scopes: ["admin"] }, "has no scope limit"],
    ["acquire", { scopes: ["admin"] }, "has no scope limit"],
    ["settle", { scopes: ["admin"] }, "has no scope limit"],
    ["reset", { scopes: ["limit"] }, "has no scope admin"],
    ["endWaits", { scopes: ["limit"] }, "has no scope admin"],
    ["limit", { policies: ["api"] }, "may not use this policy"],
    ["peek", { policies: ["api"] }, "may not use this policy"],
    ["limit", { keyPrefix: "tenant-b:" }, 'may use keys that begin with "tenant-b:" only'],
    ["limit", { name: "billing", keyPrefix: "b:" }, 'the service binding "billing" may use keys'],
  ])("%s with the props %j", async (method, props, detail) => {
    const limiter = bound(props) as unknown as Untyped;
    const call = { policy: "slow", key, cost: 1, units: 1, id: "hold_a.b", used: 1 };
    const fields: Record<string, readonly string[]> = {
      limit: ["policy", "key", "cost"],
      hold: ["policy", "key", "units"],
      acquire: ["policy", "key"],
      settle: ["id", "used"],
      reset: ["policy", "key"],
      endWaits: ["policy", "key"],
      peek: ["policy", "key"],
    };
    const asked = Object.fromEntries(
      Object.entries(call).filter(([field]) => fields[method]?.includes(field)),
    );
    expect(await thrownBy(() => limiter[method]?.(asked) as Promise<unknown>)).toMatchObject({
      name: "LimiterError",
      status: 403,
      message: expect.stringContaining(detail),
    });
  });

  test("one of several checks is enough, and then nothing is taken", async () => {
    const limiter = bound({ keyPrefix: "tenant-a:" });
    const mine = `tenant-a:${freshKey()}`;
    const checks = [
      { policy: "slow", key: mine },
      { policy: "slow", key: "tenant-b:1" },
    ];
    expect(await thrownBy(() => limiter.limitAll({ checks }))).toMatchObject({ status: 403 });
    expect(await limiter.peek({ policy: "slow", key: mine })).toMatchObject({ remaining: 5 });
  });

  test("an id of a key that they do not allow is an id that does not exist", async () => {
    const limiter = bound({ keyPrefix: "tenant-a:" });
    expect(await thrownBy(() => limiter.release({ id: ID }))).toMatchObject({ status: 404 });
    expect(await thrownBy(() => limiter.renew({ id: ID }))).toMatchObject({ status: 404 });
  });

  test("policies lists those that they allow", async () => {
    const { policies } = await bound({ policies: ["slow"] }).policies();
    expect(policies.map(({ name }) => name)).toEqual(["slow"]);
  });
});

test.each([{ scopes: ["admin"] }, { policies: ["slow"] }, { keyPrefix: "" }, { props: {} }, { name: "x" }])(
  "a call cannot override them: %j in its argument is no field",
  async (more) => {
    const limiter = bound({ keyPrefix: "tenant-a:" });
    const call = { policy: "slow", key: "tenant-a:1", ...more };
    expect(await thrownBy(() => limiter.limit(call))).toMatchObject({
      status: 422,
      message: expect.stringContaining("is not a field"),
    });
  },
);

test("props that cannot be read are refused, with what they may say", async () => {
  const scopes = await thrownBy(() => bound({ scopes: ["root"] }).limit({ policy: "slow", key: "a" }));
  expect(scopes).toMatchObject({
    message: expect.stringContaining(
      'must be one of "limit", "refund", "force", "reserve", "metrics", "admin"',
    ),
  });
  const most = await thrownBy(() => bound({ maxCallsAtOnce: 0 }).limit({ policy: "slow", key: "a" }));
  expect(most).toMatchObject({
    message: expect.stringContaining("maxCallsAtOnce is 0: must be an integer from 1 to 100000"),
  });
});

test("what props do not allow is said of a binding too", async () => {
  const error = await thrownBy(() => bound({ policies: ["slow"] }).limit({ policy: "log", key: "a" }));
  expect(error).toMatchObject({
    status: 403,
    message: expect.stringContaining("The token or binding does not allow this: ") as string,
  });
});

test("props with a wrong letter, and a policy that is not there, are refused with the nearest right thing", async () => {
  const refused = async (props: object) => String(await thrownBy(() => bound(props).limit({ key: "a" })));
  expect(await refused({ polices: ["slow"] })).toContain("polices is not a field");
  expect(await refused({ polices: ["slow"] })).toContain("(did you mean policies?)");
  expect(await refused({ policy: "slwo" })).toContain("(did you mean slow?)");
});

test("answers under an idempotency key belong to a binding by its name, or by all its props", async () => {
  const key = freshKey();
  const call = { policy: "slow", key, idempotencyKey: "order" };
  const remainingOf = async (props?: unknown) => (await bound(props).limit(call)).remaining;
  expect(await remainingOf()).toBe(4);
  expect(await remainingOf({})).toBe(4);
  expect(await remainingOf({ name: "billing" })).toBe(3);
  expect(await remainingOf({ name: "billing", policies: ["slow"] })).toBe(3);
  expect(await remainingOf({ policies: ["slow"] })).toBe(2);
  expect(await remainingOf({ policies: ["slow"], scopes: ["limit"] })).toBe(1);
  expect(await remainingOf({ scopes: ["limit"], policies: ["slow"] })).toBe(1);
});

test("a binding's calls at once and new keys are bounded, and other bindings are not", async () => {
  const few = bound({ name: freshKey(), maxNewKeysPerSecond: 1 });
  const errors = await Promise.all(
    Array.from({ length: 30 }, (_, index) =>
      thrownBy(() => few.limit({ policy: "slow", key: `${freshKey()} ${index}` })),
    ),
  );
  const refused = errors.filter((error) => (error as { status?: number }).status === 429);
  expect(refused.length).toBeGreaterThanOrEqual(10);
  expect(refused[0]).toMatchObject({
    code: "bound-reached",
    message: expect.stringContaining("there are 1 new keys a second of one caller"),
  });
  expect(await bound().limit({ policy: "slow", key: freshKey() })).toMatchObject({ success: true });
});
