/** Joint checks of one key name one plan, the same limits and one group: others are refused before anything is taken. */
import { SELF } from "cloudflare:test";
import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import { createLimiter, type LimitAllRequest } from "../../../package/client.ts";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { call, freshKey, report } from "../../support/limiter.ts";

type Checks = LimitAllRequest["checks"];
const planned = (key: string, ...fields: readonly object[]): Checks =>
  fields.map((each) => ({ policy: "planned", key, ...each }));
const fair = (key: string, ...groups: readonly string[]): Checks =>
  groups.map((group) => ({ policy: "fair", key, group, cost: 3 }));
const LIMITS = { limits: { requests: 500 } };
const SAME = "as in checks.0 (checks on the same key must name the same";

const { Limiter: entrypoint } = exports as unknown as { Limiter: Service<typeof Limiter> };

/** What a call throws. An RPC promise that is only half awaited would count as an unhandled rejection too. */
async function thrownBy(make: () => Promise<unknown>): Promise<unknown> {
  try {
    return await make();
  } catch (error) {
    return error;
  }
}

const CASES: readonly [string, string, (key: string) => Checks, string, string][] = [
  [
    "a plan after none",
    "planned",
    (key) => planned(key, { cost: 6 }, { cost: 6, plan: "pro" }),
    "/checks/1/plan",
    `checks.1.plan is "pro": must be "", ${SAME} plan)`,
  ],
  [
    "none after a plan",
    "planned",
    (key) => [...planned(key, { cost: 6, plan: "pro" }), { policy: "slow", key }, ...planned(key, {})],
    "/checks/2/plan",
    `checks.2.plan is "": must be "pro", ${SAME} plan)`,
  ],
  [
    "limits of its own after none",
    "planned",
    (key) => planned(key, {}, LIMITS),
    "/checks/1/limits",
    `checks.1.limits is {"requests":500}: must be left out, ${SAME} limits)`,
  ],
  [
    "other limits",
    "planned",
    (key) => planned(key, LIMITS, { limits: { requests: 400 } }),
    "/checks/1/limits",
    `checks.1.limits is {"requests":400}: must be {"requests":500}, ${SAME} limits)`,
  ],
  [
    "another group",
    "fair",
    (key) => fair(key, "a", "b"),
    "/checks/1/group",
    `checks.1.group is "b": must be "a", ${SAME} group)`,
  ],
];

test.each(CASES)("%s is refused, over each transport", async (_, policy, checksOf, pointer, detail) => {
  const key = freshKey();
  const checks = checksOf(key);
  const before = (await report(policy, key)).body;
  const says = expect.stringContaining(detail) as string;
  const { status, body } = await call("/v1/limit/all", { body: { checks } });
  expect(status).toBe(422);
  expect(body["errors"]).toEqual([{ pointer, detail }]);
  expect(await thrownBy(() => entrypoint.limitAll({ checks }))).toMatchObject({ message: says });
  const fetch = (input: RequestInfo, init?: RequestInit) => SELF.fetch(input, init);
  const limiter = createLimiter({ url: "https://weir.test", token: TOKENS.reserve, fetch });
  expect(await thrownBy(() => limiter.limitAll({ checks }))).toMatchObject({ message: says });
  await limiter.close();
  expect((await report(policy, key)).body).toEqual(before);
});

test("joint checks that say the same are decided together, and say it", async () => {
  const key = freshKey();
  const limits = (...requests: readonly number[]) =>
    requests.map((each) => ({ plan: "pro", limits: { requests: each } }));
  const together = await call("/v1/limit/all", { body: { checks: planned(key, ...limits(500, 500)) } });
  expect(together.body).toMatchObject({
    success: true,
    decisions: [{ plan: "pro", limit: 500 }, { plan: "pro" }],
  });
  const shared = await call("/v1/limit/all", { body: { checks: fair(key, "a", "a") } });
  expect(shared.body).toMatchObject({
    success: true,
    decisions: [{ group: "a", remaining: 94 }, { group: "a" }],
  });
});

test("checks that are decided by themselves, and those of other keys, each have their own", async () => {
  const key = freshKey();
  const alone = { checks: planned(key, { cost: 6 }, { cost: 6, plan: "pro" }), atomic: false };
  const { body } = await call("/v1/limit/all", { body: alone });
  expect(body["decisions"]).toMatchObject([{ success: true }, { success: true, plan: "pro" }]);
  const others = [...planned(freshKey(), {}), ...planned(freshKey(), { plan: "pro" })];
  const joint = await call("/v1/limit/all", { body: { checks: others } });
  expect(joint.body).toMatchObject({ success: true, decisions: [{ limit: 10 }, { plan: "pro" }] });
});

test("slots are leased check by check, so each has its own group", async () => {
  const key = freshKey();
  const checks = ["a", "b"].map((group) => ({ policy: "fair-slots", key, group }));
  const { body } = await call("/v1/limit/all", { body: { checks } });
  expect(body).toMatchObject({ success: true, decisions: [{ group: "a" }, { group: "b" }] });
});
