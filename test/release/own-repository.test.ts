/** A limiter in a repository of one's own: the packed package, its command, and what the command writes. */
import { execFile, spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { readWranglerToml, ROOT } from "../../scripts/project.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { packedProject, removePacked, typesOf, type Project } from "../support/packed.ts";
import { startWranglerDev } from "../support/wrangler-dev.ts";

const API_TOKENS = JSON.stringify(TEST_TOKENS);
let project: Project;
let empty: string;
beforeAll(async () => {
  project = packedProject();
  empty = mkdtempSync(join(tmpdir(), "weir-empty-"));
});
afterAll(() => {
  rmSync(empty, { recursive: true, force: true });
  removePacked();
});

const bin = () => join(project.folder, "node_modules", ".bin", "weir");
function weir(cwd: string, ...args: readonly string[]) {
  const env = { ...process.env, INIT_CWD: cwd };
  const { status, stdout, stderr } = spawnSync(bin(), args, { cwd, env, encoding: "utf8", timeout: 120_000 });
  return { status, stdout, stderr };
}

async function limited(url: string): Promise<unknown> {
  const response = await fetch(`${url}/v1/limit`, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKENS.limit}`, "content-type": "application/json" },
    body: JSON.stringify({ policy: "login", key: "k" }),
  });
  const { success, remaining } = (await response.json()) as Record<string, unknown>;
  return [response.status, success, remaining];
}

/** The commands and the environment of the Dockerfile that was written. */
function dockerfile() {
  const text = readFileSync(join(project.folder, "Dockerfile"), "utf8").replaceAll(/\\\n\s*/g, "");
  const line = (name: string) => new RegExp(`^${name} (.*)$`, "m").exec(text)?.[1] ?? "";
  const command = (given: string) => JSON.parse(given.slice(given.indexOf("["))) as string[];
  const pairs = line("ENV")
    .split(" ")
    .map((each) => each.split("="));
  return {
    ENV: Object.fromEntries(pairs) as Record<string, string>,
    CMD: command(line("CMD")),
    HEALTHCHECK: command(line("HEALTHCHECK")),
  };
}

/** What the package's command finds out about a limiter. */
async function verified(url: string): Promise<string> {
  const args = ["verify", url, "--quick", "--policy", "login"];
  const env = { ...process.env, TOKEN: TOKENS.full };
  const { stdout } = await promisify(execFile)(bin(), args, { cwd: project.folder, env });
  return stdout;
}

/** As `npm install` puts it there: of the version that this project has. */
function installWrangler(): void {
  const modules = join(project.folder, "node_modules");
  rmSync(join(modules, "wrangler"), { recursive: true, force: true });
  symlinkSync(join(ROOT, "node_modules", "wrangler"), join(modules, "wrangler"));
  for (const name of ["wrangler", "workerd"])
    symlinkSync(join(ROOT, "node_modules", ".bin", name), join(modules, ".bin", name));
}

test("in an empty folder it writes a project, and nothing where anything of it is there", () => {
  const { status, stdout } = weir(empty, "init");
  expect([status, stdout.includes("npm install")]).toEqual([0, true]);
  const written = readdirSync(empty).toSorted();
  const hidden = [".dev.vars.example", ".dockerignore", ".gitignore"];
  const named = [...hidden, "Dockerfile", "README.md", "package.json", "src"];
  expect(written).toEqual([...named, "weir-limiter-0.1.0.tgz", "weir.service", "wrangler.toml"]);
  const manifest = JSON.parse(readFileSync(join(empty, "package.json"), "utf8")) as Record<string, unknown>;
  expect(manifest["dependencies"]).toEqual({
    // A copy of the file that it was installed from: the name in a registry may be somebody else's.
    "weir-limiter": "file:weir-limiter-0.1.0.tgz",
    wrangler: "^4.155.0",
  });
  writeFileSync(join(empty, "wrangler.toml"), "mine");
  rmSync(join(empty, "Dockerfile"));
  const again = weir(empty, "init");
  expect([again.status, /already has .*wrangler\.toml/.test(again.stderr)]).toEqual([1, true]);
  expect([readFileSync(join(empty, "wrangler.toml"), "utf8"), readdirSync(empty).length]).toEqual([
    "mine",
    9,
  ]);
});

test.each([
  [[], "closed", "denied"],
  [["--on-failure", "closed"], "closed", "denied"],
  [["--on-failure", "open"], "open", "admitted"],
])("init %j writes into each policy that it is %s, and says so", (args, onFailure, said) => {
  const folder = mkdtempSync(join(empty, "chosen-"));
  const { status, stdout } = weir(folder, "init", ...args);
  expect([status, stdout.includes(`While nothing can decide a call it is ${said}`)]).toEqual([0, true]);
  const { policies } = readWranglerToml(undefined, join(folder, "wrangler.toml"));
  const chosen = Object.values(policies as Record<string, { onFailure?: string }>).map(
    (each) => each.onFailure,
  );
  expect(chosen).toEqual([onFailure, onFailure, onFailure, onFailure]);
});

test.each([
  [["--on-failure", "maybe"], '--on-failure is "maybe": must be open or closed'],
  [["--on-failure"], "--on-failure is true: must be open or closed"],
  [["--onfailure", "open"], "--onfailure is not known: weir init [--on-failure open|closed]"],
  [["here"], "here is not known: weir init [--on-failure open|closed]"],
])("init %j is refused, and nothing is written", (args, message) => {
  const folder = mkdtempSync(join(empty, "refused-"));
  const { status, stderr } = weir(folder, "init", ...args);
  expect([status, stderr.slice(0, message.length), readdirSync(folder)]).toEqual([1, message, []]);
});

test("a Node that is too old for wrangler is told so by init already, and nothing is written", () => {
  const folder = mkdtempSync(join(empty, "old-"));
  const old = ["/usr/bin/node", "/usr/local/bin/node"].find(
    (path) =>
      existsSync(path) && spawnSync(path, ["--version"], { encoding: "utf8" }).stdout.startsWith("v20."),
  );
  if (old === undefined) return console.warn("there is no Node 20 here: it was left out");
  const { status, stderr } = spawnSync(old, [bin(), "init"], { cwd: folder, encoding: "utf8" });
  expect([status, readdirSync(folder)]).toEqual([1, []]);
  expect(stderr).toMatch(/^Node 20\..* is too old: weir and wrangler need 22\.13 or newer/);
});

test("a wrangler that is missing or too old is refused, with what to install", () => {
  const wrangler = join(project.folder, "node_modules", "wrangler");
  expect(weir(project.folder, "serve").stderr).toContain("npm install wrangler@^4.155.0");
  mkdirSync(wrangler);
  writeFileSync(join(wrangler, "package.json"), '{"name":"wrangler","version":"4.99.1"}');
  expect(weir(project.folder, "start").stderr).toContain(
    "wrangler 4.99.1 is too old for weir, which needs 4.155.0",
  );
  expect(weir(project.folder, "srve")).toMatchObject({
    status: 1,
    stderr: expect.stringContaining("Usage: weir"),
  });
});

test("weir types needs no wrangler", () => {
  const own = packedProject();
  own.write("wrangler.jsonc", '{ "vars": { "POLICIES": { "a": { "algorithm": "unlimited" } } } } // none');
  expect(weir(own.folder, "types")).toMatchObject({ status: 0, stdout: "weir-policies.d.ts: 1 policies\n" });
});

test("weir verify needs no wrangler, says how it is called, and refuses to go without a token", () => {
  const help = weir(project.folder, "verify", "--help");
  expect([help.status, help.stdout.split("\n", 1)[0]]).toEqual([
    0,
    "Usage: TOKEN=weir_... npx weir verify URL [--quick] [--redeploy] [--policy NAME ...] [--key-prefix TEXT]",
  ]);
  const refused = weir(project.folder, "verify", "https://example.com");
  expect([refused.status, refused.stderr.split("\n", 1)[0]]).toEqual([
    2,
    "TOKEN is missing in the environment",
  ]);
});

/** The statuses of the dashboard's page, and of the files that the page names. */
async function dashboardOf(url: string): Promise<number[]> {
  const page = await fetch(`${url}/dashboard`);
  const names = [...(await page.text()).matchAll(/"(\/dashboard\/[^"]+)"/g)].map(([, path = ""]) => path);
  const files = await Promise.all(names.map((path) => fetch(url + path)));
  return [page.status, ...files.map(({ status }) => status)];
}

test("beside a package.json it writes the rest, and then wrangler dev, weir token and weir serve work", async () => {
  const manifest = readFileSync(join(project.folder, "package.json"), "utf8");
  expect(weir(project.folder, "init").status).toBe(0);
  expect(readFileSync(join(project.folder, "package.json"), "utf8")).toBe(manifest);
  installWrangler();
  project.write(
    "index.ts",
    'import worker, { Limiter, LimiterObject } from "weir-limiter/worker";\nexport const all = [worker, Limiter, LimiterObject];\n',
  );
  expect(typesOf(project, { lib: ["ES2022", "WebWorker"] })).toBe("");

  const dev = await startWranglerDev([join(project.folder, "wrangler.toml")], { API_TOKENS });
  try {
    expect(await limited(dev.url)).toEqual([200, true, 4]);
    expect(await dashboardOf(dev.url)).toEqual([200, 200, 200]);
  } finally {
    await dev.stop();
  }
  const token = weir(project.folder, "token", "--name", "app", "--scope", "limit", "--policy", "logn");
  expect(token.stderr).toContain("(did you mean login?)");

  const PORT = String(await freePort());
  // As in the container, but for the folder and the port.
  const { ENV, CMD, HEALTHCHECK } = dockerfile();
  const [command = "", ...args] = CMD;
  const own = { PORT, STATE_DIR: "state", API_TOKENS, INIT_CWD: project.folder };
  const env = { ...process.env, ...ENV, ...own };
  const health = () => spawnSync(HEALTHCHECK[0] ?? "", HEALTHCHECK.slice(1), { env, timeout: 20_000 }).status;
  expect(health()).toBe(1);
  for (const left of [4, 3]) {
    const served = spawn(join(project.folder, command), args, {
      cwd: project.folder,
      env,
      stdio: ["ignore", "pipe", "inherit"],
    });
    const ended = new Promise<number | null>((done) => served.on("exit", done));
    await Promise.race([new Promise((up) => served.stdout.once("data", up)), ended]);
    expect(await limited(`http://127.0.0.1:${PORT}`)).toEqual([200, true, left]);
    expect(health()).toBe(0);
    expect(await dashboardOf(`http://127.0.0.1:${PORT}`)).toEqual([200, 200, 200]);
    if (left === 3) expect(await verified(`http://127.0.0.1:${PORT}`)).toMatch(/^holds +exactness of login/m);
    served.kill("SIGTERM");
    expect(await ended).toBe(0);
  }
  expect(readdirSync(join(project.folder, "state"))).toContain("weir-LimiterObject");
});
