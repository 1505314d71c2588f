import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { expect, test } from "vitest";

const SCRIPT = join(import.meta.dirname, "..", "..", "scripts", "token.ts");
const NEEDED = ["--name", "app", "--scope", "limit"];

function run(...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [SCRIPT, ...args], { encoding: "utf8" });
  return { status, stdout, stderr };
}

test("the entry has what was asked for, and the hash of the token that is shown", () => {
  const { status, stdout } = run(
    ...NEEDED,
    "--scope=admin",
    "--policy=api",
    "--key-prefix=a:",
    "--max-calls-at-once=20",
    "--max-new-keys-per-second=100000",
  );
  expect(status).toBe(0);
  const token = /^weir_[\w-]{43}$/m.exec(stdout)?.[0] ?? "";
  expect(JSON.parse(/^\{.*\}$/m.exec(stdout)?.[0] ?? "null")).toEqual({
    name: "app",
    sha256: createHash("sha256").update(token).digest("hex"),
    scopes: ["limit", "admin"],
    policies: ["api"],
    keyPrefix: "a:",
    maxCallsAtOnce: 20,
    maxNewKeysPerSecond: 100_000,
  });
});

test("what is left out is left out of the entry", () => {
  expect(Object.keys(JSON.parse(/^\{.*\}$/m.exec(run(...NEEDED).stdout)?.[0] ?? "{}") as object)).toEqual([
    "name",
    "sha256",
    "scopes",
  ]);
});

test.each([
  ["--max-calls-at-once", "0", "from 1 to 100000"],
  ["--max-calls-at-once", "100001", "from 1 to 100000"],
  ["--max-new-keys-per-second", "1.5", "from 1 to 100000"],
  ["--max-new-keys-per-second", "many", "from 1 to 100000"],
  ["--max-new-keys-per-second", "1e3", "from 1 to 100000"],
])("%s %s is refused, and what is allowed is said", (option, value, allowed) => {
  const { status, stdout, stderr } = run(...NEEDED, option, value);
  expect(status).toBe(1);
  expect(stdout).toBe("");
  expect(stderr).toContain(`${option} is "${value}": must be an integer ${allowed}`);
  expect(stderr).toContain("Usage: npm run token");
});
