/** What goes wrong when one starts: said at once, by the process that was started, with what is to be written instead. */
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { ROOT } from "../../scripts/project.ts";
import { lockState } from "../../scripts/state-lock.ts";
import { eventually } from "../support/eventually.ts";
import {
  makeProject,
  POLICY,
  removeProject,
  runScript,
  startScript,
  writeToml,
  type Running,
} from "../support/own-project.ts";

let folder: string;
let running: Running | undefined;
beforeEach(() => (folder = makeProject()));
afterEach(async () => {
  await running?.stop("SIGTERM");
  running = undefined;
  removeProject(folder);
});

/** Another program, which answers everything with 200. */
async function stranger(): Promise<{ server: Server; port: number }> {
  const server = createServer((_, response) => response.end("{}"));
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return { server, port: (server.address() as AddressInfo).port };
}

test.each(["start", "serve"])(
  "%s: a port in use is said, and nobody is told that the limiter is up",
  async (script) => {
    const { server, port } = await stranger();
    try {
      const { status, stdout, stderr } = runScript(folder, script, { env: { PORT: String(port) } });
      expect([status, /is up|Weir serves|curl/.test(stdout)]).toEqual([1, false]);
      expect(stderr).toContain(
        `PORT is ${port}: another process listens on 127.0.0.1:${port}. Stop it, or set another`,
      );
    } finally {
      server.close();
    }
  },
);

test("serve ends when workerd does not start, as where there are no certificates", async () => {
  const none = join(folder, "none");
  const env = { SSL_CERT_FILE: none, SSL_CERT_DIR: none, PORT: String(await freePort()) };
  const { status, stderr } = runScript(folder, "serve", { env });
  expect(stderr).toContain("workerd stopped before it served");
  expect(status).toBe(1);
});

test.each([
  ["not JSON", "[{", "it is not JSON"],
  ["an entry without scopes", '[{"name":"a","sha256":"00"}]', "something is wrong with: 0.sha256, 0.scopes"],
])("API_TOKENS that cannot be used stop the start: %s", (_, tokens, said) => {
  const served = runScript(folder, "serve", { env: { API_TOKENS: tokens } });
  writeFileSync(join(folder, ".dev.vars"), `API_TOKENS='${tokens}'\n`);
  for (const { status, stderr } of [served, runScript(folder, "start")]) {
    expect(status).toBe(1);
    expect(stderr).toContain(said);
  }
});

test("a bad policy that is saved while npm start runs is told with its line, and when it is mended it goes on", async () => {
  const port = String(await freePort());
  running = startScript(folder, "start", { env: { PORT: port } });
  await running.prints("Paste this");
  writeToml(folder, POLICY.replace("30d", "30 days"));
  await running.prints('wrangler.toml:15: policy "api": window is "30 days": must be a duration');
  await running.prints("It starts again when this is fixed");
  const before = running.printed().length;
  writeToml(folder, POLICY);
  await expect.poll(() => running?.printed().slice(before), { timeout: 60_000 }).toContain("Paste this");
  for (const path of ["/healthz", "/dashboard"])
    expect((await fetch(`http://127.0.0.1:${port}${path}`)).status).toBe(200);
});

test("the token that npm start makes may hold units, and one that it made before may too from now on", async () => {
  const start = async () => {
    running = startScript(folder, "start", { env: { PORT: String(await freePort()) } });
    await running.prints("Paste this");
    const token = /Bearer (weir_[\w-]+)/.exec(running.printed())?.[1] ?? "";
    const url = /http:\/\/127\.0\.0\.1:\d+/.exec(running.printed().split("Paste this")[1] ?? "")?.[0] ?? "";
    const answer = await fetch(`${url}/v1/reservations`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: "{}",
    });
    await running.stop("SIGTERM");
    // 422: the message is not one, but whoever has the scope is told so.
    return answer.status;
  };
  expect(await start()).toBe(422);
  const file = join(folder, ".dev.vars");
  const made = readFileSync(file, "utf8");
  writeFileSync(file, made.replace('"reserve",', ""));
  expect(await start()).toBe(422);
  expect(readFileSync(file, "utf8")).toBe(made);
});

test("a bad policy of the environment that is deployed stops the deployment", () => {
  const staging = POLICY.replace("[vars", "[env.staging.vars").replace("30d", "soon");
  writeToml(folder, `${POLICY}\n${staging}`);
  const deploy = (...args: string[]) => runScript(folder, "deploy", { args: [...args, "--dry-run"] });
  for (const args of [["--env", "staging"], ["--env=staging"], ["-e", "staging"]]) {
    const { status, stderr, stdout } = deploy(...args);
    expect([status, stdout]).toEqual([1, ""]);
    expect(stderr).toContain('wrangler.toml:20: policy "api": window is "soon": must be a duration');
  }
  expect(deploy("--env", "stage").stderr).toContain(
    'No environment found in configuration with name "stage"',
  );
  const lost = runScript(folder, "deploy", { args: ["--dry-run"], env: { npm_config_env: "staging" } });
  expect(lost.stderr).toContain("write npm run deploy -- --env=staging");
  expect(deploy().status).toBe(0);
});

test("STATE_DIR is the caller's, and a folder that earlier versions took is not lost by that", async () => {
  const elsewhere = join(folder, "elsewhere");
  mkdirSync(elsewhere);
  const env = { PORT: String(await freePort()), STATE_DIR: "data" };
  running = startScript(folder, "serve", { env, cwd: elsewhere });
  await running.prints(`storage in ${join(elsewhere, "data")}`);
  await running.stop("SIGTERM");
  running = undefined;
  mkdirSync(join(folder, "before"));
  const { status, stderr } = runScript(folder, "serve", {
    env: { ...env, STATE_DIR: "before" },
    cwd: elsewhere,
  });
  expect([
    status,
    stderr.includes(`${join(folder, "before")}, which does: must be an absolute path`),
  ]).toEqual([1, true]);
});

const COMMANDS = { "this project": "with-packages.mjs scripts/start.ts", "the package": "weir.ts start" };
test.each(Object.entries(COMMANDS))("%s: SIGTERM to npm ends the limiter too", async (_, command) => {
  const port = await freePort();
  // A shell that waits for the script, as npm's does on some machines.
  const scripts = { start: `node ${join(ROOT, "scripts", command)}; exit $?` };
  writeFileSync(join(folder, "package.json"), JSON.stringify({ scripts }));
  const env = { ...process.env, WEIR_PROJECT: folder, PORT: String(port), NO_COLOR: "1" };
  const npm = spawn("npm", ["start"], { cwd: folder, env, stdio: "ignore" });
  const answers = () =>
    fetch(`http://127.0.0.1:${port}/healthz`).then(
      ({ ok }) => ok,
      () => false,
    );
  await eventually(async () => expect(await answers()).toBe(true));
  npm.kill("SIGTERM");
  await eventually(async () => expect(await answers()).toBe(false));
  // The process that has the state is gone as well.
  await eventually(async () => (await lockState(join(folder, ".wrangler", "state"))).release());
});
