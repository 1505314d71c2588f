/**
 * `npm run bench:far`: the packed client, far from the limiter, behind a side that takes few messages a second: 60 clients
 * in 6 processes, 40 ms each way, 5 ms a message in one queue, on one key. CLIENTS, PROCESSES, AWAY_MS, MESSAGE_MS,
 * SECONDS, ALGORITHM, LIMIT and LOADS change that. The first 5 s of each row are not counted.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { BUNDLE, build } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { bundled } from "./bundled.ts";
import { type Counts, FIRST_MS } from "./far-client.ts";

const numberOf = (name: string, usual: number) => Number(process.env[name] ?? usual);
const CLIENTS = numberOf("CLIENTS", 60);
/** More processes than cores spend seconds on compiling the client, each for itself. */
const PROCESSES = numberOf("PROCESSES", 6);
const AWAY_MS = numberOf("AWAY_MS", 40);
const MESSAGE_MS = numberOf("MESSAGE_MS", 5);
const SECONDS = numberOf("SECONDS", 15);
/** The calls a second of all clients use the machine too: two cores bear some 20,000. */
const LIMIT = numberOf("LIMIT", 20_000);
/** The load as a part of the limit. */
const LOADS = (process.env["LOADS"] ?? "0.125,0.5,2").split(",").map(Number);

const ALGORITHM = process.env["ALGORITHM"] ?? "token-bucket";

const POLICIES = { hot: { algorithm: ALGORITHM, limit: LIMIT, window: "1s" } };

/** A way of `AWAY_MS`, and one queue in which each message takes `MESSAGE_MS`. */
async function openWay(target: string) {
  const messages: number[] = [];
  let queue = Promise.resolve();
  const server = createServer((request, response) => {
    void (async () => {
      const body = await text(request);
      if (request.url === "/healthz") {
        response.end();
        return;
      }
      await sleep(AWAY_MS);
      messages.push(Date.now());
      queue = queue.then(() => sleep(MESSAGE_MS));
      await queue;
      const { authorization = "" } = request.headers;
      const headers = { authorization, "content-type": "application/json" };
      const answer = await fetch(`${target}${request.url}`, {
        method: request.method ?? "POST",
        headers,
        body,
      });
      const answered = await answer.text();
      await sleep(AWAY_MS);
      response.writeHead(answer.status, { "content-type": answer.headers.get("content-type") ?? "" });
      response.end(answered);
    })().catch(() => response.destroy());
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return { server, url: `http://127.0.0.1:${port}`, messages };
}

async function row(program: string, target: string, token: string, load: number): Promise<string> {
  const { server, url, messages } = await openWay(target);
  // All start at once, when the last process has.
  const startMs = Date.now() + 1_000 + 150 * PROCESSES;
  const rate = (load * LIMIT) / CLIENTS;
  const processes = Array.from({ length: PROCESSES }, async (_, index) => {
    const clients = Math.floor((CLIENTS + index) / PROCESSES);
    const args = [program, url, token, ...[clients, rate, startMs, SECONDS].map(String)];
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
    return JSON.parse(await text(child.stdout)) as Counts[];
  });
  const all = (await Promise.all(processes)).flat();
  server.close();
  server.closeAllConnections();
  const sum = (of: (counts: Counts) => number) => all.reduce((total, counts) => total + of(counts), 0);
  const [calls, admitted, degraded] = [sum((c) => c.calls), sum((c) => c.admitted), sum((c) => c.degraded)];
  const waitsMs = all.flatMap((counts) => counts.waitsMs).toSorted((a, b) => a - b);
  const steady = messages.filter(
    (ms) => ms > startMs + FIRST_MS && ms < startMs + FIRST_MS + SECONDS * 1_000,
  );
  const possible = Math.min(calls, LIMIT * SECONDS);
  const percent = (part: number) => `${(100 * part).toFixed(1)} %`;
  const cells = [
    `${load} of ${LIMIT}/s`,
    percent(admitted / possible),
    percent(degraded / calls),
    percent(waitsMs.length / calls),
    `${waitsMs[Math.floor(0.99 * waitsMs.length)] ?? 0} ms`,
    (steady.length / SECONDS).toFixed(0),
  ];
  return `| ${cells.join(" | ")} |`;
}

async function main(): Promise<void> {
  build();
  const folder = mkdtempSync(join(tmpdir(), "weir-far-"));
  const program = await bundled(folder, "far-client", { platform: "node" });
  const { token, entry } = makeToken({
    name: "bench",
    scopes: ["limit", "reserve"],
    // The clients share it.
    maxCallsAtOnce: 1_000 * CLIENTS,
  });
  const apiTokens = JSON.stringify([entry]);
  console.log(
    `${CLIENTS} clients in ${PROCESSES} processes, ${AWAY_MS} ms each way, ${MESSAGE_MS} ms a message, ${SECONDS} s a row\n`,
  );
  console.log(
    "| load | admitted of what is possible | degraded | calls that waited | p99 of their wait | messages a second |",
  );
  console.log("| --- | --- | --- | --- | --- | --- |");
  try {
    for (const load of LOADS) {
      const limiter = await serve({
        stateDir: join(folder, `${load}`),
        policies: POLICIES,
        apiTokens,
        main: BUNDLE,
      });
      console.log(await row(program, limiter.url, token, load));
      await limiter.stop();
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

await main();
