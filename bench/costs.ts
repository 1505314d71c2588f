/**
 * `npm run bench:costs`: the tables of docs/costs.md. Each line's calls are made on the built bundle with plain workerd, one
 * after the other. All that is billed is counted, alarms included, until all is forgotten: the clock is put on for that.
 * Then it is multiplied with the prices. The program fails when an object that has answered has a timer left, which
 * would keep it in memory.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MAX_BOUNDS } from "../core/policies/policy.ts";
import { build, BUNDLE } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { bundled } from "./bundled.ts";
import { AN_HOUR, LINES, MONTHS, POLICIES, type Line } from "./cost-lines.ts";
import { Limiter } from "./counted-limiter.ts";
import { type Background, freeCallsADay, withoutLinks } from "./free-plan.ts";
import { dollarsOf, gbSecondsOf, logEventsOf, type Billed } from "./prices.ts";

const DAY_MS = 86_400_000;
const A_MILLION = 1_000_000;

/** What the calls of a line cost. */
interface Measured {
  readonly billed: Billed;
  /** Of the rows written, those that forgetting wrote. */
  readonly forgotten: number;
  /** The memory of all objects until each left it, in GB-s. */
  readonly untilAsleep: number;
  /** The events, if each request were logged. */
  readonly eventsIfEach: number;
}

async function measure(
  limiter: Limiter,
  { count, call, before, staysInUse }: Line,
  calls: number,
): Promise<Measured> {
  await before?.(limiter);
  const first = await limiter.counts();
  for (let index = 0; index < count; index += 1) await call(limiter, index);
  const called = await limiter.counts();
  if (staysInUse !== true) await limiter.later(40 * DAY_MS);
  const last = await limiter.counts();
  if (last.pendingTimers > 0) throw new Error(`an object has ${last.pendingTimers} timers left`);
  const of = (from: number, to: number) => ((to - from) / count) * calls;
  const workerRequests = of(first.requests, called.requests);
  const objectRequests = of(first.objectCalls, last.objectCalls);
  const lines = of(first.logLines, last.logLines);
  return {
    billed: {
      workerRequests,
      objectRequests,
      rowsWritten: of(first.rowsWritten, last.rowsWritten),
      rowsRead: of(first.rowsRead, last.rowsRead),
      gbSeconds: gbSecondsOf(of(first.activeMs, last.activeMs)),
      logEvents: logEventsOf(lines, workerRequests + objectRequests),
    },
    forgotten: of(called.rowsWritten, last.rowsWritten),
    untilAsleep: gbSecondsOf(of(first.awakeMs, last.awakeMs)),
    eventsIfEach: logEventsOf(lines, workerRequests + objectRequests, true),
  };
}

/** A number of rows or requests as the page says it: with two digits, and 0 when it is small. */
function shown(number: number): number {
  return number < 1_000 ? 0 : Number(number.toPrecision(2));
}

function rounded(number: number): string {
  return number > 0 && number < 1_000 ? "under 1,000" : shown(number).toLocaleString("en-US");
}

const inDollars = (dollars: number) => `$${dollars.toFixed(2)}`;
const row = (cells: readonly string[]) => console.log(`| ${cells.join(" | ")} |`);

const folder = mkdtempSync(join(tmpdir(), "weir-costs-"));
let servings = 0;

/** What a deployment may do without, or less often. */
interface Deployed {
  /** Whether it has a catalog and counts. */
  readonly hasDeploymentObjects?: boolean;
  readonly backgroundMs?: number;
}

/** Measures a line with a limiter of its own. */
async function measureAnew(
  main: string,
  line: Line,
  calls: number,
  { hasDeploymentObjects = true, backgroundMs }: Deployed = {},
): Promise<Measured> {
  servings += 1;
  const { token, entry } = makeToken({ name: "bench", scopes: ["limit"] });
  const running = await serve({
    stateDir: join(folder, `state-${servings}`),
    policies: POLICIES,
    apiTokens: JSON.stringify([{ ...entry, maxNewKeysPerSecond: MAX_BOUNDS.maxNewKeysPerSecond }]),
    main,
    modules: { "weir.js": BUNDLE },
    hasDeploymentObjects,
    backgroundMs,
    // workerd logs each object that leaves memory.
    onOutput: () => undefined,
  });
  try {
    return await measure(new Limiter(running.url, token), line, calls);
  } finally {
    await running.stop("SIGKILL");
  }
}

const BARE: Deployed = { hasDeploymentObjects: false };
/** As for the free plan. */
const SLOW_BACKGROUND_MS = 60_000;
const HOURS_A_DAY = 24;

/** What an hour of one isolate and one object with a call a second needs beside the calls, with catalog and counts. */
async function backgroundOf(main: string): Promise<readonly Background[]> {
  const rates = [1, 100];
  const millions = rates.map((rate) => `a million calls, ${rate} a second`);
  row(["beside the calls, an hour", "object requests", "rows written", "a month", ...millions]);
  row(Array<string>(4 + rates.length).fill("---"));
  const found: Background[] = [];
  for (const [name, deployed] of [
    ["an object alone", BARE],
    ["with catalog and counts", {}],
    [`the same, \`BACKGROUND_MS = "${SLOW_BACKGROUND_MS}"\``, { backgroundMs: SLOW_BACKGROUND_MS }],
  ] as const) {
    const { billed } = await measureAnew(main, AN_HOUR, AN_HOUR.count, deployed);
    const { rowsWritten, gbSeconds } = billed;
    const objectRequests = billed.objectRequests - AN_HOUR.count;
    const nothing = { workerRequests: 0, rowsRead: 0, logEvents: 0 };
    const dollars = dollarsOf({ ...nothing, objectRequests, rowsWritten, gbSeconds });
    row([
      name,
      ...[objectRequests, rowsWritten].map((count) => Math.round(count).toLocaleString("en-US")),
      inDollars(30 * HOURS_A_DAY * dollars),
      ...rates.map((rate) => `$${((dollars * A_MILLION) / (3_600 * rate)).toFixed(3)}`),
    ]);
    if (deployed !== BARE)
      found.push({ objectRequests: HOURS_A_DAY * objectRequests, rowsWritten: HOURS_A_DAY * rowsWritten });
  }
  console.log();
  return found;
}

/** A million decisions of each line, and how many the free plan is enough for. */
async function printMillions(main: string): Promise<void> {
  const backgrounds = await backgroundOf(main);
  row(["a million decisions", "written", "forgotten", "read", "object requests", "GB-s", "cost", "logged"]);
  row(Array<string>(8).fill("---"));
  const frees: string[][] = [];
  for (const line of LINES) {
    // What the catalog and the counts need goes by time, and a few thousand calls are made in less than any.
    const { billed, forgotten, eventsIfEach } = await measureAnew(main, line, A_MILLION, BARE);
    const { rowsWritten, rowsRead, objectRequests, gbSeconds } = billed;
    const numbers = [rowsWritten - forgotten, forgotten, rowsRead, objectRequests].map(rounded);
    const logged = dollarsOf({ ...billed, logEvents: eventsIfEach });
    row([
      line.name,
      ...numbers,
      String(Math.ceil(gbSeconds)),
      inDollars(dollarsOf(billed)),
      inDollars(logged),
    ]);
    const needed = {
      calls: A_MILLION,
      workerRequests: billed.workerRequests,
      objectRequests: shown(objectRequests),
      rowsWritten: shown(rowsWritten - forgotten) + shown(forgotten),
    };
    const free = backgrounds.map((background) => freeCallsADay(needed, background));
    frees.push([
      withoutLinks(line.name),
      ...free.map(({ calls }) => calls.toLocaleString("en-US")),
      free[0]?.bound ?? "",
    ]);
  }
  console.log();
  row(["on the free plan", "a day", "slowed down", "and then there are no more"]);
  row(["---", "---", "---", "---"]);
  for (const cells of frees) row(cells);
}

/** A month of one key that is called now and then. */
async function printMonths(main: string): Promise<void> {
  console.log();
  row(["a month of one key", "calls", "object requests", "rows written", "GB-s", "cost", "until asleep"]);
  row(Array<string>(7).fill("---"));
  for (const { calls, ...line } of MONTHS) {
    const { billed, untilAsleep } = await measureAnew(main, line, calls);
    const { objectRequests, rowsWritten, gbSeconds } = billed;
    const asleep = inDollars(dollarsOf({ ...billed, gbSeconds: untilAsleep }));
    row([
      line.name,
      calls.toLocaleString("en-US"),
      rounded(objectRequests),
      rounded(rowsWritten),
      String(Math.ceil(gbSeconds)),
      inDollars(dollarsOf(billed)),
      `${rounded(untilAsleep)} GB-s, ${asleep}`,
    ]);
  }
}

try {
  build();
  const main = await bundled(folder, "counting");
  await printMillions(main);
  await printMonths(main);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
