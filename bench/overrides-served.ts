/** `npm run bench:overrides -- served`: prints what overrides cost a request, and their memory. */
import { mkdtempSync, rmSync } from "node:fs";
import { arch, cpus, tmpdir, type } from "node:os";
import { join } from "node:path";
import { BUNDLE, build, installedVersion } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { CONNECTIONS } from "./load.ts";
import {
  compareCold,
  compareHot,
  importOverrides,
  memoryMiB,
  POLICIES,
  type Compared,
} from "./overridden.ts";

/** Cold keys are new once in a server's life, so so many servers are started, one after the other. */
const SERVERS = Number(process.env["SERVERS"] ?? 3);

function print(what: string, all: readonly Compared[]): void {
  for (const { kind, processorUs, us, processorRatio, ratio, quartiles } of all) {
    const spread = quartiles.map((each) => each.toFixed(2)).join("–");
    const figures = [
      us.toFixed(0),
      `${ratio.toFixed(2)} (${spread})`,
      processorUs.toFixed(0),
      processorRatio.toFixed(2),
    ];
    console.log(`| ${what}, ${kind} | ${figures.join(" | ")} |`);
  }
}

/** Serves anew, with the overrides of one policy. */
async function serving(
  policy: string,
  use: (asked: Parameters<typeof compareHot>[0]) => Promise<void>,
): Promise<void> {
  const stateDir = mkdtempSync(join(tmpdir(), "weir-overrides-"));
  const { token, entry } = makeToken({
    name: "bench",
    scopes: ["limit", "admin"],
    maxNewKeysPerSecond: 100_000,
  });
  const running = await serve({
    stateDir,
    policies: POLICIES,
    apiTokens: JSON.stringify([entry]),
    main: BUNDLE,
    hasDeploymentObjects: true,
  });
  try {
    const asked = { url: running.url, pid: running.process.pid ?? 0, token };
    const beforeMiB = memoryMiB(asked.pid);
    const sinceMs = performance.now();
    await importOverrides(asked, policy);
    const tookMs = performance.now() - sinceMs;
    console.log(
      `<!-- written in ${(tookMs / 1_000).toFixed(1)} s; memory of the process ${beforeMiB.toFixed(0)} MiB before, ${memoryMiB(asked.pid).toFixed(0)} after -->`,
    );
    await use(asked);
    console.log(`<!-- and ${memoryMiB(asked.pid).toFixed(0)} MiB after all calls -->`);
  } finally {
    await running.stop("SIGKILL");
    rmSync(stateDir, { recursive: true, force: true });
  }
}

build();
console.log(
  "| calls | µs a request | ratio | µs of processor time | ratio |\n| --- | --- | --- | --- | --- |",
);
for (let server = 0; server < SERVERS; server += 1) {
  for (const layout of ["", "-16"] as const) {
    await serving(`given${layout}`, async (asked) => {
      const where = layout === "" ? "an object each" : "16 objects";
      print(`cold, ${where}, first call`, await compareCold(asked, layout));
      print(`cold, ${where}, second call`, await compareCold(asked, layout));
      if (layout === "" && server === 0) print("hot", await compareHot(asked));
    });
  }
}
console.log(
  `${cpus()[0]?.model}, ${cpus().length} cores, ${type()} ${arch()}, workerd ${installedVersion("workerd")}, ${CONNECTIONS} connections`,
);
