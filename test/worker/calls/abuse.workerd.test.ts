/** Calls that cost more than they look. Each was an attack that worked. */
import { listDurableObjectIds } from "cloudflare:test";
import { env } from "cloudflare:workers";
import { describe, expect, test } from "vitest";
import { claimId } from "../../../core/protocol/names.ts";
import { call, freshKey, limit } from "../../support/limiter.ts";

const { OBJECTS } = env as unknown as { OBJECTS: DurableObjectNamespace };
const SECRET = "A".repeat(22);

interface Errors {
  readonly detail: string;
  readonly errors: readonly { readonly pointer: string; readonly detail: string }[];
}

describe("a small request has a small answer", () => {
  test("thousands of empty checks are one error", async () => {
    const { status, body } = await call("/v1/limit/all", {
      body: { checks: Array.from({ length: 5_000 }, () => ({})) },
    });
    expect(status).toBe(422);
    expect((body as unknown as Errors).errors).toEqual([
      {
        pointer: "/checks",
        detail: expect.stringContaining("checks is an array of 5000: must be a list of 1 to 16"),
      },
    ]);
  });

  test("of many errors the first twenty are listed, and all are counted", async () => {
    const cost = Object.fromEntries(Array.from({ length: 500 }, (_, each) => [`u${each}`, 1]));
    const { status, body } = await limit("api", freshKey(), { cost });
    const { detail, errors } = body as unknown as Errors;
    expect(status).toBe(422);
    expect(errors).toHaveLength(20);
    expect(detail).toBe(`${errors[0]?.detail}; and 499 more`);
  });
});

describe("what comes out of an id is held against all that a key is", () => {
  const forged = (policy: string, key: string, kind: "lease" | "hold" = "lease") =>
    claimId(kind, { policy, key }, SECRET);

  test.each([
    ["a key of 45 KB", forged("export", "k".repeat(45_000))],
    ["a key of 513 bytes", forged("export", "k".repeat(513))],
    ["an empty key", forged("export", "")],
    ["an address that is not written as it is counted", forged("address", "2001:db8::1")],
    ["a key that is no address", forged("address", "nobody")],
  ])("%s is a 404, and no object is asked", async (_, id) => {
    const before = (await listDurableObjectIds(OBJECTS)).length;
    const answers = [
      await call(`/v1/leases/${id}`, { method: "DELETE" }),
      await call(`/v1/leases/${id}/renew`, { method: "POST" }),
      await call(`/v1/holds/${id.replace("lease_", "hold_")}/settle`, { body: { used: 1 } }),
    ];
    expect(answers.map(({ status }) => status)).toEqual([404, 404, 404]);
    expect((await listDurableObjectIds(OBJECTS)).length).toBe(before);
  });

  test("the longest key there is can have leases", async () => {
    const key = "k".repeat(512);
    const { body } = await call("/v1/leases", { body: { policy: "export", key } });
    const { id } = body["lease"] as { id: string };
    expect((await call(`/v1/leases/${id}`, { method: "DELETE" })).status).toBe(204);
  });
});
