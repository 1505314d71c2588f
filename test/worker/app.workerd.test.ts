import { SELF } from "cloudflare:test";
import { expect, test } from "vitest";
import { TOKENS } from "../support/fixtures.ts";

test("x", async () => {
  const response = await SELF.fetch("https://weir/v1/limit", {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "api", key: "a" }),
  });
  expect(await response.json()).toMatchObject({ success: true, remaining: 499 });
});
