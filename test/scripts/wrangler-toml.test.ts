/** What the deployment's configuration has to say: docs/deploying.md and docs/guarantees.md rely on it. */
import { expect, test } from "vitest";
import { unstable_readConfig as readConfig } from "wrangler";
import { WRANGLER_TOML } from "../../scripts/project.ts";

test.each([
  ["production", {}],
  ["staging", { env: "staging" }],
])("in %s objects take a new version at once, so that they do not keep old policies for 300 s", (_, env) => {
  const { durable_objects: objects } = readConfig({ config: WRANGLER_TOML, ...env });
  expect(objects).toMatchObject({ code_update_strategy: { mode: "immediate" } });
});
