import { expect, test } from "vitest";
import { checkOverride } from "../../../../durable-objects/catalog/checks.ts";
import { call } from "../../../support/limiter.ts";

test("an override with an offset as its time zone is refused, and one with a name is not", async () => {
  const put = (timeZone: string) =>
    call("/v1/policies/monthly/overrides/zoned", { method: "PUT", body: { timeZone } });
  const refused = await put("+02:00");
  expect(refused).toMatchObject({ status: 422, body: { errors: [{ pointer: "/timeZone" }] } });
  expect(refused.body).toMatchObject({ detail: expect.stringContaining('timeZone is "+02:00": must be') });
  expect((await put("Asia/Tokyo")).status).toBe(200);
});

test("a stored override with an offset fits its policy when that is written", () => {
  const MONTH = { algorithm: "fixed-window", limit: 5, window: "1 month" };
  const stored = { timeZone: "+02:00" };
  expect(checkOverride("a", MONTH, "b", stored)).toMatchObject({ pattern: "b" });
  expect(checkOverride("a", { ...MONTH, ...stored }, "b", { limit: 7 }, 0)).toMatchObject({ pattern: "b" });
});
