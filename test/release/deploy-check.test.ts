/** npm run deploy -- --check: what is found before anything is uploaded. */
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { changes, type Deployed } from "../../scripts/deployment/changes.ts";
import { objectLines, reachedLines } from "../../scripts/deployment/objects.ts";
import { ROOT } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  api: { algorithm: "token-bucket", limit: 10, window: "1s" },
  visitor: { algorithm: "token-bucket", limit: 30, window: "1m", objects: 16 },
  export: { algorithm: "concurrency", limit: 2, ttl: "20s" },
};
const state = makeState();
let served: Serving;
beforeAll(async () => {
  served = await serveBundle(state, policies);
});
afterAll(async () => {
  await served.stop();
  removeState(state);
});

interface Written {
  readonly policies?: object;
  readonly variables?: object;
  readonly className?: string;
  /** Of a service binding to the limiter. */
  readonly props?: object;
}

/** A configuration as wrangler reads it, as JSON. */
function write({
  policies: given = policies,
  variables = {},
  className = "LimiterObject",
  props,
}: Written): string {
  const file = join(state, "wrangler.json");
  const config = {
    name: "weir-checked",
    main: join(ROOT, "worker", "index.ts"),
    compatibility_date: "2026-10-20",
    durable_objects: {
      bindings: [
        { name: "OBJECTS", class_name: className },
        { name: "CATALOG", class_name: "CatalogObject" },
        { name: "STATS", class_name: "StatsObject" },
      ],
    },
    migrations: [
      { tag: "v1", new_sqlite_classes: [className] },
      { tag: "v2", new_sqlite_classes: ["CatalogObject", "StatsObject"] },
    ],
    vars: { POLICIES: given, ...variables },
    ...(props !== undefined && {
      services: [{ binding: "LIMITER", service: "weir-checked", entrypoint: "Limiter", props }],
    }),
  };
  writeFileSync(file, JSON.stringify(config));
  return file;
}

function check(written: Written, args: readonly string[] = []) {
  const script = join(ROOT, "scripts", "deploy.ts");
  const all = [script, "--check", "-c", write(written), ...args];
  const env = { ...process.env, TOKEN: TOKENS.full };
  return new Promise<{ exitCode: unknown; printed: string }>((done) => {
    execFile(process.execPath, all, { cwd: ROOT, env }, (error, stdout, stderr) =>
      done({ exitCode: error === null ? 0 : error.code, printed: stdout + stderr }),
    );
  });
}

test("what is as it was is ready to deploy", async () => {
  const { exitCode, printed } = await check({}, ["--against", served.url]);
  expect(printed).toMatch(/^ok +policies: 3, all valid$/m);
  expect(printed).toMatch(/^ok +variables: POLICIES has \d+ of 5120 bytes$/m);
  expect(printed).toMatch(/^ok +objects: LimiterObject of migration v1/m);
  expect(printed).toMatch(/^ok +objects: CatalogObject of migration v2, bound as CATALOG$/m);
  expect(printed).toMatch(/^ok +objects: StatsObject of migration v2, bound as STATS$/m);
  expect(printed).toMatch(/^ok +objects: CatalogObject of http.* answers$/m);
  expect(printed).toMatch(/^ok +objects: StatsObject of http.* answers$/m);
  expect(printed).toMatch(/^ok +bundle: \d+ KiB compressed/m);
  expect(printed).toMatch(/^unknown +secrets: API_TOKENS/m);
  expect(printed).toMatch(/^ok +keys in use: no policy changes$/m);
  expect(printed).toContain("ready to deploy");
  expect(exitCode).toBe(0);
});

test("what would lose what keys have consumed is bad, and what changes is told", async () => {
  const next = {
    api: { algorithm: "token-bucket", limit: 5, window: "1s", jurisdiction: "eu" },
    visitor: { ...policies.visitor, objects: 32 },
    fresh: { algorithm: "sliding-log", limit: 1, window: "1s" },
  };
  const { exitCode, printed } = await check({ policies: next }, ["--against", served.url]);
  expect(printed).toMatch(/^BAD +keys in use: api: jurisdiction none would become "eu"/m);
  expect(printed).toMatch(/^BAD +keys in use: visitor: objects 16 would become 32.*add objectsBefore = 16$/m);
  expect(printed).toMatch(/^note +keys in use: api: rule api: .*limit 10 becomes 5/m);
  expect(printed).toMatch(/^note +keys in use: fresh is new$/m);
  expect(printed).toMatch(/^note +keys in use: export is gone/m);
  expect(printed).toContain("not ready: 2 bad");
  expect(exitCode).toBe(1);
});

test("a bad policy, a variable that is too large, another class and a variable of plain workerd are bad", async () => {
  const many = Array.from({ length: 90 }, (_, index) => [`policy-${index}`, policies.api]);
  const bad = { policies: { api: { ...policies.api, limit: -1 } } };
  expect((await check(bad)).printed).toMatch(/^BAD +policies: policy "api": limit is -1/m);
  const { exitCode, printed } = await check({
    policies: Object.fromEntries(many) as object,
    props: { policy: "ap" },
    className: "Other",
    variables: { JURISDICTIONS: "ignored" },
  });
  expect(printed).toMatch(/^BAD +variables: POLICIES has \d+ of 5120 bytes$/m);
  expect(printed).toMatch(/^BAD +objects: must be LimiterObject/m);
  expect(printed).toMatch(/^BAD +variables: JURISDICTIONS is for plain workerd/m);
  expect(printed).toMatch(
    /^BAD +bindings: the props of the binding LIMITER: policy is "ap": must be one of /m,
  );
  expect(exitCode).toBe(1);
});

const objects = (classes: Readonly<Record<string, string>>, v2: readonly string[]) =>
  objectLines({
    migrations: [
      { tag: "v1", new_sqlite_classes: ["LimiterObject"] },
      { tag: "v2", new_sqlite_classes: v2 },
    ],
    durable_objects: {
      bindings: Object.entries(classes).map(([name, className]) => ({ name, class_name: className })),
    },
  }).map(({ verdict, text }) => `${verdict} ${text}`);

test("without the catalog or the statistics it is told what that costs; half of one is bad", () => {
  const all = { OBJECTS: "LimiterObject", CATALOG: "CatalogObject", STATS: "StatsObject" };
  expect(objects(all, ["CatalogObject", "StatsObject"]).every((line) => line.startsWith("ok "))).toBe(true);
  const { CATALOG: _, ...lacking } = all;
  expect(objects(lacking, ["StatsObject"])[1]).toMatch(/^note no CatalogObject .* answer 503$/);
  expect(objects(lacking, ["CatalogObject", "StatsObject"])[1]).toMatch(
    /^BAD must be CatalogObject of migration v2 .*bound to nothing/,
  );
  expect(objects(all, ["CatalogObject"])[2]).toMatch(/^BAD must be StatsObject .*the migration is missing/);
  expect(objects({ ...all, STATS: "Other" }, ["CatalogObject", "StatsObject"])[2]).toMatch(/bound to Other/);
  expect(objects({ OBJECTS: "LimiterObject" }, [])).toHaveLength(3);
});

test("what is deployed without them, or cannot be asked, is told so", async () => {
  const without = makeState();
  const plain = await serveBundle(without, policies, { hasDeploymentObjects: false });
  const said = async (url: string, token: string) =>
    (await reachedLines(url, token)).map(({ verdict, text }) => `${verdict} ${text}`);
  try {
    expect(await said(plain.url, TOKENS.full)).toEqual([
      expect.stringMatching(/^note CatalogObject of http.* is not bound there: .*503$/),
      expect.stringMatching(/^note StatsObject of http.* is not bound there: .*503$/),
    ]);
    expect(await said(served.url, TOKENS.metrics)).toEqual([
      expect.stringMatching(/^unknown CatalogObject of http.* was not asked: .* limit or admin$/),
      expect.stringMatching(/^ok StatsObject of http.* answers$/),
    ]);
  } finally {
    await plain.stop();
    removeState(without);
  }
  expect((await said(plain.url, TOKENS.full))[0]).toMatch(/^BAD CatalogObject of http.* does not answer/);
});

test("the staging environment of wrangler.toml is one that deploys", async () => {
  const script = join(ROOT, "scripts", "deploy.ts");
  const printed = await new Promise<string>((done) => {
    execFile(process.execPath, [script, "--check", "--env", "staging"], { cwd: ROOT }, (_, stdout) =>
      done(stdout),
    );
  });
  expect(printed).toMatch(/^weir-staging, environment staging/);
  expect(printed).toContain("ready to deploy");
});

test("plans that are new, gone, or have other figures are told", () => {
  const rule = { algorithm: "token-bucket", limit: 1, window: "1s" };
  const listed = { name: "a", algorithm: "token-bucket", unit: "requests" };
  const figures = (limit: number) => ({ ...listed, capacity: limit, limit, windowMs: 1_000, burst: limit });
  const plans = { pro: [figures(5)], max: [figures(9)], old: [figures(2)] };
  const before: Deployed[] = [{ name: "a", objects: "per-key", keyKind: "text", rules: [figures(1)], plans }];
  const after = { ...rule, plans: { new: { limit: 3 }, pro: { limit: 5 }, max: { limit: 8 } } };
  expect(
    changes(before, parsePolicies({ a: after })).map(({ verdict, text }) => `${verdict} ${text}`),
  ).toEqual([
    "note a: the plan new is new",
    "note a: plan max, rule a: capacity 9 becomes 8, limit 9 becomes 8, burst 9 becomes 8",
    "note a: the plan old is gone: calls that name it are refused (422)",
  ]);
  expect(changes(before, parsePolicies({ a: rule })).map(({ text }) => text)).toHaveLength(3);
});

test("moves that are named are no loss, and other rules are told", () => {
  const deployed: Deployed[] = [
    { name: "a", objects: 4, keyKind: "text", rules: [{ name: "a", algorithm: "concurrency" }] },
  ];
  const next = { algorithm: "token-bucket", limit: 1, window: "1s", objects: 8 };
  const said = (fields: object) =>
    changes(deployed, parsePolicies({ a: { ...next, ...fields } })).map(
      ({ verdict, text }) => `${verdict} ${text}`,
    );
  expect(said({ objectsBefore: 4 })).toEqual([
    expect.stringMatching(/^note a: rule a: algorithm "concurrency" becomes "token-bucket"/),
  ]);
  expect(said({})[0]).toMatch(/^BAD a: objects 4 would become 8/);
  expect(said({ keyKind: "ip", objectsBefore: 4 })[0]).toMatch(/^BAD a: keyKind text would become ip/);
});
