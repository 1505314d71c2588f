/** Once before black-box tests: the bundle, Prometheus for /metrics, and for those of a release Chromium. */
import type { TestProject } from "vitest/node";
import { ensureChromium } from "../../scripts/chromium.ts";
import { ensureTool } from "../../scripts/installed-tool.ts";
import { build } from "../../scripts/project.ts";

export default function prepareSystem({ name }: TestProject): void {
  if (name === "release") ensureChromium();
  // Each project of black-box tests calls it, with modules of its own in one process.
  if (process.env["WEIR_PREPARED"] === `${process.pid}`) return;
  process.env["WEIR_PREPARED"] = `${process.pid}`;
  build();
  for (const command of ["prometheus", "promtool"])
    ensureTool({
      command,
      apt: "prometheus",
      brew: "prometheus",
      elsewhere: ["elsewhere:       prometheus and promtool, version 2.42 or newer, on the PATH"],
    });
}
