import { expect, test } from "vitest";
import { LimiterClient } from "../../../client/objects/limiter-client.ts";
import { Objects } from "../../../client/transports/objects.ts";
import { readClockMs } from "../../../core/clock.ts";
import { parseDeployment } from "../../../core/policies/parse-policies.ts";
import { DEFAULT_BOUNDS } from "../../../core/policies/policy.ts";
import { type Principal, SCOPES } from "../../../worker/auth/tokens.ts";
import { callLimit, callSetUsed } from "../../../worker/calls/limits.ts";

const { regionalPolicies: policies } = parseDeployment({
  policies: { pooled: { algorithm: "token-bucket", limit: 5, window: "1s", pool: "redis" } },
});
/** Nothing may be asked of an object here. */
const objects = new Objects(
  {
    getByName: () => {
      throw new Error("an object was asked");
    },
  },
  { nowMs: readClockMs, after: () => () => undefined },
);
const client = new LimiterClient({
  policies,
  objects,
  time: { nowMs: readClockMs, after: () => () => undefined },
  inBackground: () => undefined,
});
const principal: Principal = { title: "the test", id: "test", bounds: DEFAULT_BOUNDS, scopes: SCOPES };

test("where regions share a pool, nothing can be forced or set: the problem says so", async () => {
  expect(await callLimit({ client, principal }, { policy: "pooled", key: "a", force: true })).toMatchObject({
    status: 422,
    errors: [
      { pointer: "/force", detail: 'force is true: must be left out under a policy with pool = "redis"' },
    ],
  });
  expect(await callSetUsed({ client, principal }, { policy: "pooled", key: "a", used: 1 })).toMatchObject({
    status: 422,
    errors: [{ pointer: "/policy", detail: expect.stringContaining("a policy without a pool") }],
  });
});
