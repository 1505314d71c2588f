/**
 * `npm run bench:terms`: what it costs a cold call that it carries the terms of its policy. The same call with and without
 * them, in turn, in one run: in one process, where only making, reading and deciding is counted, and over RPC on plain
 * workerd.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { LimiterStub } from "../client/transports/objects.ts";
import { parsePolicies } from "../core/policies/parse-policies.ts";
import { MemoryNamespace } from "../durable-objects/memory-namespace.ts";
import { build, BUNDLE } from "../scripts/project.ts";
import { serve } from "../scripts/workerd.ts";
import { bundled } from "./bundled.ts";
import { compare, COMPARED, type Compared } from "./terms-comparison.ts";

function print(where: string, { policy, length, withoutUs, withUs, ratios }: Compared): void {
  const [middle, first, third] = ratios.map((ratio) => ratio.toFixed(2));
  const times = `${withoutUs.toFixed(1)} | ${withUs.toFixed(1)}`;
  console.log(`| ${where}, ${policy} | ${length} | ${times} | ${middle} (${first}–${third}) |`);
}

const folder = mkdtempSync(join(tmpdir(), "weir-terms-"));
try {
  console.log(`| policy | terms | µs without | µs with | ratio |
| --- | --- | --- | --- | --- |`);
  const memory = new MemoryNamespace(parsePolicies(COMPARED));
  for (const policy of Object.keys(COMPARED))
    print("in one process", await compare((name) => memory.getByName(name) as LimiterStub, policy));
  build();
  const main = await bundled(folder, "terms-caller");
  const stateDir = join(folder, "state");
  const modules = { "weir.js": BUNDLE };
  const running = await serve({ stateDir, policies: COMPARED, apiTokens: "[]", main, modules });
  try {
    for (const policy of Object.keys(COMPARED)) {
      const compared = await fetch(`${running.url}/compare?policy=${policy}`);
      print("over RPC", (await compared.json()) as Compared);
    }
  } finally {
    await running.stop("SIGKILL");
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
