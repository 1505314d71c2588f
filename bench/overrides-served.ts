/** Prints what overrides cost a request on plain workerd, and their memory: a part of `npm run bench:overrides`. */
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
  type ServerUnderTest,
  type Compared,
} from "./overridden.ts";

/** A key is new once in a server's life, so this many servers are started for each layout, one after the other. */
const SERVERS = Number(process.env["SERVERS"] ?? 5);

const median = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? 0;

/** The results of each server, by what was compared. */
type Found = Map<string, Compared[]>;

function note(found: Found, what: string, all: readonly Compared[]): void {
  for (const each of all) {
    const name = `${what}, ${each.kind}`;
    found.set(name, [...(found.get(name) ?? []), each]);
  }
}

/** Starts a new server, with 10,000 overrides of one policy. Returns the memory of the process before and after they are known. */
async function serving(
  policy: string,
  use: (asked: ServerUnderTest) => Promise<void>,
): Promise<readonly [before: number, after: number]> {
  const stateDir = mkdtempSync(join(tmpdir(), "weir-overrides-"));
  const rights = { name: "bench", scopes: ["limit", "admin"] as const, maxNewKeysPerSecond: 100_000 };
  const { token, entry } = makeToken({ ...rights, scopes: [...rights.scopes] });
  const apiTokens = JSON.stringify([entry]);
  const running = await serve({
    stateDir,
    policies: POLICIES,
    apiTokens,
    main: BUNDLE,
    hasDeploymentObjects: true,
  });
  try {
    const asked = { url: running.url, pid: running.process.pid ?? 0, token };
    const beforeMiB = memoryMiB(asked.pid);
    await importOverrides(asked, policy);
    const afterMiB = memoryMiB(asked.pid);
    await use(asked);
    return [beforeMiB, afterMiB];
  } finally {
    await running.stop("SIGKILL");
    rmSync(stateDir, { recursive: true, force: true });
  }
}

/** Measures, and prints a table. */
export async function printServed(): Promise<void> {
  build();
  const found: Found = new Map();
  const memory: (readonly [number, number])[] = [];
  for (let server = 0; server < SERVERS; server += 1)
    for (const layout of ["-16", ""] as const)
      memory.push(
        await serving(`given${layout}`, async (asked) => {
          const where = layout === "" ? "an object each" : "16 objects";
          note(found, `new keys, ${where}`, await compareCold(asked, layout));
          note(found, `known keys, ${where}`, await compareCold(asked, layout));
          if (layout === "-16" && server === 0) note(found, "one hot key", await compareHot(asked));
        }),
      );
  console.log("\n| calls | µs a request | ratio | of processor time |\n| --- | --- | --- | --- |");
  for (const [what, all] of found) {
    const of = (figure: "us" | "ratio" | "processorRatio") => all.map((each) => each[figure]);
    const spread = (figure: "ratio" | "processorRatio") =>
      `${median(of(figure)).toFixed(2)} (${Math.min(...of(figure)).toFixed(2)}–${Math.max(...of(figure)).toFixed(2)})`;
    console.log(
      `| ${what} | ${median(of("us")).toFixed(0)} | ${spread("ratio")} | ${spread("processorRatio")} |`,
    );
  }
  const [before, after] = [0, 1].map((which) => median(memory.map((each) => each[which] ?? 0)).toFixed(0));
  console.log(
    `memory of the process: ${before} MiB, and ${after} with 10,000 overrides\n` +
      `${cpus()[0]?.model}, ${cpus().length} cores, ${type()} ${arch()}, workerd ${installedVersion("workerd")}, ` +
      `${CONNECTIONS} connections, ${SERVERS} servers`,
  );
}
