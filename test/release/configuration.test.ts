/** What is written wrong is refused before anything starts, with the place and the nearest right thing. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readConfiguration } from "../../scripts/configuration.ts";
import { ROOT } from "../../scripts/project.ts";
import { lineOf } from "../../scripts/toml-lines.ts";
import { makeProject, POLICY, removeProject, runScript, writeToml } from "../support/own-project.ts";

let folder: string;
beforeEach(() => (folder = makeProject()));
afterEach(() => removeProject(folder));

const refusal = (script: string, how?: Parameters<typeof runScript>[2]) => {
  const { status, stdout, stderr } = runScript(folder, script, how);
  expect([status, stdout]).toEqual([1, ""]);
  return stderr;
};

/** Reads it in this process as `npm run serve` does: that scripts say the same is tested with few files. */
const read = () =>
  readConfiguration({}, undefined, join(folder, "wrangler.toml"), { runsOn: "workerd", secret: undefined });

test("the line is that of the field, else of the table; in an inline table it is the table's", () => {
  const text = `[vars.POLICIES.api]
limit = 3 # window = 4
window = "1s"

[vars.POLICIES."a.b"]
reservation = { ttl = "1s" }
[vars]
POLICIES.log.limit = 2`;
  const line = (...path: string[]) => lineOf(text, ["vars", "POLICIES", ...path]);
  expect([line("api", "window"), line("api", "burst"), line("a.b", "reservation", "ttl")]).toEqual([3, 1, 6]);
  expect([line("log", "limit"), line("other"), lineOf(text, ["env", "x"])]).toEqual([8, 1, undefined]);
});

test.each([
  [
    "window without its unit",
    POLICY.replace('"30d"', "60"),
    'wrangler.toml:15: policy "api": window is 60: must be',
  ],
  [
    "a table of another name",
    POLICY.replace("POLICIES", "POLICYS"),
    "wrangler.toml:12: POLICYS is not a variable that is read (did you mean POLICIES?)",
  ],
  [
    "a table of the singular beside the others",
    `${POLICY}[vars.POLICY.login]\nalgorithm = "sliding-log"\nlimit = 5\nwindow = "15m"\n`,
    "wrangler.toml:16: POLICY is not a variable that is read (did you mean POLICIES?)",
  ],
  [
    "a table that is not in vars",
    `${POLICY}[POLICIES.login]\nalgorithm = "sliding-log"\nlimit = 5\nwindow = "15m"\n`,
    "wrangler.toml:16: POLICIES is not a table that is read (did you mean vars.POLICIES?)",
  ],
  [
    "a duration in words",
    POLICY.replace('"30d"', '"15 min"'),
    'wrangler.toml:15: policy "api": window is "15 min": must be',
  ],
  ["and beside the right one", `${POLICY}[vars.POLICES.b]\nlimit = 1\n`, "wrangler.toml:16: POLICES is not"],
  [
    "what is logged",
    `${POLICY}[vars.LOG]\nfailures = 1\ndenials = 2\n`,
    "wrangler.toml:18: LOG: denials is 2: must be a number from 0 to 1",
  ],
  [
    "home",
    `[vars]\nHOME = "mars"\n${POLICY}`,
    'wrangler.toml:13: HOME is "mars": must be one of "wnam", "enam"',
  ],
  [
    "regions",
    `${POLICY}[vars.REGION.eu]\ncontinents = ["EU"]\n`,
    "wrangler.toml:16: REGION is not a variable that is read (did you mean REGIONS?)",
  ],
  [
    "rule for rules",
    "[vars.POLICIES.api.rule.a]\nlimit = 1\n",
    'wrangler.toml:12: policy "api": rule is not a field (did you mean rules?)',
  ],
  ["a field", POLICY.replace("limit", "limt"), "limt is not a field"],
  ["an algorithm", POLICY.replace("token-bucket", "token-buket"), "wrangler.toml:13: policy"],
])("%s: refused, with file and line", (_, tables, said) => {
  writeToml(folder, tables);
  expect(read).toThrow(said);
});

test.each(["json", "jsonc"])("a table that is not in vars of wrangler.%s is refused too", (ending) => {
  const file = join(folder, `wrangler.${ending}`);
  const staging = { LOG: { failures: 1 } };
  const config = {
    name: "weir",
    compatibility_date: "2026-10-20",
    POLICIES: { login: {} },
    env: { staging },
  };
  writeFileSync(file, JSON.stringify(config));
  const said = `wrangler.${ending}: POLICIES is not a table that is read (did you mean vars.POLICIES?)`;
  expect(() => readConfiguration({}, undefined, file)).toThrow(said);
  expect(() => readConfiguration({}, "staging", file)).toThrow(
    `${said}\nwrangler.${ending}: env.staging.LOG is not a table that is read (did you mean env.staging.vars.LOG?)`,
  );
  writeFileSync(file, '{ "name": "weir",\n"vars": }');
  expect(() => readConfiguration({}, undefined, file)).toThrow(`wrangler.${ending}:2:9: `);
});

test.each([
  ["deploy", ["--check"]],
  ["deploy", ["--dry-run"]],
  ["policy-types", []],
])("%s %j says where TOML is broken, and what is expected there", (script, args) => {
  writeToml(folder, POLICY.replace('"token-bucket"', "token-bucket"));
  expect(refusal(script, { args })).toBe(
    'wrangler.toml:13:13: invalid value: expected a text in quotes, a number, true, false, "[" or "{"\n' +
      "  algorithm = token-bucket\n              ^\n",
  );
});

test("a check of a deployment says the same, with file and line, and all of it", () => {
  const other = `${POLICY}[vars.POLICIES.jobs]\nalgorithm = "concurrency"\nlimit = 2\nmaxQueue = 3\n`;
  writeToml(folder, `${other.replace('"30d"', "60")}[vars.LOG]\ndenials = 2\n[vars.POLICY.a]\nlimit = 1\n`);
  const { status, stdout } = runScript(folder, "deploy", { args: ["--check"] });
  const bad = stdout.split("\n").filter((line) => /^BAD +(policies|variables)/.test(line));
  expect([status, bad]).toEqual([
    1,
    [
      expect.stringMatching(/policies: wrangler.toml:15: policy "api": window is 60/),
      expect.stringMatching(/policies: wrangler.toml:19: policy "jobs": maxQueue is not a field/),
      expect.stringMatching(/variables: wrangler.toml:22: POLICY is not a variable that is read/),
      expect.stringMatching(/variables: wrangler.toml:21: LOG: denials is 2/),
    ],
  ]);
});

test.each([
  ["start", []],
  ["serve", []],
  ["deploy", ["--dry-run"]],
])("%s says the same, before anything is started or uploaded", (script, args) => {
  for (const [tables, said] of [
    [POLICY.replace('"30d"', "60"), 'wrangler.toml:15: policy "api": window is 60: must be'],
    [POLICY.replace("POLICIES", "POLICYS"), "wrangler.toml:12: POLICYS is not a variable that is read"],
  ] as const) {
    writeToml(folder, tables);
    expect(refusal(script, { args })).toContain(said);
  }
});

const BOUND = '[[services]]\nbinding = "LIMITER"\nservice = "weir"\nentrypoint = "Limiter"\nprops = ';

test.each([
  ['{ polices = ["api"] }', "polices is not a field: there are"],
  ['{ polices = ["api"] }', "(did you mean policies?)"],
  ['{ policy = "apii" }', 'policy is "apii": must be one of api (did you mean api?)'],
  ['{ policies = ["api", "log"] }', 'policies.1 is "log": must be one of api'],
  ['{ scopes = "limit" }', 'scopes is "limit"'],
])("a binding with the props %s is refused", (props, said) => {
  writeToml(folder, `${POLICY}${BOUND}${props}\n`);
  expect(read).toThrow("wrangler.toml: the props of the binding LIMITER: ");
  expect(read).toThrow(said);
});

test("and when the limiter starts or is deployed", () => {
  writeToml(folder, `${POLICY}${BOUND}{ policy = "apii" }\n`);
  for (const error of [refusal("start"), refusal("deploy", { args: ["--dry-run"] })])
    expect(error).toContain(
      'wrangler.toml: the props of the binding LIMITER: policy is "apii": must be one of api (did you mean api?)',
    );
});

test("props that are right, and those of bindings to other workers, are not", () => {
  const right = `${BOUND}{ name = "a", policy = "api", policies = ["api"], scopes = ["limit"] }\n`;
  const others = `${BOUND}{ anything = 1 }\n`.replace("weir", "another").replace('"LIMITER"', '"OTHER"');
  writeToml(folder, `${POLICY}${right}${others}`);
  expect(read).not.toThrow();
});

test.each([
  [
    "policy-types",
    ["--confg", "x"],
    "--confg is not a flag: there are --config, --env, --out, --help (did you mean --config?)",
  ],
  ["token", ["--nam", "x"], "--nam is not a flag: there are --name, --scope"],
  ["verify", ["--polcy", "x"], "(did you mean --policy?)"],
  [
    "policies",
    ["pull", "--fil", "x"],
    "--fil is not a flag: there are --file, --help (did you mean --file?)",
  ],
])("a flag that %s does not have is named, with those that it has", (script, args, said) => {
  expect(runScript(folder, script, { args }).stderr).toContain(said);
});

test("a command that is none is named, with the nearest that is one", () => {
  expect(refusal("weir", { args: ["intt"] })).toMatch(
    /^intt is not a command \(did you mean init\?\)\n\nUsage: weir COMMAND\n/,
  );
  expect(refusal("weir", { args: ["frobnicate"] })).toMatch(/^frobnicate is not a command\n\nUsage/);
  expect(refusal("weir")).toMatch(/^Usage: weir COMMAND/);
});

test.each(["init", "start", "serve", "token", "deploy", "verify", "policies", "types"])(
  "weir %s --help says how it is called, and does nothing",
  (command) => {
    for (const flag of ["--help", "-h"]) {
      const { status, stdout, stderr } = runScript(folder, "weir", { args: [command, flag] });
      expect([status, stderr]).toEqual([0, ""]);
      expect(stdout).toMatch(new RegExp(`^Usage: .*weir ${command}\\b`));
    }
  },
);

test("weir --version, and an address that is missing or none", () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as { version: string };
  for (const asked of ["--version", "-v"])
    expect(runScript(folder, "weir", { args: [asked] })).toMatchObject({ status: 0, stdout: `${version}\n` });
  for (const args of [["verify"], ["policies", "pull"]]) {
    const said = (...more: string[]) => runScript(folder, "weir", { args: [...args, ...more] }).stderr;
    expect(said()).toMatch(/^the address is missing\n\nUsage: /);
    expect(said("weir.example.com")).toContain("the address is weir.example.com: must begin with https://");
  }
});

test("a text called REGION, or any other variable, is not the limiter's", () => {
  writeToml(folder, `${POLICY}[vars]\nREGION = "eu"\nPOLICY_TEAM = "a"\n`);
  expect(read).not.toThrow();
});

test.each([
  ["start", ["--port", "9000"], {}, "--port is not known: npm start has no flags: write PORT=9000 npm start"],
  ["serve", ["--port=9000"], {}, "write PORT=9000 npm run serve"],
  ["serve", ["--state-dir", "x"], {}, "write STATE_DIR=x npm run serve"],
  ["start", ["--state-dir", "x"], {}, "write STATE_DIR=x npm run serve"],
  ["start", [], { npm_config_port: "9000" }, "write PORT=9000 npm start"],
  ["start", ["--watch"], {}, "--watch is not known: npm start has no flags"],
  ["start", [], { POLICYS: "{}" }, "POLICYS is not a variable that is read (did you mean POLICIES?)"],
  ["serve", [], { STATEDIR: "x" }, "STATEDIR is not a variable that is read (did you mean STATE_DIR?)"],
  ["start", [], { STATE_DIR: "x" }, "only npm run serve reads it: unset it, or use npm run serve"],
  ["start", [], { POLICIES: '{"a":{"algorithm":"unlimted"}}' }, "(did you mean unlimited?)"],
  ["start", [], { PORT: "80800" }, 'PORT is "80800": must be an integer from 1 to 65535'],
])("%s %j with %j is refused", (script, args, env, said) => {
  expect(refusal(script, { args, env })).toContain(said);
});

test("a token for a policy that is not there is not made, and one for an environment's is", () => {
  const staging = POLICY.replace("[vars.POLICIES.api]", "[env.staging.vars.POLICIES.trial]");
  writeToml(folder, `${POLICY}\n${staging}`);
  const args = ["--name", "app", "--scope", "limit", "--policy"];
  expect(refusal("token", { args: [...args, "apii"] })).toContain(
    '--policy is "apii": must be one of "api" (did you mean api?)',
  );
  expect(refusal("token", { args: [...args, "trial"] })).toContain('--policy is "trial"');
  expect(runScript(folder, "token", { args: [...args, "trial", "--env", "staging"] }).status).toBe(0);
});
