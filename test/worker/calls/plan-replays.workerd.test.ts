/** Repeated calls and refunds on keys with plans, as callers see them: body and headers say which plan decided. */
import { expect, test } from "vitest";
import { call, freshKey, limit, report } from "../../support/limiter.ts";

const PRO = '"planned";q=40;w=2592000;plan="pro"';
const OWN = '"planned";q=10;w=2592000';
const policyOf = ({ headers }: { readonly headers: Headers }) => headers.get("ratelimit-policy");

test.each([
  [{ plan: "pro" }, {}, 40, PRO],
  [{ plan: "pro" }, { plan: "max" }, 40, PRO],
  [{}, { plan: "pro" }, 10, OWN],
  [{ limits: { requests: 500 } }, {}, 500, '"planned";q=500;w=2592000'],
  [{}, { limits: { requests: 500 } }, 10, OWN],
  [{ plan: "pro", limits: { requests: 500 } }, {}, 500, '"planned";q=500;w=2592000;plan="pro"'],
])(
  "a call with %j that is repeated with %j has the first one's body and headers",
  async (first, other, most, says) => {
    const key = freshKey();
    const once = { idempotencyKey: "once", cost: 4 };
    for (const fields of [first, other]) {
      const repeated = await limit("planned", key, { ...once, ...fields });
      const { plan } = first as { plan?: string };
      expect(repeated.body).toMatchObject({ limit: most, remaining: most - 4, success: true });
      expect(repeated.body["plan"]).toBe(plan);
      expect(policyOf(repeated)).toBe(says);
      expect(repeated.headers.get("ratelimit")).toContain(`"planned";r=${most - 4};`);
    }
  },
);

test("the same is so of the chosen check of several, of a joint check, a hold and a lease", async () => {
  const key = freshKey();
  const check = { policy: "planned", key, plan: "pro" };
  const any = (plan: string) =>
    call("/v1/limit/any", {
      body: {
        checks: [
          { ...check, plan },
          { policy: "slow", key },
        ],
        idempotencyKey: "any",
      },
    });
  const all = (plan: string) =>
    call("/v1/limit/all", { body: { checks: [{ ...check, plan }], idempotencyKey: "all" } });
  const hold = (plan: string) =>
    call("/v1/holds", { body: { ...check, plan, units: 2, idempotencyKey: "hold" } });
  for (const make of [any, all, hold]) {
    const firstly = await make("pro");
    const again = await make("");
    const decisionsOf = ({ body }: typeof again) => (body["decisions"] ?? [body]) as object[];
    expect(decisionsOf(firstly)[0]).toMatchObject({ plan: "pro", limit: 40 });
    expect(decisionsOf(again)[0]).toMatchObject({ plan: "pro", limit: 40 });
    expect(policyOf(again)).toBe(policyOf(firstly));
  }
  const slots = { policy: "planned-slots", key: freshKey(), idempotencyKey: "lease" };
  await call("/v1/leases", { body: { ...slots, plan: "pro" } });
  const leased = await call("/v1/leases", { body: slots });
  expect(leased.body).toMatchObject({ plan: "pro", limit: 5 });
  expect(policyOf(leased)).toContain('plan="pro"');
});

test("a charge is given back after an upgrade, once, and says the plan that the key has", async () => {
  const key = freshKey();
  await limit("planned", key, { cost: 5, idempotencyKey: "order" });
  await limit("planned", key, { plan: "pro" });
  const back = { policy: "planned", key, units: 5, charge: "order" };
  for (const fields of [{}, { plan: "" }]) {
    const refunded = await call("/v1/refund", { body: { ...back, ...fields, idempotencyKey: "back" } });
    expect(refunded.body).toMatchObject({ success: true, plan: "pro", limit: 40, remaining: 39 });
    expect(policyOf(refunded)).toBe(PRO);
  }
  const again = await call("/v1/refund", { body: { ...back, idempotencyKey: "again" } });
  expect(again.status).toBe(404);
  expect((await report("planned", key)).body).toMatchObject({ remaining: 9 });
});
