/** npm run verify -- URL --account of a limiter on plain workerd: the trial runs there too, without an account. */
import { type ChildProcess, execFile } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import { PARTS } from "../../scripts/verify/account/parts.ts";
import { type AccountOptions, verifyAccount } from "../../scripts/verify/account/run.ts";
import { Calls } from "../../scripts/verify/calls.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { partIn, POLICIES, SHORT } from "../support/account-lengths.ts";
import { startApi } from "../support/cloudflare-api.ts";
import { inDeepRuns } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const folder = mkdtempSync(join(tmpdir(), "weir-account-test-"));
const state = makeState();
let serving: Serving;
beforeAll(async () => {
  serving = await serveBundle(state, POLICIES);
});
afterAll(async () => {
  await serving.stop();
  removeState(state);
  rmSync(folder, { recursive: true });
});

const temporary = mkdtempSync(join(folder, "temporary-"));
const foldersLeft = () => readdirSync(temporary).filter((name) => name.startsWith("weir-"));
/** Runs the command, and calls `onTold` with what it printed so far. */
const command = (
  args: readonly string[],
  { token = TOKENS.full, url = serving.url }: { readonly token?: string; readonly url?: string } = {},
  onTold: (told: string, child: ChildProcess) => void = () => undefined,
) =>
  new Promise<{ readonly exitCode: number; readonly printed: string }>((done) => {
    const script = join(ROOT, "scripts", "verify.ts");
    const env = { ...process.env, TOKEN: token, TMPDIR: temporary };
    const child = execFile(
      process.execPath,
      [script, url, "--account", ...args],
      { env },
      (error, stdout, stderr) =>
        done({
          exitCode: error === null ? 0 : Number(error.code),
          printed: stdout === "" ? stderr : stdout,
        }),
    );
    let told = "";
    child.stderr?.on("data", (text: Buffer | string) => onTold((told += String(text)), child));
  });
const skipped = ["where CATALOG and STATS are", "a day's bill", "billed time of a waiting push"];
const expectParts = (text: string) => {
  for (const { name } of PARTS)
    expect(partIn(text, name)).toMatch(
      skipped.includes(name) ? /^skipped .*\n +skipped: plain workerd / : /^measured /,
    );
  // On a slow machine some calls meet their deadline.
  const degraded = /300 ms away, .* (\d+) degraded/.exec(partIn(text, PARTS[3]?.name ?? ""))?.[1];
  expect(Number(degraded)).toBeLessThan(250);
  expect(text).toContain(": a restart of plain workerd");
};

test("what needs no account is measured, the rest is skipped with its reason", async () => {
  const { CLOUDFLARE_ACCOUNT_ID: _, CLOUDFLARE_API_TOKEN: __, ...env } = process.env;
  const { text, exitCode } = await verifyAccount({
    calls: new Calls(serving.url, TOKENS.full, ""),
    policies: [{ name: "api", keyKind: "text" }] as unknown as AccountOptions["policies"],
    isPlain: true,
    lengths: SHORT,
    env,
    say: () => undefined,
    confirm: () => Promise.reject(new Error("nothing is deployed")),
    stop: new AbortController().signal,
  });
  expectParts(text);
  expect(exitCode).toBe(0);
});

inDeepRuns("the command does it, and leaves nothing", async () => {
  const { exitCode, printed } = await command(["--quick"]);
  expectParts(printed);
  expect(exitCode).toBe(0);
  expect(foldersLeft()).toEqual([]);
});

inDeepRuns.each(["SIGINT", "SIGTERM"] as const)("%s ends it early, and nothing is left", async (signal) => {
  let isKilled = false;
  const { exitCode, printed } = await command(["--quick"], {}, (told, child) => {
    if (isKilled || !told.includes("measured: isolates per colo and load")) return;
    isKilled = child.kill(signal);
  });
  expect(printed).toMatch(/^measured +isolates per colo and load/m);
  expect(printed).toContain("stopped early");
  expect(exitCode).toBe(130);
  expect(foldersLeft()).toEqual([]);
});

test("an address that is no limiter is refused, and a token that may not", async () => {
  const other = await startApi(() => ({ body: "<html></html>" }));
  expect((await command([], { url: other.url })).printed).toMatch(/no list of policies: it is not a limiter/);
  await other.stop();
  expect((await command([], { token: TOKENS.limit })).printed).toMatch(/--account needs limit and admin/);
});
