/**
 * `npm run bench:holders`: what a hot key costs by its number of holders, for docs/costs.md. The messages a second are
 * those of cells of `npm run bench:scale`. All month is like a minute, and its objects are always awake.
 */
import { MONTH_SECONDS } from "../cost-lines.ts";
import { dollarsOf, gbSecondsOf, NOTHING } from "../prices.ts";
import { runCell } from "./run.ts";

const LIMITS = [1_000, 20_000];
const HOLDERS = [100, 1_000, 3_000];
/** Of the limit. */
const LOAD = 0.5;

const HEAD = [
  "holders",
  "calls/s",
  "admitted",
  "objects",
  "messages/s",
  "object requests",
  "GB-s",
  "objects a month",
  "worker requests",
];

const inDollars = (dollars: number) => `$${Math.round(dollars).toLocaleString("en-US")}`;
const row = (cells: readonly string[]) => console.log(`| ${cells.join(" | ")} |`);

async function printTable(): Promise<void> {
  row(HEAD);
  row(HEAD.map(() => "---"));
  for (const limit of LIMITS)
    for (const holders of HOLDERS) {
      const {
        admitted,
        allMessages: messages,
        objects,
      } = await runCell({
        quota: { algorithm: "token-bucket", limit, windowMs: 1_000 },
        holders,
        kind: "isolate",
        load: LOAD,
        shape: "even",
        fault: "none",
        seed: 1,
        durationMs: 60_000,
        lawEveryMs: 1_000,
      });
      const calls = LOAD * limit;
      const requests = dollarsOf({ ...NOTHING, objectRequests: messages * MONTH_SECONDS });
      const time = dollarsOf({ ...NOTHING, gbSeconds: gbSecondsOf(1_000 * objects * MONTH_SECONDS) });
      row([
        holders.toLocaleString("en-US"),
        calls.toLocaleString("en-US"),
        `${(100 * admitted).toFixed(0)} %`,
        String(objects),
        messages.toFixed(0),
        inDollars(requests),
        inDollars(time),
        inDollars(requests + time),
        inDollars(dollarsOf({ ...NOTHING, workerRequests: calls * MONTH_SECONDS })),
      ]);
    }
}

await printTable();
