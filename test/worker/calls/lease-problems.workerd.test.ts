/** What is wrong with a lease is said, so that nobody has to guess. */
import { expect, test } from "vitest";
import { claimId } from "../../../core/protocol/names.ts";
import { TOKENS } from "../../support/fixtures.ts";
import { acquire, call, freshKey, idIn } from "../../support/limiter.ts";

const SECRET = "AAAAAAAAAAAAAAAAAAAAAA";

test("a ttlMs over the policy's maxTtl says so, however large it is", async () => {
  const key = freshKey();
  const errorOf = async (called: ReturnType<typeof call>) => {
    const { status, body } = await called;
    return [status, (body["errors"] as [{ detail: string }])[0].detail];
  };
  const most = "must be an integer from 1 to 600000, the policy's maxTtl";
  expect(await errorOf(acquire("export", key, { ttlMs: 600_001 }))).toEqual([
    422,
    `ttlMs is 600001: ${most}`,
  ]);
  const id = idIn(await acquire("export", key));
  const renew = (ttlMs: number) => errorOf(call(`/v1/leases/${id}/renew`, { body: { ttlMs } }));
  expect(await renew(600_001)).toEqual([422, `ttlMs is 600001: ${most}`]);
  expect(await renew(3e9)).toEqual([422, expect.stringContaining("at most the policy's maxTtl")]);
});

test("a lease or a hold of a policy that was taken away says that, to whoever might use the policy", async () => {
  const ids = {
    lease: claimId("lease", { policy: "bygone", key: "k" }, SECRET),
    hold: claimId("hold", { policy: "bygone@eu", key: "k" }, SECRET),
  };
  const detail = 'it is of the policy "bygone", which this deployment does not have (any more)';
  const calls = [
    ["POST", `/v1/leases/${ids.lease}/renew`, {}],
    ["POST", `/v1/leases/${ids.lease}/release`, {}],
    ["DELETE", `/v1/leases/${ids.lease}`, undefined],
    ["POST", `/v1/holds/${ids.hold}/settle`, { used: 1 }],
    ["DELETE", `/v1/holds/${ids.hold}`, undefined],
  ] as const;
  for (const [method, path, body] of calls) {
    expect(await call(path, { method, body })).toMatchObject({ status: 404, body: { detail } });
    const other = await call(path, { method, body, token: TOKENS.tenant });
    expect(other).toMatchObject({
      status: 404,
      body: { detail: expect.stringContaining("it never existed") },
    });
  }
  const unknown = claimId("lease", { policy: "export", key: "k" }, SECRET);
  const { body } = await call(`/v1/leases/${unknown}`, { method: "DELETE" });
  expect(body["detail"]).toContain("it never existed");
});
