/**
 * `npm run bench:costs`: the tables of docs/costs.md. Each line's calls are made on the built bundle with plain workerd, one
 * after the other. Rows that objects write and object requests are counted, alarms included, until all is forgotten:
 * the clock is put on for that. Then they are multiplied with the prices.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MOST_NEW_KEYS_PER_SECOND } from "../core/policies/caller-bounds.ts";
import { build, BUNDLE } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { bundled } from "./bundled.ts";
import { AN_HOUR, LINES, POLICIES, type Line } from "./cost-lines.ts";
import { Limiter } from "./counted-limiter.ts";
import { freeCallsADay, withoutLinks } from "./free-plan.ts";

/** Dollars per million, in November 2026. */
const PRICES = { workerRequest: 0.3, objectRequest: 0.15, rowWritten: 1 };
const DAY_MS = 86_400_000;

/** What a million decisions of a line cost: rows written by the calls, and when they are forgotten; object requests. */
async function measure(limiter: Limiter, { count, call, before, staysInUse }: Line) {
  await before?.(limiter);
  const first = await limiter.counts();
  for (let index = 0; index < count; index += 1) await call(limiter, index);
  const called = await limiter.counts();
  if (staysInUse !== true) await limiter.later(40 * DAY_MS);
  const last = await limiter.counts();
  const perMillion = (from: number, to: number) => ((to - from) / count) * 1_000_000;
  return {
    written: perMillion(first.rowsWritten, called.rowsWritten),
    forgotten: perMillion(called.rowsWritten, last.rowsWritten),
    objectRequests: perMillion(first.objectCalls, last.objectCalls),
    requests: perMillion(first.requests, called.requests),
  };
}

/** A number of rows or requests, with two digits, as the page says it. */
function rounded(number: number): string {
  if (number === 0) return "0";
  if (number < 1_000) return "under 1,000";
  return Number(number.toPrecision(2)).toLocaleString("en-US");
}

const folder = mkdtempSync(join(tmpdir(), "weir-costs-"));
try {
  build();
  const { token, entry } = makeToken({ name: "bench", scopes: ["limit"] });
  const main = await bundled(folder, "counting");
  let servings = 0;
  const measureAnew = async (line: Line) => {
    servings += 1;
    const running = await serve({
      stateDir: join(folder, `state-${servings}`),
      policies: POLICIES,
      apiTokens: JSON.stringify([{ ...entry, maxNewKeysPerSecond: MOST_NEW_KEYS_PER_SECOND }]),
      main,
      modules: { "weir.js": BUNDLE },
    });
    try {
      return await measure(new Limiter(running.url, token), line);
    } finally {
      await running.stop("SIGKILL");
    }
  };
  console.log(`| a million decisions | rows written | and when forgotten | object requests | cost |
| --- | --- | --- | --- | --- |`);
  const free: string[] = [];
  for (const line of LINES) {
    const { written, forgotten, objectRequests, requests } = await measureAnew(line);
    const dollars =
      (requests * PRICES.workerRequest +
        objectRequests * PRICES.objectRequest +
        (written + forgotten) * PRICES.rowWritten) /
      1_000_000;
    const numbers = [written, forgotten, objectRequests].map(rounded);
    console.log(`| ${[line.name, ...numbers, `$${dollars.toFixed(2)}`].join(" | ")} |`);
    const { calls, bound } = freeCallsADay({
      calls: 1_000_000,
      workerRequests: requests,
      objectRequests,
      rowsWritten: written + forgotten,
    });
    free.push(`| ${[withoutLinks(line.name), calls.toLocaleString("en-US"), bound].join(" | ")} |`);
  }
  console.log(`
| on the free plan | a day | and then there are no more |
| --- | --- | --- |
${free.join("\n")}`);
  const { written, objectRequests } = await measureAnew(AN_HOUR);
  const ofHour = (perMillion: number) => Math.round((perMillion * AN_HOUR.count) / 1_000_000);
  console.log(`
An object with a call a second for an hour: ${ofHour(written)} rows, ${ofHour(objectRequests) - AN_HOUR.count} requests beside the calls.`);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
