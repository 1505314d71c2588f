/**
 * npm run verify -- URL --account, with servers and a process in place of Cloudflare's API and wrangler. The worker on
 * trial is real.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import { CloudflareApi } from "../../scripts/verify/account/cloudflare.ts";
import { bill, freePlan, places, waiting } from "../../scripts/verify/account/measure.ts";
import { PARTS } from "../../scripts/verify/account/parts.ts";
import { type AccountOptions, verifyAccount } from "../../scripts/verify/account/run.ts";
import {
  deployTrial,
  type Left,
  serveTrial,
  type Trial,
  trialName,
} from "../../scripts/verify/account/trial.ts";
import { Calls } from "../../scripts/verify/calls.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { partIn, POLICIES, SHORT } from "../support/account-lengths.ts";
import {
  analytics,
  type Api,
  type ApiReply,
  listOf,
  namespaceOf,
  startApi,
  startFront,
} from "../support/cloudflare-api.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const CF_TOKEN = "cf_secret_0123456789";
const ACCOUNT_ID = "0123456789abcdef0123456789abcdef";
const WRANGLER = [join(ROOT, "node_modules", ".bin", "wrangler")];
const FAKE = [process.execPath, join(ROOT, "test", "support", "fake-wrangler.mjs")];

const folder = mkdtempSync(join(tmpdir(), "weir-account-test-"));
const log = join(folder, "calls.jsonl");
const state = makeState();
let serving: Serving;
/** In place of the deployed worker. */
let trial: Trial;
let left: Left | undefined;
let front: Awaited<ReturnType<typeof startFront>>;
beforeAll(async () => {
  serving = await serveBundle(state, POLICIES);
  const wrangler = { command: WRANGLER, maxMs: 120_000, secrets: [], env: process.env };
  trial = await serveTrial(wrangler, (its) => (left = its));
  front = await startFront(trial);
});
afterAll(async () => {
  await Promise.all([serving.stop(), left?.remove(), front.stop()]);
  removeState(state);
  rmSync(folder, { recursive: true });
});
beforeEach(() => {
  rmSync(log, { force: true });
  front.tokens.clear();
  front.paths.length = 0;
});

interface WranglerCall {
  readonly command: string;
  readonly at: "begin" | "end";
  readonly args: readonly string[];
  readonly config: { readonly name: string };
  readonly environment: readonly string[];
}
const wranglerCalls = () =>
  (existsSync(log) ? (readFileSync(log, "utf8").match(/.+/g) ?? []) : []).map(
    (line) => JSON.parse(line) as WranglerCall,
  );
const inOrder = () => wranglerCalls().map(({ command, at }) => `${command} ${at}`);
const namesDeployed = () =>
  wranglerCalls().flatMap(({ config }) => (config === undefined ? [] : [config.name]));

interface Run {
  readonly reply?: (query: string) => ApiReply | undefined;
  readonly ways?: Readonly<Record<string, string>>;
  readonly token?: string;
  readonly env?: NodeJS.Dict<string>;
  readonly options?: Partial<AccountOptions>;
}

/** Runs it as on an account. Nothing that it says or throws has a secret. */
async function onAccount({ reply, ways, token = TOKENS.full, env, options }: Run = {}) {
  const said: string[] = [];
  const api: Api = await startApi(({ query }) => {
    const replied = reply?.(query);
    if (replied !== undefined) return replied;
    const classes = ["LimiterObject", "CatalogObject", "StatsObject"].map((name) =>
      namespaceOf("weir", name),
    );
    const deployed = namesDeployed().map((name) => namespaceOf(name, "WaitingObject"));
    return { body: query === "" ? listOf([...classes, ...deployed]) : analytics(query) };
  });
  try {
    const done = await verifyAccount({
      calls: new Calls(serving.url, token, ""),
      policies: [{ name: "api", keyKind: "text" }] as unknown as AccountOptions["policies"],
      isPlain: false,
      lengths: SHORT,
      env: {
        ...process.env,
        CLOUDFLARE_ACCOUNT_ID: ACCOUNT_ID,
        CLOUDFLARE_API_TOKEN: CF_TOKEN,
        CLOUDFLARE_API_BASE_URL: api.url,
        FAKE_WRANGLER: JSON.stringify({ log, url: front.url, ...ways }),
        TOKEN: token,
        ...env,
      },
      wrangler: { command: FAKE, maxMs: 60_000 },
      say: (line) => said.push(line),
      confirm: () => Promise.resolve(true),
      stop: new AbortController().signal,
      ...options,
    });
    return withoutSecrets({ ...done, said: said.join("\n") });
  } catch (error) {
    return withoutSecrets({ text: "", exitCode: -1, said: [...said, String(error)].join("\n") });
  } finally {
    await api.stop();
  }
}

function withoutSecrets<Done extends object>(done: Done): Done {
  for (const secret of [CF_TOKEN, TOKENS.full, trial.token, ...front.tokens])
    expect(JSON.stringify(done)).not.toContain(secret);
  return done;
}

describe("on an account", () => {
  test("all parts are measured beside what is documented, and what was deployed is removed", async () => {
    const { text, exitCode, said } = await onAccount();
    expect(text).not.toMatch(/^skipped/m);
    for (const { name, documented, source } of PARTS) {
      expect(partIn(text, name)).toMatch(/^measured /);
      expect(partIn(text, name)).toContain("measured: ");
      expect(partIn(text, name)).toContain(`documented: ${documented} (${source})`);
    }
    expect(partIn(text, "isolates that host many objects")).toMatch(
      /50 objects, by isolates: 1, at most 50 objects/,
    );
    expect(partIn(text, "one object's messages a second, and whether it recovers")).toMatch(/it recovers: /);
    expect(partIn(text, "a deployment under load with many overrides")).toContain(
      "50 overrides were written",
    );
    expect(partIn(text, "a deployment under load with many overrides")).toContain(
      " 0 without their override",
    );
    expect(partIn(text, "where CATALOG and STATS are")).toContain(
      "CatalogObject, by requests of the last 24 h: AMS (900),FRA (100)",
    );
    expect(partIn(text, "the free plan's limits")).toContain(
      "60 of 60 calls to an object were answered in one invocation",
    );
    expect(partIn(text, "the free plan's limits")).toContain("worker requests 1000000 (1000 %)");
    // A million worker requests, a tenth of it object requests, 2,000 rows and 40 GB-s.
    expect(partIn(text, "a day's bill")).toContain("$0.32 for a million worker requests");
    expect(partIn(text, "billed time of a waiting push")).toContain(
      "40.00 GB-s are billed, 0.05 are their waits",
    );
    expect(exitCode).toBe(0);
    // The bounds of which the price was told.
    const count = (path: string) => front.paths.filter((each) => each === path).length;
    expect(count("/v1/limit")).toBeLessThanOrEqual(SHORT.maxCalls);
    expect(count("/trial/load")).toBeLessThanOrEqual((2 * SHORT.maxMessages) / 40);
    const [first, , again] = wranglerCalls();
    const name = first?.config.name ?? "";
    expect(inOrder()).toEqual(
      ["deploy", "deploy", "delete"].flatMap((each) => [`${each} begin`, `${each} end`]),
    );
    expect(name).toMatch(/^weir-trial-[0-9a-f]{16}$/);
    expect(new Set(namesDeployed())).toEqual(new Set([name]));
    expect(wranglerCalls().at(-2)?.args.slice(0, 2)).toEqual([name, "--force"]);
    expect(said).toMatch(
      new RegExp(`deploys the worker ${name} to the account ${ACCOUNT_ID}, calls it and weir`),
    );
    expect(said).toMatch(/It costs at most \$0\.\d\d/);
    expect(said).toContain(`removed: ${name}`);
    expect(first?.environment).toContain("CLOUDFLARE_API_TOKEN");
    expect(first?.environment).not.toContain("TOKEN");
    expect(JSON.stringify(again?.config)).not.toContain(TOKENS.full);
    const path = first?.args[first.args.indexOf("-c") + 1] ?? "";
    expect(path).not.toBe("");
    expect(existsSync(dirname(path))).toBe(false);
    // The token of the run is deployed as its hash.
    const [token = ""] = front.tokens;
    expect(front.tokens.size).toBe(1);
    expect(JSON.stringify(again?.config)).toContain(createHash("sha256").update(token).digest("hex"));
    expect(JSON.stringify(again?.config)).not.toContain(token);
  });

  test("the calls on trial need the token of the run", async () => {
    for (const authorization of ["", "Bearer ", "Bearer weir_test_full", `Basic ${trial.token}`]) {
      const answered = await fetch(`${trial.url}/trial/isolate`, { headers: { authorization } });
      expect(answered.status).toBe(401);
    }
    expect((await new Calls(trial.url, trial.token, "").make("GET", "/trial/isolate"))?.status).toBe(200);
  });

  test("analytics that fail, and classes that are not there, skip their parts alone", async () => {
    const api = await startApi(() => ({ body: { data: null, errors: [{ message: "no dataset" }] } }));
    const calls = new Calls(front.url, "any", "");
    const its = {
      api: new CloudflareApi({ accountId: ACCOUNT_ID, token: CF_TOKEN, baseUrl: api.url }),
      script: "weir",
    };
    const account = { ...its, namespaces: [namespaceOf("weir", "StatsObject")] };
    const deployed = { ...trial, script: "weir-trial-0" };
    const measuring = { limiter: calls, policy: "api", trial: deployed, calls, account, lengths: SHORT };
    const problem = `${api.url} answers 200: no dataset`;
    expect(await bill(measuring)).toEqual({ skipped: problem });
    expect(await waiting(measuring)).toEqual({ skipped: expect.stringContaining("no dataset") as string });
    expect(await freePlan(measuring)).toEqual([expect.any(String), `use of the day: ${problem}`]);
    expect(JSON.stringify(await places(measuring))).toContain("weir has no such class");
    await api.stop();
  });
});

describe("a wrangler that does not do its work", () => {
  test.each([
    [
      "refused",
      /the trial was not deployed: wrangler deploy ended with code 1: Authentication error for \*\*\*/,
    ],
    ["silently", /wrangler does not say where it deployed the trial/],
    ["cut", /wrangler does not say where it deployed the trial/],
    ["asking", /wrangler deploy ended with code 1: Would you like to register/],
    ["hanging", /wrangler deploy was stopped after 6 s: it printed nothing/],
  ])("%s: it says so, and removes what may be there", async (deploy, words) => {
    const wrangler = { command: FAKE, maxMs: 6_000 };
    const { said, exitCode } = await onAccount({ ways: { deploy }, options: { wrangler } });
    expect(exitCode).toBe(-1);
    expect(said).toMatch(words);
    expect(inOrder().slice(-2)).toEqual(["delete begin", "delete end"]);
    expect(said).toMatch(/^removed: weir-trial-/m);
  });

  test("that is not there is a sentence too", async () => {
    const { said } = await onAccount({
      options: { wrangler: { command: [join(folder, "none")], maxMs: 3_000 } },
    });
    expect(said).toMatch(/wrangler deploy does not run \(spawn .* ENOENT\)/);
    expect(said).toMatch(/^not there: weir-trial-/m);
  });

  test("what is not removed is told, with how to do it, and the exit code is 1", async () => {
    const stopping = new AbortController();
    const stop = stopping.signal;
    const confirm = () => Promise.resolve(true);
    const say = (line: string) => line.startsWith("measured: ") && stopping.abort();
    const { text, exitCode } = await onAccount({
      ways: { delete: "refused" },
      options: { stop, confirm, say },
    });
    const [name] = namesDeployed();
    expect(text).toMatch(/^measured  isolates per colo and load$/m);
    expect(text).toContain(
      `NOT REMOVED: ${name} may still be on the account. Delete it: npx wrangler delete ${name} --force`,
    );
    expect(inOrder().filter((each) => each === "delete begin").length).toBe(3);
    expect(exitCode).toBe(1);
  });

  test("a delete that fails although nothing is left is no failure", async () => {
    const reply = (query: string) =>
      query === "" ? { body: listOf([namespaceOf("weir", "LimiterObject")]) } : undefined;
    const { said } = await onAccount({ ways: { deploy: "refused", delete: "refused" }, reply });
    expect(said).toMatch(/^not there: weir-trial-/m);
    expect(said).not.toContain("NOT REMOVED");
  });

  test("stopped while it deploys, the removal comes after the deployment", async () => {
    const stopping = new AbortController();
    const running = onAccount({ ways: { deploy: "slowly" }, options: { stop: stopping.signal } });
    await eventually(() => expect(inOrder()).toContain("deploy begin"));
    stopping.abort();
    const { exitCode, said } = await running;
    expect(inOrder()).toEqual(["deploy begin", "deploy end", "delete begin", "delete end"]);
    expect(said).toMatch(/^removed: weir-trial-/m);
    expect(exitCode).toBe(130);
  });

  test("what is removed is not deployed again by a part that is still under way", async () => {
    const lefts: Left[] = [];
    const env = { ...process.env, FAKE_WRANGLER: JSON.stringify({ log, url: front.url }) };
    const wrangler = { command: FAKE, maxMs: 60_000, secrets: [], env };
    expect(trialName()).not.toBe(trialName());
    const deployed = await deployTrial(wrangler, trialName(), (its) => lefts.push(its));
    expect(await lefts[0]?.remove()).toBeUndefined();
    await expect(deployed.redeploy("2")).rejects.toThrow("is removed");
    expect(inOrder().at(-1)).toBe("delete end");
  });
});

describe("bad input is refused before anything is deployed", () => {
  const refusals: [string, Run, RegExp][] = [
    [
      "no account",
      { env: { CLOUDFLARE_ACCOUNT_ID: undefined } },
      /CLOUDFLARE_ACCOUNT_ID is missing: npx wrangler whoami prints it/,
    ],
    [
      "an account that is none",
      { env: { CLOUDFLARE_ACCOUNT_ID: "mine" } },
      /CLOUDFLARE_ACCOUNT_ID is not 32 hexadecimal digits/,
    ],
    [
      "no token of the account",
      { env: { CLOUDFLARE_API_TOKEN: "" } },
      /CLOUDFLARE_API_TOKEN is missing: make one at https/,
    ],
    [
      "a token with a line break",
      { env: { CLOUDFLARE_API_TOKEN: "a\nb" } },
      /CLOUDFLARE_API_TOKEN is not a token/,
    ],
    [
      "a wrong token of the account",
      { reply: () => ({ status: 401, body: {} }) },
      /CLOUDFLARE_API_TOKEN is refused \(401\)/,
    ],
    [
      "a token without analytics",
      {
        reply: (query) =>
          query === "" ? undefined : { body: { data: null, errors: [{ message: "not authorized" }] } },
      },
      /not authorized/,
    ],
    [
      "another worker",
      { options: { worker: "weird" } },
      /the account has no limiter "weird": --worker must be one of weir/,
    ],
    [
      "another account",
      { reply: (query) => (query === "" ? { body: listOf([]) } : undefined) },
      /it has none at all/,
    ],
    [
      "a token without the scope admin",
      { token: TOKENS.limit },
      /TOKEN has the scopes limit: --account needs limit and admin/,
    ],
    ["no consent", { options: { confirm: () => Promise.resolve(false) } }, /nothing was deployed/],
  ];
  test.each(refusals)("%s", async (_, run, words) => {
    const { said, exitCode } = await onAccount(run);
    expect(exitCode).toBe(-1);
    expect(said).toMatch(words);
    expect(wranglerCalls()).toEqual([]);
  });
});
