/**
 * In place of wrangler: notes its calls in a file, and does what FAKE_WRANGLER says of each (JSON: `log`, `url`, and how
 * `deploy` and `delete` go).
 */
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";

const { log, url, ...ways } = JSON.parse(process.env.FAKE_WRANGLER);
const [command, ...args] = process.argv.slice(2);
const config = JSON.parse(readFileSync(args[args.indexOf("-c") + 1], "utf8"));
const note = (entry) => appendFileSync(log, `${JSON.stringify({ command, ...entry })}\n`);
const later = (ms) => new Promise((done) => setTimeout(done, ms));

const WAYS = {
  well() {
    if (command !== "deploy") return;
    const entries = [
      { type: "wrangler-session", version: 1 },
      { type: "deploy", version: 1, worker_name: config.name, targets: [url], unknown: { field: 1 } },
    ];
    writeFileSync(
      process.env.WRANGLER_OUTPUT_FILE_PATH,
      entries.map((entry) => `${JSON.stringify(entry)}\n`).join(""),
    );
  },
  async slowly() {
    await later(1_500);
    WAYS.well();
  },
  refused() {
    console.error(`Authentication error for ${process.env.CLOUDFLARE_API_TOKEN}`);
    process.exitCode = 1;
  },
  silently() {},
  /** Its record of what it did is cut off. */
  cut() {
    writeFileSync(process.env.WRANGLER_OUTPUT_FILE_PATH, '{"type":"deploy","targets":["htt');
  },
  async asking() {
    console.log("Would you like to register a workers.dev subdomain now?");
    // Nobody answers: the input has ended.
    for await (const _ of process.stdin);
    process.exitCode = 1;
  },
  hanging: () => later(600_000),
};

note({ at: "begin", args, config, environment: Object.keys(process.env) });
await WAYS[ways[command] ?? "well"]();
note({ at: "end" });
