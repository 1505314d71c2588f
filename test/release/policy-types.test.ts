/** What `weir types` writes, in a project that has the package: a misspelt name does not compile. */
import { readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import { makeProject, POLICY, removeProject, runScript } from "../support/own-project.ts";
import { packedProject, removePacked, typesOf, type Project } from "../support/packed.ts";

const TABLES = `${POLICY}limitInCall = { max = 100 }
[vars.POLICIES.api.plans.pro]
limit = 50
[vars.POLICIES.visitor]
algorithm = "token-bucket"
limit = 5
window = "1s"
keyKind = "ip"
priorities = ["paid", "free"]
defaultPriority = "free"
[vars.POLICIES.llm.rules.requests]
algorithm = "token-bucket"
limit = 60
window = "1m"
[vars.POLICIES.llm.rules.tokens]
algorithm = "sliding-log"
limit = 100
window = "1m"
unit = "tokens"
[vars.POLICIES.shared]
algorithm = "token-bucket"
limit = 60
window = "1m"
fair = true
[vars.POLICIES.shared.plans.gold]
limit = 90
${Array.from(
  { length: 30 },
  (_, index) => `[vars.POLICIES.other-${index}]
algorithm = "concurrency"
limit = 5
[vars.POLICIES.rate-${index}]
algorithm = "fixed-window"
limit = 5
window = "1m"
`,
).join("")}`;
const PRIORITIES = '"critical" | "high" | "normal" | "low"';

const PRELUDE = `
import type { Cost, LimiterService, PlanName, Policies, PolicyName } from "weir-limiter";
import { createLimiter, type Limiter } from "weir-limiter/client";
import { rateLimitBinding } from "weir-limiter/cloudflare";
import { concurrency, rateLimit } from "weir-limiter/express";
import { limitedFetch, withConcurrency, withRateLimit } from "weir-limiter/fetch";
import { budgetFetch } from "weir-limiter/llm";
import { createMemoryLimiter } from "weir-limiter/memory";
import { createObjectsLimiter } from "weir-limiter/objects";
import { memoryLimiter, tomlPolicies, unlimited } from "weir-limiter/testing";
import { Ratelimit } from "weir-limiter/upstash";
import { concurrency as honoConcurrency, rateLimit as honoLimit } from "weir-limiter/hono";

declare const service: LimiterService;
const limiter: Limiter = unlimited();
const objects = createObjectsLimiter({ namespace: {}, policies: {} });
const key = "k";
const idempotencyKey = "i";
const isPro = Date.now() > 0;
const handler = (request: Request) => new Response(request.url);
const policies = tomlPolicies("");
const misspelt = { tokns: 3 } as const;
export type Kind = Policies[Extract<keyof Policies, "visitor">];
declare const anyName: Exclude<PolicyName, "shared" | \`other-\${number}\`>;
declare const anySlots: Extract<PolicyName, \`other-\${number}\`>;
declare const fewNames: "api" | "llm";
declare const found: string | (() => string);
`;

/** Calls that compile with the types and without them. */
const RIGHT = [
  'limiter.limit({ policy: "llm", key, cost: { tokens: 3 } })',
  'limiter.limit({ policy: "api", key, plan: "pro", priority: "high", cost: 2 })',
  'limiter.limit({ policy: "api", key, plan: "", limits: { requests: 3 } })',
  'limiter.limit({ policy: "visitor", key, priority: "paid" })',
  'limiter.limit({ policy: "shared", key, group: "g", plan: "gold" })',
  'limiter.limit({ key, cost: { tokens: 3 }, plan: "pro", priority: "paid", group: "g" })',
  "limiter.limit({ policy: anyName, key, cost: 3 })",
  'limiter.limit({ policy: fewNames, key, cost: { requests: 3 }, priority: "low" })',
  'limiter.limit({ policy: "api", key, ...(isPro && ({ plan: "pro" } as const)) })',
  'limiter.limitAll({ checks: [{ policy: "api", key, plan: "pro" }, { policy: "llm", key, cost: { tokens: 3 } }] })',
  'limiter.limitAny({ checks: [{ policy: "shared", key, group: "g" }, { key }], priority: "paid" })',
  'limiter.hold({ policy: "llm", key, units: { requests: 1, tokens: 3 } })',
  'limiter.settle({ id: "h", used: { tokens: 3 } })',
  'limiter.acquire({ policy: "other-1", key, units: 2 })',
  "limiter.acquire({ policy: anySlots, key })",
  'limiter.peek({ policy: "other-1", key })',
  'limiter.reset({ policy: "other-1", key })',
  'limiter.refund({ policy: "shared", key, idempotencyKey, units: { requests: 1 } })',
  'limiter.peek({ policy: "shared", key, group: "g" })',
  'limiter.reset({ policy: "shared", key, plan: "gold" })',
  'service.limit({ policy: "api", key })',
  'createLimiter({ service, policy: "llm" }).limit({ key, cost: { tokens: 3 } })',
  'rateLimit({ limiter, policy: (req) => (req.url === "/" ? "api" : "llm"), key: (req) => String(req.headers["x"]) })',
  'rateLimit({ limiter, limits: [{ policy: "api", key }, { policy: "llm", key, cost: () => ({ tokens: 3 }) }] })',
  'rateLimit({ limiter, policy: "shared", key, group: (req) => String(req.headers["x"]), plan: async () => "gold" as const })',
  'honoLimit({ limiter, policy: "llm", key: (c) => c.req.path, cost: (c) => ({ tokens: c.req.path.length }) })',
  'honoLimit({ limiter, mode: "any", priority: "paid", limits: [{ policy: async () => "api" as const, key }] })',
  'honoConcurrency({ limiter, policy: "other-2", key: (c) => c.req.path, units: 2, priority: () => "low" as const })',
  'withRateLimit({ limiter, policy: "llm", key: (request) => request.url, cost: { tokens: 3 } }, handler)',
  'limitedFetch({ limiter, policy: "shared", key, group: "g", waitMs: 5 })',
  'budgetFetch({ limiter, budgets: [{ policy: "llm", key }, { policy: "shared", key, group: "g" }], maxOutputTokens: 9 })',
  'budgetFetch({ limiter, budgets: [{ policy: "llm", key, units: ["tokens"] }], maxOutputTokens: 9 })',
  'budgetFetch({ limiter, budgets: () => [{ policy: "llm", key, units: ["tokens"] }, { policy: "api", key }], maxOutputTokens: 9 })',
  'budgetFetch({ limiter, budgets: [{ key, units: ["tokens"] }], maxOutputTokens: 9 })',
  'memoryLimiter({ policies, policy: "api" })',
  '("pro" satisfies PlanName<"api">, { tokens: 3 } satisfies Cost<"llm">)',
];

const LEASED = "units of this policy are leased: acquire";
const NOT_LEASED = "units of this policy are not leased: limit or hold";
const NO_LIMITS = "the policy has no limitInCall";
const NO_FAIR = "the policy has no fair = true";
const NO_PLANS = "the policy has no plans";

/** Calls that do not compile with the types, and what the compiler says. Without the types they compile. */
const WRONG: readonly (readonly [call: string, reason: string])[] = [
  ['limiter.limit({ policy: "usrs", key })', '"usrs"'],
  ['limiter.limitAny({ checks: [{ policy: "usrs", key }] })', '"usrs"'],
  ['limiter.acquire({ policy: "usrs", key })', '"usrs"'],
  ['limiter.peek({ policy: "usrs", key })', '"usrs"'],
  ['service.limit({ policy: "usrs", key })', '"usrs"'],
  ['objects.limit({ policy: "usrs", key })', '"usrs"'],
  ['createLimiter({ service, policy: "usrs" })', '"usrs"'],
  ['createMemoryLimiter({ policies: {}, policy: "usrs" })', '"usrs"'],
  ['createObjectsLimiter({ namespace: {}, policies: {}, policy: "usrs" })', '"usrs"'],
  ['memoryLimiter({ policies: {}, policy: "usrs" })', '"usrs"'],
  ['rateLimitBinding({ limiter, policy: "usrs" })', '"usrs"'],
  ['new Ratelimit({ limiter, policy: "usrs" })', '"usrs"'],
  ['rateLimit({ limiter, policy: "usrs", key })', '"usrs"'],
  ['rateLimit({ limiter, policy: () => "usrs" as const, key })', '"usrs"'],
  ['rateLimit({ limiter, limits: [{ policy: "usrs", key }] })', '"usrs"'],
  ['concurrency({ limiter, policy: "usrs", key })', '"usrs"'],
  ['honoLimit({ limiter, policy: "usrs", key })', '"usrs"'],
  ['withRateLimit({ limiter, policy: "usrs", key }, handler)', '"usrs"'],
  ['limitedFetch({ limiter, policy: "usrs", key, waitMs: 5 })', '"usrs"'],
  // No policy has the unit.
  ['limiter.limit({ policy: "llm", key, cost: misspelt })', "tokns"],
  ['limiter.hold({ policy: "llm", key, units: { tokns: 3 } })', "tokns"],
  ['limiter.settle({ id: "h", used: { tokns: 3 } })', "tokns"],
  ['limiter.refund({ policy: "llm", key, idempotencyKey, units: misspelt })', "tokns"],
  ["limiter.limit({ key, cost: { tokns: 3 } })", "tokns"],
  ['service.hold({ policy: "llm", key, units: { tokns: 3 } })', "tokns"],
  ['honoLimit({ limiter, policy: "llm", key, cost: () => misspelt })', "tokns"],
  // Another policy has it.
  ['limiter.limit({ policy: "api", key, cost: { tokens: 3 } })', "tokens"],
  ['limiter.limit({ policy: "api", key, limits: { tokens: 3 } })', "tokens"],
  [
    'limiter.limitAll({ checks: [{ policy: "llm", key }, { policy: "api", key, cost: { tokens: 3 } }] })',
    "tokens",
  ],
  ['limiter.hold({ policy: "api", key, units: { tokens: 3 } })', "tokens"],
  ['limiter.acquire({ policy: "other-1", key, units: { tokens: 3 } })', "tokens"],
  ['limiter.refund({ policy: "api", key, idempotencyKey, units: { tokens: 3 } })', "tokens"],
  // Of so many names the compiler does not say which it compared.
  ["limiter.limit({ policy: anyName, key, cost: { tokens: 3 } })", "to parameter of type 'LimitRequest"],
  ['service.limit({ policy: "api", key, cost: { tokens: 3 } })', "tokens"],
  ['objects.limit({ policy: "api", key, cost: { tokens: 3 } })', "tokens"],
  ['rateLimit({ limiter, policy: "api", key, cost: { tokens: 3 } })', "tokens"],
  ['rateLimit({ limiter, limits: [{ policy: "api", key, cost: { tokens: 3 } }] })', "tokens"],
  ['honoLimit({ limiter, policy: "api", key, cost: () => ({ tokens: 3 }) })', "tokens"],
  ['honoConcurrency({ limiter, policy: "other-2", key, units: { tokens: 3 } })', "tokens"],
  ['withConcurrency({ limiter, policy: "other-2", key, units: { tokens: 3 } }, handler)', "tokens"],
  ['limitedFetch({ limiter, policy: "api", key, waitMs: 5, cost: { tokens: 3 } })', "tokens"],
  [
    'budgetFetch({ limiter, budgets: [{ policy: "api", key, units: ["tokens"] }], maxOutputTokens: 9 })',
    // No unit of this policy is one that budgets count.
    "to type 'never'",
  ],
  [
    'budgetFetch({ limiter, budgets: [{ policy: "llm", key, units: ["output-tokens"] }], maxOutputTokens: 9 })',
    '"output-tokens"',
  ],
  [
    'budgetFetch({ limiter, budgets: () => [{ policy: "llm", key, units: ["cost"] }], maxOutputTokens: 9 })',
    '"cost"',
  ],
  // Plans.
  ['limiter.limit({ policy: "api", key, plan: "prro" })', '"prro"'],
  ['limiter.limit({ key, plan: "prro" })', '"prro"'],
  ['limiter.limit({ policy: "llm", key, plan: "pro" })', '"pro"'],
  ['limiter.reset({ policy: "api", key, plan: "gold" })', '"gold"'],
  ['service.acquire({ policy: "other-1", key, plan: "pro" })', '"pro"'],
  ['rateLimit({ limiter, policy: "api", key, plan: () => "gold" as const })', '"gold"'],
  ['withRateLimit({ limiter, policy: "api", key, plan: "gold" }, handler)', '"gold"'],
  ['budgetFetch({ limiter, budgets: [{ policy: "llm", key, plan: "pro" }], maxOutputTokens: 9 })', '"pro"'],
  ['("gold" satisfies PlanName<"api">)', '"gold"'],
  // Priorities.
  ['limiter.limit({ policy: "api", key, priority: "paid" })', '"paid"'],
  ['limiter.limitAll({ checks: [{ policy: "api", key }], priority: "hihg" })', '"hihg"'],
  ['service.hold({ policy: "visitor", key, units: 1, priority: "high" })', '"high"'],
  ['honoLimit({ limiter, policy: "visitor", key, priority: "high" })', '"high"'],
  ['concurrency({ limiter, policy: "other-1", key, priority: "paid" })', '"paid"'],
  // Groups.
  ['limiter.limit({ policy: "shared", key })', "'group' is missing"],
  ['limiter.limit({ policy: "api", key, group: "g" })', NO_FAIR],
  ['limiter.limitAll({ checks: [{ policy: "shared", key }] })', "'group' is missing"],
  ['limiter.limit({ policy: fewNames, key, group: "g" })', NO_FAIR],
  ['service.hold({ policy: "shared", key, units: 1 })', "'group' is missing"],
  ['rateLimit({ limiter, policy: "shared", key })', "'group' is missing"],
  ['honoLimit({ limiter, limits: [{ policy: "shared", key }] })', "'group' is missing"],
  ['limitedFetch({ limiter, policy: "shared", key, waitMs: 5 })', "'group' is missing"],
  [
    'budgetFetch({ limiter, budgets: [{ policy: "shared", key }], maxOutputTokens: 9 })',
    "'group' is missing",
  ],
  // Units are leased, or used up.
  ['limiter.limit({ policy: "other-1", key })', LEASED],
  ['limiter.limit({ policy: "other-1", key, cost: 2, priority: "low" })', LEASED],
  ['limiter.limitAll({ checks: [{ policy: "api", key }, { policy: "other-1", key }] })', LEASED],
  ['limiter.limitAny({ checks: [{ policy: "other-1", key }] })', LEASED],
  ['limiter.hold({ policy: "other-1", key, units: 1 })', LEASED],
  ['limiter.refund({ policy: "other-1", key, idempotencyKey, units: 1 })', LEASED],
  ['service.limit({ policy: "other-1", key })', LEASED],
  ['rateLimit({ limiter, policy: "other-1", key })', LEASED],
  ['rateLimit({ limiter, limits: [{ policy: "other-1", key }] })', LEASED],
  ['honoLimit({ limiter, policy: "other-1", key })', LEASED],
  ['withRateLimit({ limiter, policy: "other-1", key }, handler)', LEASED],
  ['limitedFetch({ limiter, policy: "other-1", key, waitMs: 5 })', LEASED],
  ['budgetFetch({ limiter, budgets: [{ policy: "other-1", key }], maxOutputTokens: 9 })', LEASED],
  ['limiter.acquire({ policy: "api", key })', NOT_LEASED],
  ['limiter.acquire({ policy: "shared", key, group: "g" })', NOT_LEASED],
  ["limiter.acquire({ policy: fewNames, key })", NOT_LEASED],
  ['service.acquire({ policy: "llm", key, units: { tokens: 3 } })', NOT_LEASED],
  ['concurrency({ limiter, policy: "api", key })', NOT_LEASED],
  ['honoConcurrency({ limiter, policy: "api", key })', NOT_LEASED],
  ['withConcurrency({ limiter, policy: "api", key }, handler)', NOT_LEASED],
  // Fields that the policy has not.
  ['limiter.limit({ policy: "llm", key, limits: { tokens: 3 } })', NO_LIMITS],
  ['limiter.acquire({ policy: "other-1", key, limits: { requests: 3 } })', NO_LIMITS],
  ['limiter.limitAll({ checks: [{ policy: "llm", key, limits: { tokens: 3 } }] })', NO_LIMITS],
  ['honoLimit({ limiter, policy: "llm", key, ownLimits: { tokens: 3 } })', NO_LIMITS],
  ['limiter.limit({ policy: "llm", key, plan: "pro" })', NO_PLANS],
  ['limiter.acquire({ policy: "other-1", key, plan: "pro" })', NO_PLANS],
  ['limiter.peek({ policy: "llm", key, plan: "pro" })', NO_PLANS],
  ['honoLimit({ limiter, policy: "llm", key, plan: () => "pro" as const })', NO_PLANS],
];
/** Calls of programs without the types that compile for texts of any kind. */
const LOOSE = [
  "limiter.limit({ policy: String(key), key, plan: String(key) })",
  "rateLimit({ limiter, policy: found, key })",
];

let folder = "";
let project: Project;
beforeAll(() => {
  folder = makeProject(TABLES);
  project = installed();
});
afterAll(() => {
  removeProject(folder);
  removePacked();
});

function installed(): Project {
  const made = packedProject();
  symlinkSync(join(ROOT, "node_modules", "hono"), join(made.folder, "node_modules", "hono"));
  return made;
}
const WEB = { lib: ["ES2022", "DOM"] };
/** A compiler, and whether an absent field differs from one that is undefined. */
type Compiler = readonly [folder: "typescript" | "typescript5", isExact: boolean];
const COMPILERS: readonly Compiler[] = [
  ["typescript", true],
  ["typescript", false],
  ["typescript5", true],
];

/** What the compiler says of each call, "" if it compiles. */
function saidOf(calls: readonly string[], [compiler, exactOptionalPropertyTypes]: Compiler): string[] {
  project.write("index.ts", `${PRELUDE}${calls.map((call) => `void ${call};`).join("\n")}\n`);
  const said = calls.map(() => "");
  const first = PRELUDE.split("\n").length;
  const errors = typesOf(project, { ...WEB, exactOptionalPropertyTypes }, compiler).split(/\n(?=\S)/);
  for (const error of errors.filter((text) => text !== "")) {
    const call = Number(/^index\.ts\((\d+),/.exec(error)?.[1]) - first;
    if (said[call] === undefined) throw new Error(error);
    said[call] += error;
  }
  return said;
}

test.each(COMPILERS)(
  "%s, exact %s: what wrangler.toml does not have does not compile, in any entry; what it has does",
  (...compiler) => {
    const { status, stdout } = runScript(folder, "policy-types");
    expect([status, stdout]).toEqual([0, "weir-policies.d.ts: 64 policies\n"]);
    const written = readFileSync(join(folder, "weir-policies.d.ts"), "utf8");
    expect(written).toContain(
      `"api": { unit: "requests"; limits: "requests"; plan: "pro"; priority: ${PRIORITIES}; keyKind: "text" };`,
    );
    expect(written).toContain('"visitor": { unit: "requests"; priority: "paid" | "free"; keyKind: "ip" };');
    expect(written).toContain(
      `"llm": { unit: "requests" | "tokens"; priority: ${PRIORITIES}; keyKind: "text" };`,
    );
    expect(written).toContain(
      `"shared": { unit: "requests"; plan: "gold"; priority: ${PRIORITIES}; keyKind: "text"; fair: true };`,
    );
    expect(written).toContain(
      `"other-1": { unit: "concurrent-requests"; priority: ${PRIORITIES}; keyKind: "text"; leases: true };`,
    );
    project.write("weir-policies.d.ts", written);
    const said = saidOf([...RIGHT, ...WRONG.map(([call]) => call)], compiler);
    expect(said.splice(0, RIGHT.length)).toEqual(RIGHT.map(() => ""));
    const others = WRONG.flatMap(([call, reason], index) =>
      said[index]?.includes(reason) === true ? [] : [{ call, reason, said: said[index] }],
    );
    expect(others).toEqual([]);
  },
);

test.each(COMPILERS)(
  "%s, exact %s: without what it writes every text is allowed, as it was",
  (...compiler) => {
    project.write("weir-policies.d.ts", "");
    const calls = [...RIGHT, ...LOOSE, ...WRONG.map(([call]) => call)];
    expect(saidOf(calls, compiler)).toEqual(calls.map(() => ""));
  },
);

test.each([
  ["this machine", '[vars.NOTICES]\nwebhook = "http://127.0.0.1:9000/limits"\n'],
  ["nowhere yet", ""],
])("types need no address: notices go to %s", (_, notices) => {
  const own = makeProject(`${POLICY}notify = [0.8]\n${notices}`);
  const { stdout, stderr } = runScript(own, "policy-types");
  removeProject(own);
  expect([stdout, stderr]).toEqual(["weir-policies.d.ts: 1 policies\n", ""]);
});

test("a configuration that is wrong writes nothing", () => {
  const bad = makeProject(POLICY.replace('"30d"', "60"));
  const { status, stderr } = runScript(bad, "policy-types");
  expect([status, stderr]).toEqual([1, expect.stringContaining("wrangler.toml:15: ")]);
  expect(() => readFileSync(join(bad, "weir-policies.d.ts"))).toThrow();
  removeProject(bad);
});
