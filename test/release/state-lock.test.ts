/** Two servers on one folder would each admit the whole limit: the second is refused, whatever the first one is doing. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { makeProject, removeProject, startScript, type Running } from "../support/own-project.ts";

let folder: string;
const started: Running[] = [];
beforeEach(() => (folder = makeProject()));
afterEach(async () => {
  for (const running of started.splice(0)) await running.stop("SIGTERM");
  removeProject(folder);
});

interface Server extends Running {
  readonly url: string;
}

async function serve(port?: number): Promise<Server> {
  const at = port ?? (await freePort());
  const env = { PORT: String(at), STATE_DIR: "state", API_TOKENS: JSON.stringify(TEST_TOKENS) };
  const running = startScript(folder, "serve", { env });
  started.push(running);
  return { ...running, url: `http://127.0.0.1:${at}` };
}

async function admits({ url }: Server): Promise<boolean> {
  const response = await fetch(`${url}/v1/limit`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.limit}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "api", key: "k" }),
  });
  const { success }: { success: boolean } = await response.json();
  return success;
}

const holder = () => readFileSync(join(folder, "state", "server.json"), "utf8");
const workerOf = () => (JSON.parse(holder()) as { worker: { pid: number } }).worker.pid;

// On a full disk it said no more than ENOSPC.
test("a server that cannot write its lock says which file it is", async () => {
  mkdirSync(join(folder, "state", "server.json.new"), { recursive: true });
  const server = await serve();
  await expect(server.prints("Weir serves")).rejects.toThrow(/state\/server\.json" cannot be written: /);
});

test("the second server is refused, and told who has the folder and since when; the first goes on", async () => {
  const first = await serve();
  await first.prints("Weir serves");
  const second = await serve();
  await expect(second.prints("Weir serves")).rejects.toThrow(
    new RegExp(
      `another server uses ".*state" \\(process ${first.pid}, since 20\\d\\d-\\S+Z\\).* set STATE_DIR to another folder`,
    ),
  );
  let admitted = 0;
  for (let call = 0; call < 9; call += 1) if (await admits(first)) admitted += 1;
  expect(admitted).toBe(5);
  // When the first has ended, a third has what it left.
  await first.stop("SIGTERM");
  const third = await serve();
  await third.prints("Weir serves");
  expect(await admits(third)).toBe(false);
});

test("what a server leaves behind when it is killed is ended first, and is no obstacle, not even at its port", async () => {
  const port = await freePort();
  const first = await serve(port);
  await first.prints("Weir serves");
  for (let call = 0; call < 3; call += 1) expect(await admits(first)).toBe(true);
  const orphan = workerOf();
  await first.stop("SIGKILL");
  // Its workerd goes on serving: now it would have a rival.
  expect(await admits(first)).toBe(true);
  const second = await serve(port);
  await second.prints("Weir serves");
  expect(second.printed()).toContain(`process ${orphan} running`);
  expect(workerOf()).not.toBe(orphan);
  const admitted = [await admits(second), await admits(second), await admits(second)];
  expect(admitted.filter(Boolean).length).toBeLessThanOrEqual(1);
});

test("a process that has the id of one that is gone is left alone", async () => {
  const first = await serve();
  await first.prints("Weir serves");
  const left = JSON.parse(holder()) as { worker: { started: string } };
  await first.stop("SIGTERM");
  // As if the machine had given the id of the dead workerd to this very process.
  const worker = { ...left.worker, pid: process.pid };
  writeFileSync(join(folder, "state", "server.json"), JSON.stringify({ ...left, worker }));
  const second = await serve();
  await second.prints("Weir serves");
  await second.stop("SIGTERM");
  // Nor is a record an obstacle that was cut off when the machine lost power.
  writeFileSync(join(folder, "state", "server.json"), '{"pid":');
  await (await serve()).prints("Weir serves");
});
