import { buildSync } from "esbuild";
/** The contract of limiters over each way to a real one. In memory it runs in memory-limiter.test.ts. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";
import { createLimiter } from "../../package/client.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { CONTRACT_POLICIES, describeContract } from "../support/limiter-contract.ts";
import { toldLimiter } from "../support/told-limiter.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-contract-"));
let served: Serving;
beforeAll(async () => {
  const caller = join(folder, "caller.js");
  buildSync({
    entryPoints: [join(import.meta.dirname, "../support/contract-caller.ts")],
    outfile: caller,
    bundle: true,
    format: "esm",
    external: ["cloudflare:workers"],
  });
  served = await serve({
    stateDir: join(folder, "state"),
    policies: CONTRACT_POLICIES,
    apiTokens: JSON.stringify(TEST_TOKENS),
    caller,
    callerHasObjects: true,
  });
});
afterAll(async () => {
  await served.stop();
  rmSync(folder, { recursive: true, force: true });
});

describeContract("over HTTP", () => Promise.resolve(createLimiter({ url: served.url, token: TOKENS.full })));
describeContract("over the service binding", () => Promise.resolve(toldLimiter(served.callerUrl, "service")));
describeContract("over the objects", () => Promise.resolve(toldLimiter(served.callerUrl, "objects")));
