/** Examples in a project of their own, with the packed package and what their README installs. */
import { execFile, spawn, spawnSync } from "node:child_process";
import { cpSync, readdirSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { ROOT, WRANGLER_TOML } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { packedProject, projectWith, removePacked, typesOf, type Project } from "../support/packed.ts";
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
  const project = packages.length === 0 ? packedProject() : projectWith(packages);
  if (project !== undefined) cpSync(join(EXAMPLES, example), project.folder, { recursive: true });
  return project;
}
const environment = () => ({ ...process.env, WEIR_URL: served.url, WEIR_TOKEN: TOKENS.full });

/** They read files of this project, and say so: their subject is what a Redis has of a pool. */
const IN_A_CLONE = ["redis-pool"];

test("no example imports a file that its folder does not have", () => {
  const importing = readdirSync(EXAMPLES).filter((example) =>
    readdirSync(join(EXAMPLES, example), { recursive: true, encoding: "utf8" })
      .filter((file) => file.endsWith(".ts"))
      .some((file) => {
        const found = readFileSync(join(EXAMPLES, example, file), "utf8").matchAll(/from "(\.[^"]+)"/g);
        return [...found].some(([, target = ""]) => join(dirname(file), target).startsWith(".."));
      }),
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

/** The server of an example, once it says that it listens. */
async function startServer({ folder: cwd }: Project, args: readonly string[]) {
  const PORT = String(await freePort());
  const env = { ...environment(), HOST: "127.0.0.1", PORT };
  const child = spawn(process.execPath, args, { cwd, env, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((done) => child.on("exit", (code, signal) => done([code, signal])));
  const up = new Promise<void>((done) =>
    child.stdout.on("data", (data: Buffer) => /listening|ready/i.test(data.toString()) && done()),
  );
  await Promise.race([up, ended]);
  return {
    get: (path: string, key: string) =>
      fetch(`http://127.0.0.1:${PORT}${path}`, { headers: { "x-api-key": key, connection: "close" } }),
    /** Resolves to the exit code and the signal. */
    stop: () => {
      child.kill("SIGTERM");
      return ended;
    },
  };
}

/** As the README says, without a token: an example reads it when it runs. */
async function build({ folder: cwd }: Project, args: readonly string[]): Promise<void> {
  const env = { ...process.env, NEXT_TELEMETRY_DISABLED: "1", WEIR_TOKEN: "" };
  await promisify(execFile)(process.execPath, args, { cwd, env });
}

const statusAndWait = ({ status, headers }: Response) => [status, Number(headers.get("retry-after")) > 0];
const authorized = { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" };
async function expectFreeSlots(key: string): Promise<void> {
  const url = `${served.url}/v1/policies/export/keys/customer:${key}`;
  expect(await (await fetch(url, { headers: authorized })).json()).toMatchObject({ leases: 0 });
}

test("examples/express: admits, denies with Retry-After, frees its slot, and ends at SIGTERM", async () => {
  const project = alone("express", ["express@5", "@types/express@5", "@types/node@24"]);
  if (project === undefined) return;
  expect(typesOf(project, { ...NODE, esModuleInterop: true })).toBe("");
  const { get, stop } = await startServer(project, ["--experimental-strip-types", "index.ts"]);
  try {
    expect(await (await get("/", "alice")).json()).toEqual({ remaining: 1 });
    expect(await (await get("/export", "alice")).json()).toEqual({ rows: 1_000 });
    expect(statusAndWait(await get("/", "alice"))).toEqual([429, true]);
  } finally {
    await stop();
  }
  expect(await stop()).toEqual([null, "SIGTERM"]);
  await expectFreeSlots("alice");
});

const SVELTEKIT = ["kit@3", "adapter-node@6", "vite-plugin-svelte@7"].map((name) => `@sveltejs/${name}`);

test("examples/sveltekit: admits, needs a slot, denies every route with Retry-After, and ends at SIGTERM", async () => {
  const project = alone("sveltekit", [...SVELTEKIT, "svelte@5", "vite@8", "@types/node@24"]);
  if (project === undefined) return;
  expect(typesOf(project, { ...NODE, allowImportingTsExtensions: true })).toBe("");
  await build(project, ["node_modules/vite/bin/vite.js", "build"]);
  const { get, stop } = await startServer(project, ["build"]);
  try {
    expect(await (await get("/export", "sveltekit")).json()).toEqual({ rows: 1_000, remaining: 1 });
    await eventually(() => expectFreeSlots("sveltekit"));
    const body = JSON.stringify({ policy: "export", key: "customer:sveltekit" });
    await fetch(`${served.url}/v1/leases`, { method: "POST", headers: authorized, body });
    expect((await get("/export", "sveltekit")).status).toBe(503);
    expect(statusAndWait(await get("/export", "sveltekit"))).toEqual([429, true]);
    expect(statusAndWait(await get("/none", "sveltekit"))).toEqual([429, true]);
    expect((await get("/none", "another")).status).toBe(404);
  } finally {
    await stop();
  }
  expect(await stop()).toEqual([0, null]);
});

const NEXT = ["next@16", "react@19", "react-dom@19", "typescript@7", "@types/react@19", "@types/node@24"];

// Built for real: the build takes 15 s, the test 35 s, and that of SvelteKit 13 s.
test("examples/next: admits, and denies with Retry-After", async () => {
  const project = alone("next", NEXT);
  if (project === undefined) return;
  expect(typesOf(project, { ...NODE, module: "ESNext", moduleResolution: "Bundler" })).toBe("");
  const next = "node_modules/next/dist/bin/next";
  await build(project, [next, "build"]);
  const { get, stop } = await startServer(project, [next, "start", "-H", "127.0.0.1"]);
  try {
    for (const remaining of [1, 0])
      expect(await (await get("/api/quota", "next")).json()).toEqual({ remaining });
    expect(statusAndWait(await get("/api/quota", "next"))).toEqual([429, true]);
    expect(await (await get("/api/quota", "another-next")).json()).toEqual({ remaining: 1 });
  } finally {
    await stop();
  }
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
