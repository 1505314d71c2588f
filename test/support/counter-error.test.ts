import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { counterErrorRows } from "./counter-error.ts";

test("the documentation says how wrong the sliding window counter is, as it is measured", () => {
  const page = readFileSync(join(import.meta.dirname, "../../docs/policies.md"), "utf8");
  const lines = page.split("\n");
  for (const row of counterErrorRows()) expect(lines).toContain(row);
});
