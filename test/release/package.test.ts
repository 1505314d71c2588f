/** The packed package, installed into empty projects: strict types, and programs that run. */
import { execFile, execFileSync, spawn, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { createLimiter } from "../../package/client.ts";
import { WRANGLER_TOML } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { readPages } from "../support/docs.ts";
import { TOKENS } from "../support/fixtures.ts";
import { EXPRESS, HONO, PARTS } from "../support/package-programs.ts";
import { packedProject, projectWith, removePacked, typesOf, type Project } from "../support/packed.ts";
import { makeState, serveBundle } from "../support/served.ts";
import { startWranglerDev } from "../support/wrangler-dev.ts";

const CALLS = 2_000;
const policies = {
  hot: { algorithm: "token-bucket", limit: 1_000_000, window: "30d", deadlineMs: 20_000 },
};

/** It does not close its limiter, and ends all the same: nothing of it keeps the process. */
const PROGRAM = `
import { createLimiter, LimiterError, type Limiter } from "weir-limiter/client";
import { createMemoryLimiter } from "weir-limiter/memory";
import type { Decision, LimiterService } from "weir-limiter";

declare const process: { readonly argv: readonly string[] } | undefined;
declare const console: { log(text: string): void };

const [url = "", token = "", key = ""] = process?.argv.slice(2) ?? [];
const limiter: Limiter = createLimiter({ url, token, policy: "hot" });
let held = 0;
for (let call = 0; call < ${CALLS}; call += 1) {
  const decision: Decision = await limiter.limit({ key });
  if (!decision.success) throw new Error(JSON.stringify(decision));
  if (decision.source === "isolate") held += 1;
}
const refused: unknown = await limiter.limit({ key, cost: -1 }).catch((error: unknown) => error);
const memory = createMemoryLimiter({ policies: { api: { algorithm: "sliding-log", limit: 1, window: "1m" } } });
const { success } = await memory.limit({ policy: "api", key });
const other: Pick<LimiterService, "limit"> = memory;
const { success: again } = await other.limit({ policy: "api", key });
console.log(JSON.stringify([held > ${CALLS} / 2, refused instanceof LimiterError && refused.status, success, again]));
`;
const PRINTED = [true, 422, true, false];

const tarball = inject("tarball");
let served: Serving;
beforeAll(async () => {
  served = await serveBundle(makeState(), policies);
});
afterAll(async () => {
  await served.stop();
  removePacked();
});

/** The units of a key that are used, and those that are held. */
async function unitsOf(key: string): Promise<unknown> {
  await using limiter = createLimiter({
    url: served.url,
    token: TOKENS.full,
    policy: "hot",
    deadlineMs: 20_000,
  });
  const { remaining = 0, outstanding } = await limiter.peek({ key });
  return { used: 1_000_000 - remaining - outstanding, outstanding };
}

async function expectToRun(
  project: Project,
  command: string,
  args: readonly string[],
  key: string,
): Promise<void> {
  const given = [...args, served.url, TOKENS.full, key];
  // A blocked process would not see that the server has closed an idle connection, and use it.
  const { stdout, stderr } = await promisify(execFile)(command, given, {
    cwd: project.folder,
    timeout: 60_000,
  });
  expect([stdout.trim(), stderr.includes("rror")]).toEqual([JSON.stringify(PRINTED), false]);
  await expect(unitsOf(key)).resolves.toEqual({ used: CALLS, outstanding: 0 });
}

test("in Node 20 and in a current one: strict types, no other packages, and what was held goes back at the end", async () => {
  const project = packedProject();
  project.write("client.ts", PROGRAM);
  expect(typesOf(project)).toBe("");
  const installed = execFileSync("ls", [join(project.folder, "node_modules")], { encoding: "utf8" });
  expect(installed.trim()).toBe("weir-limiter");
  // What Node 20 cannot read is stripped by a newer one.
  const strip = `import { stripTypeScriptTypes } from "node:module"; import { readFileSync, writeFileSync } from "node:fs";
    writeFileSync("client.js", stripTypeScriptTypes(readFileSync("client.ts", "utf8")));`;
  execFileSync(process.execPath, ["--input-type=module", "-e", strip], { cwd: project.folder });
  await expectToRun(project, process.execPath, ["client.js"], "current");
  const version = (path: string) => spawnSync(path, ["--version"], { encoding: "utf8" }).stdout;
  const old = ["/usr/bin/node", "/usr/local/bin/node"].find(
    (path) => existsSync(path) && version(path).startsWith("v20."),
  );
  if (old === undefined) console.warn("there is no Node 20 here: it was left out");
  else await expectToRun(project, old, ["client.js"], "old");
});

test("a process that gets SIGTERM gives back what it holds, and ends by that signal", async () => {
  const project = packedProject();
  project.write(
    "server.js",
    `import { createLimiter } from "weir-limiter/client";
    const [url, token] = process.argv.slice(2);
    const limiter = createLimiter({ url, token, policy: "hot" });
    for (let call = 0; call < ${CALLS}; call += 1) await limiter.limit({ key: "server" });
    setInterval(() => limiter.limit({ key: "server", cost: 0 }), 60_000);
    console.log("ready");`,
  );
  const child = spawn(process.execPath, ["server.js", served.url, TOKENS.full], {
    cwd: project.folder,
    stdio: ["ignore", "pipe", "inherit"],
  });
  await new Promise((ready) => child.stdout.once("data", ready));
  const ended = new Promise((done) => child.on("exit", (code, signal) => done([code, signal])));
  child.kill("SIGTERM");
  expect(await ended).toEqual([null, "SIGTERM"]);
  expect(await unitsOf("server")).toEqual({ used: CALLS, outstanding: 0 });
});

test.each([
  ["bun", "bun", ["run"]],
  ["deno", "deno", ["run", "-A", "--quiet"]],
])("in %s, which comes from npm", async (name, command, args) => {
  const project = projectWith([name]);
  if (project === undefined) return;
  project.write("client.ts", PROGRAM);
  const bin = join(project.folder, "node_modules", ".bin", command);
  await expectToRun(project, bin, [...args, "client.ts"], name);
});

test("in a worker under wrangler dev: the binding has its types, and a hot key is decided in the caller", async () => {
  const project = packedProject();
  project.write(
    "index.ts",
    `import type { CatalogDocument, LimiterService, OverrideAnswer } from "weir-limiter";
    import { createLimiter } from "weir-limiter/client";
    interface Env { readonly LIMITER: LimiterService }
    export default {
      async fetch(request: Request, env: Env): Promise<Response> {
        const limiter = createLimiter({ service: env.LIMITER });
        const sources: string[] = [];
        for (let call = 0; call < 50; call += 1)
          sources.push((await limiter.limit({ policy: "api", key: "k" })).source);
        using catalog = await env.LIMITER.catalog();
        const { version } = await catalog.putOverride("api", "typed", { multiply: 2 }, { ifMatch: 0 });
        const made: OverrideAnswer = await catalog.override("api", "typed");
        const { overrides } = await catalog.overrides("api");
        await catalog.deleteOverride("api", "typed", { ifMatch: version });
        const { value }: { value: CatalogDocument } = await catalog.read();
        const found = [made.version === version, overrides.length, value.overrides["api"] ?? null];
        return Response.json({ sources, found });
      },
    };`,
  );
  const config = project.write(
    "wrangler.toml",
    `name = "caller"\nmain = "index.ts"\ncompatibility_date = "2026-10-20"\n
    [[services]]\nbinding = "LIMITER"\nservice = "weir"\nentrypoint = "Limiter"\n`,
  );
  expect(
    typesOf(project, { lib: ["ES2022", "WebWorker"], module: "ESNext", moduleResolution: "Bundler" }),
  ).toBe("");
  const dev = await startWranglerDev([config, WRANGLER_TOML]);
  try {
    const answered: unknown = await fetch(dev.url).then((response) => response.json());
    const { sources, found } = answered as { readonly sources: string[]; readonly found: unknown };
    expect(found).toEqual([true, 1, null]);
    expect(sources.filter((source) => source === "isolate").length).toBeGreaterThan(30);
  } finally {
    await dev.stop();
  }
});

/** What a program in TypeScript prints, run as Node does by itself, if it ends. */
function printed({ folder }: Project, file: string): unknown {
  const { status, stdout, stderr } = spawnSync(process.execPath, ["--experimental-strip-types", file], {
    cwd: folder,
    encoding: "utf8",
    timeout: 60_000,
  });
  return status === 0 ? JSON.parse(stdout) : stdout + stderr;
}
const WEB = { lib: ["ES2022", "DOM"] };

test("without any other package: plain handlers, Express, drop-ins and testing", () => {
  const project = packedProject();
  project.write("index.ts", PARTS);
  expect(typesOf(project, WEB)).toBe("");
  expect(typesOf(project, WEB, "typescript5")).toBe("");
  expect(printed(project, "index.ts")).toEqual([200, 429, true, 0, "ok", 3, [200, 200]]);
});

test.each([
  ["Node16", "Node16", true],
  ["NodeNext", "NodeNext", true],
  ["Bundler", "ESNext", true],
  ["Node10", "ESNext", false],
])("moduleResolution %s with module %s finds the entries: %s", (moduleResolution, module, isFound) => {
  const project = packedProject();
  project.write("index.ts", PARTS);
  const said = typesOf(project, { ...WEB, moduleResolution, module }, "typescript5");
  if (isFound) expect(said).toBe("");
  else expect(said).toContain("could not be resolved under your current 'moduleResolution' setting");
});

test("with TypeScript 5.4, the oldest that works, which comes from npm", () => {
  const project = projectWith(["typescript@5.4.5"]);
  if (project === undefined) return;
  project.write("index.ts", PARTS);
  expect(typesOf(project, WEB, join(project.folder, "node_modules", "typescript"))).toBe("");
});

test("what README and CHANGELOG link to is in the package that was installed", () => {
  const project = packedProject();
  const folder = join(project.folder, "node_modules", "weir-limiter");
  const pages = readPages().filter(({ path }) => path === "README.md" || path === "CHANGELOG.md");
  const links = pages.flatMap((page) => page.links).filter((address) => !/^(https?:|#)/.test(address));
  expect(links.length).toBeGreaterThan(20);
  expect(links.filter((address) => !existsSync(join(folder, address.split("#", 1)[0] ?? "")))).toEqual([]);
});

test("with Hono, which comes from npm", () => {
  const project = projectWith(["hono@4"]);
  if (project === undefined) return;
  project.write("app.ts", HONO);
  expect(typesOf(project, WEB)).toBe("");
  expect(printed(project, "app.ts")).toEqual([1, 0, 429]);
});

test("with Express, which comes from npm", () => {
  const project = projectWith(["express@5", "@types/express@5", "@types/node@24"]);
  if (project === undefined) return;
  project.write("index.ts", EXPRESS);
  expect(typesOf(project, { types: ["node"], skipLibCheck: true, esModuleInterop: true })).toBe("");
  expect(printed(project, "index.ts")).toEqual([200, '"jobs";r=0;t=60', 14, 200, 429, 0]);
});

test.each([
  ["publint", "publint@0.3.25", ["run", "--strict"]],
  // It is a package of modules alone: require() of them is left to Node.
  ["attw", "@arethetypeswrong/cli@0.18.5", ["--profile", "esm-only", "--format", "ascii", "--no-emoji"]],
])("%s, which comes from npm, finds nothing wrong with the tarball", (command, from, args) => {
  const project = projectWith([from]);
  if (project === undefined) return;
  const bin = join(project.folder, "node_modules", ".bin", command);
  const { status, stdout, stderr } = spawnSync(bin, [...args, tarball], {
    encoding: "utf8",
    timeout: 60_000,
  });
  expect(status === 0 ? "" : stdout + stderr).toBe("");
});
