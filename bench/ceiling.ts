/**
 * `npm run bench:ceiling`: how many decisions a second one object makes for many keys, when calls travel together and
 * when each goes alone. One isolate asks it, or four do. Everything is in one process and on one thread, so what it takes
 * to ask is in the figures. ROUNDS and SECONDS as in bench.ts; CALLERS wait for an answer at any time, in all isolates.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { arch, cpus, tmpdir, type } from "node:os";
import { join } from "node:path";
import { build, BUNDLE, installedVersion } from "../scripts/project.ts";
import { serve } from "../scripts/workerd.ts";
import type { Asked } from "./asker.ts";
import { bundled } from "./bundled.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 5);
const SECONDS = Number(process.env["SECONDS"] ?? 2);
const CALLERS = Number(process.env["CALLERS"] ?? 256);
const KEYS = 1_000;

const BUCKET = { algorithm: "token-bucket", window: "1s", objects: 1, deadlineMs: 10_000 };
const POLICIES = {
  unwritten: { ...BUCKET, limit: 100_000 },
  // Of 49 units memory may not be ahead by one: each decision is written.
  written: { ...BUCKET, limit: 49, window: "100ms" },
};

interface Measured {
  readonly perSecond: number;
  /** Decisions for each message. */
  readonly together: number;
}

/** Lets all isolates ask at once. */
async function measure(urls: readonly string[], policy: string, isTogether: boolean): Promise<Measured> {
  const search = `ms=${SECONDS * 1_000}&policy=${policy}&keys=${KEYS}&callers=${CALLERS / urls.length}`;
  const path = `/run?${search}${isTogether ? "&together" : ""}`;
  const ask = async (url: string, at: string): Promise<Asked> => {
    const response = await fetch(`${url}${at}`);
    if (!response.ok) throw new Error(`${at}: ${response.status} ${await response.text()}`);
    return (await response.json()) as Asked;
  };
  const [first = ""] = urls;
  const before = await ask(first, "/counts");
  const startMs = performance.now();
  const asked = await Promise.all(urls.map((url) => ask(url, path)));
  const seconds = (performance.now() - startMs) / 1_000;
  const after = await ask(first, "/counts");
  const decisions = asked.reduce((sum, each) => sum + each.decisions, 0);
  return { perSecond: decisions / seconds, together: decisions / (after.messages - before.messages) };
}

const folder = mkdtempSync(join(tmpdir(), "weir-ceiling-"));
const sorted = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b);
const median = (numbers: readonly number[]) => sorted(numbers)[numbers.length >> 1] ?? Number.NaN;
try {
  build();
  const main = await bundled(folder, "asker");
  console.log(`| | each alone, decisions/s | together, decisions/s | ratio | calls of a message |
| --- | --- | --- | --- | --- |`);
  for (const isolates of [1, 4])
    for (const [policy, name] of [
      ["unwritten", "nothing written"],
      ["written", "each decision written"],
    ] as const) {
      const running = await serve({
        stateDir: join(folder, `${policy}-${isolates}`),
        policies: POLICIES,
        main,
        modules: { "weir.js": BUNDLE },
        isolates,
      });
      try {
        await measure(running.urls, policy, true);
        const [alone, together]: [Measured[], Measured[]] = [[], []];
        for (let round = 0; round < ROUNDS; round += 1) {
          alone.push(await measure(running.urls, policy, false));
          together.push(await measure(running.urls, policy, true));
        }
        const speed = (of: readonly Measured[]) => Math.round(median(of.map(({ perSecond }) => perSecond)));
        const ratios = alone.map(({ perSecond }, round) => (together[round]?.perSecond ?? 0) / perSecond);
        const range = `${sorted(ratios)[0]?.toFixed(1)}–${sorted(ratios).at(-1)?.toFixed(1)}`;
        const calls = median(together.map((each) => each.together)).toFixed(0);
        const asked = isolates === 1 ? "one isolate" : `${isolates} isolates`;
        const figures = [speed(alone), speed(together), `${median(ratios).toFixed(1)} (${range})`, calls];
        console.log(`| ${[`${asked}, ${name}`, ...figures].join(" | ")} |`);
      } finally {
        await running.stop("SIGKILL");
      }
    }
  console.log(`
${cpus()[0]?.model}, ${cpus().length} cores, ${type()} ${arch()}, workerd ${installedVersion("workerd")}, ${CALLERS} callers, ${KEYS} keys, ${ROUNDS} rounds of ${SECONDS} s, ${new Date().toISOString().slice(0, 10)}.`);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
