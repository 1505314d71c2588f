import { ensureTool } from "../../scripts/installed-tool.ts";

/** Installs Prometheus and its promtool where they are missing: what /metrics answers is given to them. */
export default function ensurePrometheus(): void {
  for (const command of ["prometheus", "promtool"])
    ensureTool({
      command,
      apt: "prometheus",
      brew: "prometheus",
      elsewhere: ["elsewhere:       prometheus and promtool, version 2.42 or newer, on the PATH"],
    });
}
