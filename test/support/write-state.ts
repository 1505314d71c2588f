/** Writes a state folder with the present version: see kept-state.ts. */
import { existsSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { build } from "../../scripts/project.ts";
import { HttpClient } from "./http-client.ts";
import { KEPT_POLICIES, pathOf, STEPS, type KeptAnswer, type KeptState, type Step } from "./kept-state.ts";
import { serveBundle } from "./served.ts";

/** Makes all steps on a new folder, kills the process, and writes the answers beside the folder. */
export async function writeState(folder: string): Promise<KeptState> {
  if (existsSync(folder))
    throw new Error(`${folder} is there already, and what is kept is never written anew`);
  build();
  const serving = await serveBundle(folder, KEPT_POLICIES);
  const client = new HttpClient(serving.url, 1);
  const answers: Record<string, KeptAnswer> = {};
  try {
    for (const [name, step] of Object.entries(STEPS)) {
      const answer = await perform(client, step, answers);
      if (answer !== undefined) answers[name] = answer;
    }
  } finally {
    // At once: only state that memory has beyond storage may be lost.
    await serving.stop("SIGKILL");
    client.close();
  }
  const kept = { writtenAtMs: Date.now(), answers };
  for (const file of readdirSync(folder, { recursive: true, encoding: "utf8" }))
    if (file.endsWith(".sqlite")) mergeLog(join(folder, file));
  writeFileSync(`${folder}.json`, toText(kept));
  return kept;
}

async function perform(
  client: HttpClient,
  step: Step,
  answers: KeptState["answers"],
): Promise<KeptAnswer | undefined> {
  const { method, body, times: calls = 1, pauseMs = 0 } = step;
  const times: [number, number][] = [];
  let last: Pick<KeptAnswer, "status" | "body"> | undefined;
  for (let call = 0; call < calls; call += 1) {
    if (pauseMs > 0) await sleep(pauseMs);
    if (method === "PAUSE") return undefined;
    const { sentAtMs, receivedAtMs, ...answer } = await client.call(method, pathOf(step, answers), body);
    if (answer.status >= 300) throw new Error(`${step.path}: ${JSON.stringify(answer)}`);
    times.push([sentAtMs, receivedAtMs]);
    last = answer;
  }
  return last && { status: last.status, body: last.body, times };
}

/** JSON with one answer on each line. */
function toText({ writtenAtMs, answers }: KeptState): string {
  const lines = Object.entries(answers).map(
    ([name, answer]) => `${JSON.stringify(name)}: ${JSON.stringify(answer)}`,
  );
  return `{\n"writtenAtMs": ${writtenAtMs},\n"answers": {\n${lines.join(",\n")}\n}\n}\n`;
}

/** Moves SQLite's write-ahead log into the file itself, as SQLite does when a database is closed. */
function mergeLog(file: string): void {
  const database = new DatabaseSync(file);
  database.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  database.close();
  for (const end of ["-wal", "-shm"]) rmSync(`${file}${end}`, { force: true });
}

if (process.argv[1] === import.meta.filename) {
  const [, , folder] = process.argv;
  if (folder === undefined) throw new Error("say in which folder");
  await writeState(resolve(folder));
}
