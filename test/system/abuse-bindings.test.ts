/** Service bindings whose `props` allow little: what the caller's code says does not change what it may do. */
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { BoundClient } from "../support/bound-client.ts";
import { idOf } from "../support/callers.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const BUCKET = { algorithm: "token-bucket", limit: 1_000, window: "30d", deadlineMs: 30_000 };
const policies = {
  api: BUCKET,
  other: BUCKET,
  slots: { algorithm: "concurrency", limit: 10, deadlineMs: 30_000 },
};
const callerProps = {
  OWNER: {},
  TENANT: { scopes: ["limit"], policies: ["api", "slots"], keyPrefix: "tenant:" },
  READER: { scopes: ["admin"] },
  NAMED: { name: "shop", policy: "api" },
  RENAMED: { name: "shop", policies: ["api"] },
  UNNAMED: { policy: "api" },
  WRONG: { scopes: ["everything"] },
};
const CALLER = join(import.meta.dirname, "..", "support", "bound-caller.mjs");

const state = makeState();
let serving: Serving;
const by = (binding: keyof typeof callerProps) => new BoundClient(serving.callerUrl, binding);
let keys = 0;
const freshKey = () => `tenant:${(keys += 1)}`;
const thrown = (status: number, detail: string) => ({
  status,
  body: { name: "LimiterError", message: expect.stringContaining(detail) },
});

beforeAll(async () => {
  serving = await serveBundle(state, policies, { caller: CALLER, callerProps });
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
});

describe("what the props do not allow throws a LimiterError with 403", () => {
  test.each([
    ["limit", { policy: "other", key: "tenant:1" }, "may not use this policy"],
    ["limit", { policy: "none", key: "tenant:1" }, "may not use this policy"],
    ["limit", { policy: "api", key: "1" }, "may use keys that begin with"],
    [
      "limitAll",
      {
        checks: [
          { policy: "api", key: "tenant:1" },
          { policy: "api", key: "1" },
        ],
      },
      "begin with",
    ],
    ["hold", { policy: "other", key: "tenant:1", units: 1 }, "may not use this policy"],
    ["refund", { policy: "api", key: "1", units: 1, idempotencyKey: "once" }, "begin with"],
    ["acquire", { policy: "slots", key: "1" }, "begin with"],
    ["peek", { policy: "other", key: "tenant:1" }, "may not use this policy"],
    ["reset", { policy: "api", key: "tenant:1" }, "has no scope admin"],
  ])("%s %j", async (method, argument, detail) => {
    expect(await by("TENANT").call(method, argument)).toMatchObject(thrown(403, detail));
  });

  test.each(["limit", "hold", "acquire", "refund"])("%s without the scope", async (method) => {
    expect(await by("READER").call(method, { policy: "api", key: "1" })).toMatchObject(
      thrown(403, "has no scope limit"),
    );
  });

  test("props that are not allowed throw at each call, and say what is wrong with them", async () => {
    expect(await by("WRONG").call("limit", { policy: "api", key: "1" })).toMatchObject(
      thrown(422, 'must be one of "limit", "refund", "force", "reserve", "metrics", "admin"'),
    );
  });
});

test.each(["scopes", "policies", "keyPrefix", "props", "name", "caller", "callerId"])(
  "%s in the argument is refused as an unknown field, and changes nothing",
  async (field) => {
    const key = freshKey();
    const value = field === "scopes" || field === "policies" ? ["limit", "admin", "other"] : "tenant:";
    const given = { policy: "api", key, [field]: value };
    for (const method of ["limit", "peek"])
      expect(await by("TENANT").call(method, given)).toMatchObject(thrown(422, `${field} is not a field`));
    expect(await by("TENANT").call("limitAll", { checks: [given] })).toMatchObject(
      thrown(422, `${field} is not a field`),
    );
    const held = { ...given, units: 1 };
    expect(await by("TENANT").call("hold", held)).toMatchObject(thrown(422, `${field} is not a field`));
    expect((await by("OWNER").call("peek", { policy: "api", key })).body["remaining"]).toBe(1_000);
  },
);

test("ids of other prefixes and policies are 404, and what they name goes on", async () => {
  const hold = (policy: string, key: string) => by("OWNER").call("hold", { policy, key, units: 3 });
  for (const held of [await hold("api", "elsewhere"), await hold("other", freshKey())]) {
    const id = idOf(held);
    for (const [method, more] of [
      ["settle", { used: 0 }],
      ["cancel", {}],
    ] as const)
      expect(await by("TENANT").call(method, { id, ...more })).toMatchObject(thrown(404, "no such hold"));
    expect((await by("OWNER").call("settle", { id, used: 2 })).body["remaining"]).toBe(998);
  }
  const lease = idOf(
    await by("OWNER").call("acquire", { policy: "slots", key: "elsewhere", detached: true }),
  );
  for (const method of ["renew", "release"])
    expect(await by("TENANT").call(method, { id: lease })).toMatchObject(thrown(404, "no such lease"));
  expect((await by("OWNER").call("release", { id: lease })).status).toBe(200);
});

describe("answers under idempotency keys", () => {
  const hold = (binding: keyof typeof callerProps, key: string, units = 3) =>
    by(binding).call("hold", { policy: "api", key, units, idempotencyKey: "order" });

  test("are not shared by bindings with other props", async () => {
    const key = freshKey();
    const bindings = ["OWNER", "TENANT", "NAMED", "UNNAMED"] as const;
    const ids = [];
    for (const [index, binding] of bindings.entries()) ids.push(idOf(await hold(binding, key, 1 + index)));
    expect(new Set(ids).size).toBe(bindings.length);
    for (const [index, binding] of bindings.entries())
      expect(idOf(await hold(binding, key, 1 + index))).toBe(ids[index]);
  });

  test("are shared by bindings of one name", async () => {
    const key = freshKey();
    expect(idOf(await hold("RENAMED", key))).toBe(idOf(await hold("NAMED", key)));
    expect((await hold("RENAMED", key, 4)).status).toBe(409);
  });
});

test("a sparse array or a Map is refused, however large it says it is", async () => {
  const call = { policy: "api", key: freshKey() };
  for (const [method, field] of [
    ["limit", "cost"],
    ["hold", "units"],
    ["limitAll", "checks"],
  ] as const)
    for (const kind of ["sparse", "map"])
      expect((await by("TENANT").call(method, call, { [field]: kind })).status).toBe(422);
  expect((await by("OWNER").call("peek", call)).body["remaining"]).toBe(1_000);
});
