/** Examples in a project of their own, with the packed package and what their README installs. */
import { execFile, spawn, spawnSync } from "node:child_process";
import { cpSync, readdirSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { ROOT, WRANGLER_TOML } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { projectWith, removePacked, typesOf, type Project } from "../support/packed.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { startWranglerDev } from "../support/wrangler-dev.ts";

const EXAMPLES = join(ROOT, "examples");
const WORKERS = { lib: ["ES2024", "ESNext.Disposable"], module: "ESNext", moduleResolution: "Bundler" };
const NODE = { types: ["node"], lib: ["ES2024", "ESNext.Disposable"], skipLibCheck: true };
const MONTH = { algorithm: "token-bucket", window: "30d" };
const policies = {
  api: { ...MONTH, limit: 2 },
  payments: { ...MONTH, limit: 2 },
  model: { ...MONTH, limit: 2, maxWait: "30s" },
  export: { algorithm: "concurrency", limit: 1 },
};

const state = makeState();
const tarball = inject("tarball");
let served: Serving;
beforeAll(async () => {
  served = await serveBundle(state, policies);
});
afterAll(async () => {
  await served.stop();
  removeState(state);
  removePacked();
});

/** The example in a folder with nothing else; `undefined`: its packages cannot be had. */
function alone(example: string, packages: readonly string[] = []): Project | undefined {
  const project = projectWith(tarball, packages);
  if (project === undefined)
    console.warn(`${packages.join(" ")} cannot be had from npm here: it was left out`);
  else cpSync(join(EXAMPLES, example), project.folder, { recursive: true });
  return project;
}
const environment = () => ({ ...process.env, WEIR_URL: served.url, WEIR_TOKEN: TOKENS.full });

/** They read files of this project, and say so: their subject is what a Redis has of a pool. */
const IN_A_CLONE = ["redis-pool"];

test("no example imports a file that its folder does not have", () => {
  const importing = readdirSync(EXAMPLES).filter((example) =>
    readdirSync(join(EXAMPLES, example))
      .filter((file) => file.endsWith(".ts"))
      .some((file) => /from "\.\.\//.test(readFileSync(join(EXAMPLES, example, file), "utf8"))),
  );
  expect(importing).toEqual(IN_A_CLONE);
});

test.each([
  ["http", []],
  ["llm-budget", []],
  ["notices", ["hono@4", "standardwebhooks@1"]],
  ["queue", []],
  ["service-binding", []],
])("the worker of examples/%s has its types without the files of this project", (example, packages) => {
  const project = alone(example, packages);
  const types = [join(ROOT, "node_modules", "@cloudflare", "workers-types")];
  if (project !== undefined) expect(typesOf(project, { ...WORKERS, types, skipLibCheck: true })).toBe("");
});

test("examples/express: admits, denies with Retry-After, frees its slot, and ends at SIGTERM", async () => {
  const project = alone("express", ["express@5", "@types/express@5", "@types/node@24"]);
  if (project === undefined) return;
  expect(typesOf(project, { ...NODE, esModuleInterop: true })).toBe("");
  const PORT = String(await freePort());
  const strip = ["--experimental-strip-types", "index.ts"];
  const child = spawn(process.execPath, strip, {
    cwd: project.folder,
    env: { ...environment(), PORT },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise((done) => child.on("exit", (code, signal) => done([code, signal])));
  await Promise.race([new Promise((up) => child.stdout.once("data", up)), ended]);
  const get = (path: string) =>
    fetch(`http://127.0.0.1:${PORT}${path}`, { headers: { "x-api-key": "alice", connection: "close" } });
  expect(await (await get("/")).json()).toEqual({ remaining: 1 });
  expect(await (await get("/export")).json()).toEqual({ rows: 1_000 });
  const denied = await get("/");
  expect([denied.status, Number(denied.headers.get("retry-after")) > 0]).toEqual([429, true]);
  child.kill("SIGTERM");
  expect(await ended).toEqual([null, "SIGTERM"]);
  const leases = await fetch(`${served.url}/v1/policies/export/keys/customer:alice`, {
    headers: { authorization: `Bearer ${TOKENS.full}` },
  });
  expect(await leases.json()).toMatchObject({ leases: 0 });
});

/** Chat completions: the first call is told to come again after a second. Counts the calls. */
function startModel(): Promise<{ server: Server; url: string; calls: () => number }> {
  let calls = 0;
  const server = createServer((request, response) => {
    request.resume();
    calls += 1;
    if (calls === 1) {
      response.writeHead(429, { "retry-after": "1" }).end();
      return;
    }
    response.setHeader("content-type", "application/json");
    const message = { role: "assistant", content: `answer ${calls}` };
    response.end(JSON.stringify({ id: "1", object: "chat.completion", choices: [{ index: 0, message }] }));
  });
  return new Promise((done) => {
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      done({ server, url: `http://127.0.0.1:${port}/v1`, calls: () => calls });
    });
  });
}

test("examples/openai: waits when the model says so, and what the limit does not admit is never sent", async () => {
  const project = alone("openai", ["openai@7", "@types/node@24"]);
  if (project === undefined) return;
  expect(typesOf(project, NODE)).toBe("");
  const model = await startModel();
  try {
    const env = { ...environment(), MODEL_URL: model.url, MODEL_KEY: "sk-none" };
    const args = ["--experimental-strip-types", "index.ts", "one", "two", "three"];
    const run = await promisify(execFile)(process.execPath, args, {
      cwd: project.folder,
      env,
      timeout: 60_000,
    });
    const [first, second, third, ...none] = run.stdout.trim().split("\n");
    expect([first, second, none, model.calls()]).toEqual(["answer 2", expect.anything(), [], 2]);
    expect([second, third].join()).toMatch(/^(come again in \d+ ms,?){2}$/);
  } finally {
    model.server.close();
  }
});

const CALLERS: readonly (readonly [string, string, readonly string[]])[] = [
  ["python", "python3", ["weir.py"]],
  ["go", "go", ["run", "."]],
];
test.each(CALLERS)(
  "examples/%s: pays until it is denied, and pays nobody without an answer",
  async (name, command, args) => {
    const version = spawnSync(command, [command === "go" ? "version" : "--version"]);
    if (version.status !== 0) return console.warn(`${command} is not here: examples/${name} was left out`);
    const cwd = join(EXAMPLES, name);
    const keys = [name, name, name];
    // Python writes its bytecode beside the program, Go below the user's folder.
    const env = { ...environment(), PYTHONDONTWRITEBYTECODE: "1" };
    const { stdout } = await promisify(execFile)(command, [...args, ...keys], { cwd, env });
    expect(stdout).toMatch(
      new RegExp(`^${name}: paid, 1 left\n${name}: paid, 0 left\n${name}: denied, again in \\d+ ms\n$`),
    );
    for (const wrong of [
      { WEIR_TOKEN: "weir_guess" },
      { WEIR_URL: `http://127.0.0.1:${await freePort()}` },
    ]) {
      const away = await promisify(execFile)(command, [...args, name], { cwd, env: { ...env, ...wrong } });
      expect([away.stdout, away.stderr === ""]).toEqual([`${name}: try again later\n`, false]);
    }
  },
);

interface Mail {
  readonly id: string;
  readonly customer: string;
  readonly units: number;
}

test("examples/queue: a mail is charged once however often it comes, and one that does not fit waits alone", async () => {
  const project = alone("queue");
  if (project === undefined) throw new Error("it was not installed");
  const mails: Mail[] = [];
  let isAway = true;
  const provider = createServer((request, response) => {
    let text = "";
    request.on("data", (data: Buffer) => (text += data.toString()));
    request.on("end", () => {
      const mail = JSON.parse(text) as Mail;
      mails.push(mail);
      response.writeHead(mail.customer === "carol" && mail.units === 600 && isAway ? 500 : 200).end();
      if (mail.customer === "carol") isAway = false;
    });
  });
  await new Promise<void>((up) => provider.listen(0, "127.0.0.1", up));
  const { port } = provider.address() as AddressInfo;
  const dev = await startWranglerDev([join(project.folder, "wrangler.toml"), WRANGLER_TOML], {
    MAIL_URL: `http://127.0.0.1:${port}`,
  });
  const send = async (customer: string, units: number) => {
    const { status } = await fetch(dev.url, { method: "POST", body: JSON.stringify({ customer, units }) });
    expect(status).toBe(202);
  };
  const sentTo = (customer: string) => mails.filter((mail) => mail.customer === customer);
  try {
    await send("carol", 600);
    await eventually(() => expect(sentTo("carol").map(({ units }) => units)).toEqual([600, 600]));
    expect(new Set(sentTo("carol").map(({ id }) => id)).size).toBe(1);
    await send("carol", 400);
    await eventually(() => expect(sentTo("carol")).toHaveLength(3));
    await send("alice", 1_000);
    await eventually(() => expect(sentTo("alice")).toHaveLength(1));
    await send("alice", 1);
    await send("bob", 1);
    // A batch is handled in its order: when bob's is sent, alice's has been decided.
    await eventually(() => expect(sentTo("bob")).toHaveLength(1));
    expect(sentTo("alice")).toHaveLength(1);
  } finally {
    await dev.stop();
    provider.close();
  }
});
