/**
 * What it costs the catalog's object that all isolates are new, as after a deployment: 10,000 overrides, each read by 200 at
 * once, while 100 others a second ask what is new. All run in one thread of plain workerd. A part of `npm run bench:overrides`.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BUNDLE } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { importOverrides, memoryMiB, POLICIES, processorUs } from "./overridden.ts";

const READERS = 200;
const ONE_BY_ONE = 100;
const POLL_EVERY_MS = 10;
const WAYS = { whole: "row by row, for each", pages: "in pages", entry: "from Workers KV" } as const;

async function getNumber(url: string): Promise<number> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(await response.text());
  return Number(await response.json());
}

/** Asks what is new, at a fixed rate. Returns how long the answers took, in ms, once it is stopped. */
function polling(url: string): () => Promise<readonly number[]> {
  const answers: Promise<number>[] = [];
  const timer = setInterval(() => {
    const sinceMs = performance.now();
    answers.push(getNumber(url).then(() => performance.now() - sinceMs));
  }, POLL_EVERY_MS);
  return async () => {
    clearInterval(timer);
    return await Promise.all(answers);
  };
}

export async function printHerd(): Promise<void> {
  const stateDir = mkdtempSync(join(tmpdir(), "weir-herd-"));
  const { token, entry } = makeToken({ name: "bench", scopes: ["admin"] });
  const running = await serve({
    stateDir,
    policies: POLICIES,
    apiTokens: JSON.stringify([entry]),
    main: join(import.meta.dirname, "herd.mjs"),
    modules: { "weir.js": BUNDLE },
    hasDeploymentObjects: true,
  });
  try {
    const { url } = running;
    const pid = running.process.pid ?? 0;
    await importOverrides({ url, pid, token }, "given");
    const revision = await getNumber(`${url}/poll?since=0`);
    console.log(
      "\n| a new isolate reads it | processor time | 200 at once | asking what is new meanwhile, at most | MiB more |",
    );
    console.log("| --- | --- | --- | --- | --- |");
    for (const [way, words] of Object.entries(WAYS)) {
      const herd = (readers: number, atOnce: number) =>
        getNumber(`${url}/herd?as=${way}&readers=${readers}&atOnce=${atOnce}`);
      await herd(10, 1);
      const beforeUs = processorUs(pid);
      await herd(ONE_BY_ONE, 1);
      const eachMs = (processorUs(pid) - beforeUs) / ONE_BY_ONE / 1_000;
      const [beforeMiB, sinceMs] = [memoryMiB(pid), performance.now()];
      const stop = polling(`${url}/poll?since=${revision}`);
      await herd(READERS, READERS);
      const seconds = (performance.now() - sinceMs) / 1_000;
      const polls = await stop();
      const [most, moreMiB] = [Math.max(0, ...polls), memoryMiB(pid) - beforeMiB];
      console.log(
        `| ${words} | ${eachMs.toFixed(1)} ms | ${seconds.toFixed(1)} s | ${most.toFixed(0)} ms (${polls.length}) | ${moreMiB.toFixed(0)} |`,
      );
    }
  } finally {
    await running.stop("SIGKILL");
    rmSync(stateDir, { recursive: true, force: true });
  }
}
