import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { serve } from "../../scripts/workerd.ts";
import { TEST_POLICIES, TEST_TOKENS, TOKENS } from "../support/fixtures.ts";

test("the built bundle decides on plain workerd", async () => {
  const serving = await serve({
    stateDir: mkdtempSync(join(tmpdir(), "weir-")),
    policies: TEST_POLICIES,
    apiTokens: JSON.stringify(TEST_TOKENS),
  });
  const response = await fetch(`${serving.url}/v1/limit`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "api", key: "a" }),
  });
  expect(await response.json()).toMatchObject({ success: true, remaining: 499 });
  await serving.stop();
});
