/** What `weir types` writes, in a project that has the package: a misspelt name does not compile. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { makeProject, POLICY, removeProject, runScript } from "../support/own-project.ts";
import { projectWith, removePacked, typesOf, type Project } from "../support/packed.ts";

const TABLES = `${POLICY}[vars.POLICIES.api.plans.pro]
limit = 50
[vars.POLICIES.visitor]
algorithm = "token-bucket"
limit = 5
window = "1s"
keyKind = "ip"
[vars.POLICIES.llm.rules.requests]
algorithm = "token-bucket"
limit = 60
window = "1m"
[vars.POLICIES.llm.rules.tokens]
algorithm = "sliding-log"
limit = 100
window = "1m"
unit = "tokens"
`;

/** Each line that must not compile says so by itself. */
const strict = (expected: string) => `
import type { LimiterService, Policies, PolicyName } from "weir-limiter";
import { createLimiter, type Limiter } from "weir-limiter/client";
import { rateLimitBinding } from "weir-limiter/cloudflare";
import { concurrency, rateLimit } from "weir-limiter/express";
import { withRateLimit } from "weir-limiter/fetch";
import { createMemoryLimiter } from "weir-limiter/memory";
import { createObjectsLimiter } from "weir-limiter/objects";
import { memoryLimiter, tomlPolicies, unlimited } from "weir-limiter/testing";

declare const service: LimiterService;
const limiter: Limiter = unlimited();
const key = "k";
const policies = tomlPolicies("");
export const right = () => [
  limiter.limit({ policy: "llm", key, cost: { tokens: 3 } }),
  limiter.limit({ policy: "api", key, plan: "pro", cost: 2 }),
  limiter.limitAll({ checks: [{ policy: "api", key }, { policy: "visitor", key }] }),
  limiter.hold({ policy: "llm", key, units: { requests: 1, tokens: 3 } }),
  limiter.settle({ id: "h", used: { tokens: 3 } }),
  service.limit({ policy: "api", key }),
  createLimiter({ service, policy: "api" }).limit({ key }),
  rateLimit({ limiter, policy: (req) => (req.url === "/" ? "api" : "llm"), key: (req) => String(req.headers["x"]) }),
  rateLimit({ limiter, limits: [{ policy: "api", key }, { policy: "llm", key, cost: { tokens: 3 } }] }),
  memoryLimiter({ policies, policy: "api" }),
];
const policy = ${JSON.stringify(expected === "" ? "api" : "usrs")} as const;
const cost = { tokns: 3 } as const;
const plan = "prro";
export const wrong = () => [
  limiter.limit({ ${expected}policy, key }),
  limiter.limit({ policy: "llm", key, ${expected}cost }),
  limiter.limit({ policy: "api", key, ${expected}plan }),
  limiter.limitAny({ checks: [{ ${expected}policy, key }] }),
  limiter.acquire({ ${expected}policy, key }),
  limiter.hold({ policy: "llm", key, ${expected}units: cost }),
  limiter.settle({ id: "h", ${expected}used: cost }),
  limiter.refund({ policy: "llm", key, idempotencyKey: "i", ${expected}units: cost }),
  limiter.peek({ ${expected}policy, key }),
  service.limit({ ${expected}policy, key }),
  createLimiter({ service, ${expected}policy }),
  createMemoryLimiter({ policies: {}, ${expected}policy }),
  createObjectsLimiter({ namespace: {}, policies: {}, ${expected}policy }),
  memoryLimiter({ policies: {}, ${expected}policy }),
  rateLimitBinding({ limiter, ${expected}policy }),
  rateLimit({ limiter, ${expected}policy, key }),
  concurrency({ limiter, ${expected}policy, key }),
  ${expected}withRateLimit({ limiter, policy, key }, (request: Request) => new Response(request.url)),
];
export type Kind = Policies[Extract<keyof Policies, "visitor">];
export const name: PolicyName = "api";
`;
const EXPECT = "\n// @ts-expect-error there is none\n";

let [folder, tarball] = ["", ""];
beforeAll(async () => {
  tarball = inject("tarball");
  folder = makeProject(TABLES);
});
afterAll(() => {
  removeProject(folder);
  removePacked();
});

function installed(): Project {
  const project = projectWith(tarball);
  if (project === undefined) throw new Error("it was not installed");
  return project;
}
const COMPILERS = ["typescript", "typescript5"] as const;
const WEB = { lib: ["ES2022", "DOM"] };

test("names that are not in wrangler.toml do not compile, in any entry; those that are do", () => {
  const { status, stdout } = runScript(folder, "policy-types");
  expect([status, stdout]).toEqual([0, "weir-policies.d.ts: 3 policies\n"]);
  const written = readFileSync(join(folder, "weir-policies.d.ts"), "utf8");
  expect(written).toContain('"api": { unit: "requests"; plan: "pro"; keyKind: "text" };');
  expect(written).toContain('"visitor": { unit: "requests"; keyKind: "ip" };');
  expect(written).toContain('"llm": { unit: "requests" | "tokens"; keyKind: "text" };');
  const project = installed();
  project.write("weir-policies.d.ts", written);
  project.write("index.ts", strict(EXPECT));
  for (const compiler of COMPILERS) expect(typesOf(project, WEB, compiler)).toBe("");
});

test("without what it writes every text is allowed, as it was", () => {
  const project = installed();
  project.write("index.ts", strict(""));
  for (const compiler of COMPILERS) expect(typesOf(project, WEB, compiler)).toBe("");
});

test("a configuration that is wrong writes nothing", () => {
  const bad = makeProject(POLICY.replace('"30d"', "60"));
  const { status, stderr } = runScript(bad, "policy-types");
  expect([status, stderr]).toEqual([1, expect.stringContaining("wrangler.toml:15: ")]);
  expect(() => readFileSync(join(bad, "weir-policies.d.ts"))).toThrow();
  removeProject(bad);
});
