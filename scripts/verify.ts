/** Verifies a deployment from outside: npm run verify -- https://... with TOKEN in the environment. */
import { createInterface } from "node:readline/promises";
import type { ListedPolicy } from "../core/protocol/reservation-messages.ts";
import { commandOf, readFlags, readLimiter, requireNotTaken, runCommand } from "./call.ts";
import { Calls } from "./verify/calls.ts";
import { verifyExactness } from "./verify/exactness.ts";
import { verifyHeldUnits, verifyHoldExpiry, verifySettling } from "./verify/holds.ts";
import { verifyExclusion, verifyExpiry } from "./verify/leases.ts";
import {
  fieldsOf,
  holdPolicy,
  HOLDS_NEEDED,
  leasePolicy,
  LEASES_NEEDED,
  missingRates,
  rateNeeded,
  ratePolicies,
  RULES_NEEDED,
  rulesPolicy,
} from "./verify/policies.ts";
import { type Finding, percentiles, report, untested } from "./verify/report.ts";
import { verifyRules } from "./verify/rules.ts";
import { verifySockets, watchRedeployment } from "./verify/sockets.ts";

const COMMAND = commandOf("verify");
const USAGE = `Usage: TOKEN=weir_... ${COMMAND} URL [--quick] [--redeploy] [--policy NAME ...] [--key-prefix TEXT]
       TOKEN=weir_... ${COMMAND} URL --account [--quick] [--yes] [--worker NAME]

  URL           the limiter's address, such as https://weir.example.workers.dev
  TOKEN         a token with the scope limit; with admin too, keys are reset afterwards
  --quick       half a minute and 15,000 calls instead of two minutes
  --redeploy    keeps a socket and asks on for 50 s, while you deploy in another terminal
  --policy      only these policies, of those with leases one; may be repeated
  --key-prefix  what the token's keys must begin with
  --account     measures the platform instead, with a worker on trial beside the limiter: see docs/deploying.md
  --yes         does not ask before it deploys that
  --worker      the limiter's name on the account; default: by its address, or as in wrangler.toml

The exit code is 1 when a guarantee is broken, and 2 when there was nothing that could be tested.`;

/** The length of each part, in milliseconds, and the number of timed calls. */
const FULL = {
  exactnessMs: 15_000,
  rulesMs: 10_000,
  holdsMs: 10_000,
  leasesMs: 15_000,
  redeployMs: 50_000,
  timed: 100,
};
const QUICK = {
  exactnessMs: 2_000,
  rulesMs: 2_000,
  holdsMs: 2_000,
  leasesMs: 2_000,
  redeployMs: 5_000,
  timed: 10,
};

async function main(): Promise<number> {
  const { values, positionals } = readFlags({
    allowPositionals: true,
    options: {
      quick: { type: "boolean", default: false },
      redeploy: { type: "boolean", default: false },
      policy: { type: "string", multiple: true },
      "key-prefix": { type: "string", default: "" },
      account: { type: "boolean", default: false },
      yes: { type: "boolean", default: false },
      worker: { type: "string" },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    return 0;
  }
  requireNotTaken(["quick", "redeploy", "policy", "key-prefix", "account", "worker"], `${COMMAND} URL`);
  const { url, token } = readLimiter(positionals, USAGE);
  const calls = new Calls(url, token, values["key-prefix"]);
  const policies = await listed(calls, values.policy);
  if (values.account) return await measureAccount(calls, policies, values);
  const findings: Finding[] = [];
  for (const check of checksOf(calls, policies, values.quick ? QUICK : FULL, values.redeploy)) {
    const found = await check();
    for (const { verdict, name } of found) console.error(`${verdict}: ${name}`);
    findings.push(...found);
  }
  const { text, exitCode } = report(findings);
  const unanswered = calls.lost === 0 ? "" : `, ${calls.lost} of them were not answered`;
  console.log(`\n${calls.url}, ${new Date().toISOString()}\n\n${text}; ${calls.made} calls${unanswered}`);
  return exitCode;
}

/** Measures the account of the limiter. The first signal ends it, and removes what it deployed. */
async function measureAccount(
  calls: Calls,
  policies: readonly ListedPolicy[],
  {
    quick,
    yes,
    worker,
  }: { readonly quick: boolean; readonly yes: boolean; readonly worker?: string | undefined },
): Promise<number> {
  if (process.env["WEIR_PROJECT"] !== undefined)
    throw new Error(
      "--account builds a worker from Weir's sources, which the package does not have: run it in a clone",
    );
  const stop = new AbortController();
  let signals = 0;
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const)
    process.on(signal, () => {
      signals += 1;
      if (signals === 3) process.exit(1);
      console.error(
        signals === 1
          ? "stopping: what was deployed is removed"
          : "it is being removed; a third signal ends this at once, and LEAVES IT THERE",
      );
      stop.abort();
    });
  // Its name is not written in the import, so the package's bundle does not have all of this.
  const run = "./verify/account/run.ts";
  const account = (await import(run)) as typeof import("./verify/account/run.ts");
  const { text, exitCode } = await account.verifyAccount({
    calls,
    policies,
    isPlain: ["127.0.0.1", "localhost", "[::1]"].includes(new URL(calls.url).hostname),
    lengths: quick ? account.QUICK : account.FULL,
    worker,
    env: process.env,
    say: (line) => console.error(line),
    confirm: (question) => (yes ? Promise.resolve(true) : confirmed(question, stop.signal)),
    stop: stop.signal,
  });
  console.log(`\n${calls.url}, ${new Date().toISOString()}\n\n${text}`);
  // A part may still be under way.
  if (stop.signal.aborted) process.exit(exitCode);
  return exitCode;
}

/** Whether the user types y or yes. @throws Error when nobody is there to ask */
async function confirmed(question: string, signal: AbortSignal): Promise<boolean> {
  if (!process.stdin.isTTY)
    throw new Error("nothing was deployed: there is no terminal to ask, so add --yes");
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  try {
    return /^y(es)?$/i.test((await terminal.question(`${question} [y/N] `, { signal })).trim());
  } finally {
    terminal.close();
  }
}

async function listed(calls: Calls, wanted: readonly string[] | undefined): Promise<ListedPolicy[]> {
  const ask = () => calls.make("GET", "/v1/policies");
  const answered = (await ask()) ?? (await ask()) ?? (await ask());
  if (answered === undefined) throw new Error(`${calls.url} does not answer`);
  if (answered.status !== 200)
    throw new Error(
      `${calls.url} answers ${answered.status}: ${JSON.stringify(answered.body["detail"] ?? "it is not a limiter")}`,
    );
  const policies = answered.body["policies"] as ListedPolicy[] | undefined;
  if (!Array.isArray(policies))
    throw new Error(`${calls.url} answers no list of policies: it is not a limiter`);
  const unknown = wanted?.find((name) => !policies.some((policy) => policy.name === name));
  if (unknown !== undefined)
    throw new Error(`--policy is ${unknown}: must be one of ${policies.map(({ name }) => name).join(", ")}`);
  for (const policy of policies) calls.fields.set(policy.name, fieldsOf(policy));
  return policies.filter(({ name }) => wanted?.includes(name) ?? true);
}

type Lengths = typeof FULL;
type Check = () => Promise<readonly Finding[]>;

function checksOf(
  calls: Calls,
  policies: readonly ListedPolicy[],
  lengths: Lengths,
  isRedeployed: boolean,
): Check[] {
  const [rates, lease] = [ratePolicies(policies), leasePolicy(policies)];
  const [held, rules] = [holdPolicy(policies), rulesPolicy(policies)];
  const missing = missingRates(rates);
  const { exactnessMs, rulesMs, holdsMs, leasesMs, redeployMs, timed } = lengths;
  const [first] = rates;
  const whileDeployed: Check = () => {
    console.error(`deploy now: npm run deploy, in another terminal, within ${redeployMs / 1_000} s`);
    return Promise.all([
      ...(first === undefined ? [] : [verifyExactness(calls, first, redeployMs)]),
      ...(lease === undefined ? [] : [watchRedeployment(calls, lease, redeployMs)]),
    ]);
  };
  return [
    async () => [await measureLatency(calls, first?.policy ?? policies[0]?.name ?? "", timed)],
    ...rates.map((rate): Check => async () => [await verifyExactness(calls, rate, exactnessMs)]),
    ...(missing.length === 0
      ? []
      : [async () => [untested(`exactness of ${missing.join(", ")}`, rateNeeded(missing))]]),
    ...(rules === undefined
      ? [async () => [untested("several rules", RULES_NEEDED)]]
      : [async () => [await verifyRules(calls, rules, rulesMs)]]),
    ...(held === undefined
      ? [async () => [untested("holds", HOLDS_NEEDED)]]
      : [
          async () => [await verifyHeldUnits(calls, held, holdsMs)],
          async () => [await verifySettling(calls, held)],
          async () => [await verifyHoldExpiry(calls, held)],
        ]),
    ...(lease === undefined
      ? [async () => [untested("leases and sockets", LEASES_NEEDED)]]
      : [
          async () => [await verifyExclusion(calls, lease, leasesMs)],
          async () => [await verifyExpiry(calls, lease)],
          async () => [await verifySockets(calls, lease)],
        ]),
    ...(isRedeployed ? [whileDeployed] : []),
  ];
}

await runCommand(main, 2);

/** Measures each kind of call `times` times, one after the other, network included. */
async function measureLatency(calls: Calls, policy: string, times: number): Promise<Finding> {
  const key = calls.freshKey();
  const kinds = {
    "the network: GET /healthz": () => calls.make("GET", "/healthz"),
    "a known key": () => calls.make("POST", "/v1/limit", { policy, key, cost: 0 }),
    "a new key": () => calls.make("POST", "/v1/limit", { policy, key: calls.freshKey(), cost: 0 }),
  };
  const says: string[] = [];
  for (const [kind, call] of Object.entries(kinds)) {
    await call();
    const tookMs: number[] = [];
    for (let time = 0; time < times; time += 1) {
      const beginMs = performance.now();
      if ((await call()) !== undefined) tookMs.push(performance.now() - beginMs);
    }
    says.push(`${kind}: ${percentiles(tookMs)}`);
  }
  return { name: `latency, ${times} calls each, one after the other`, verdict: "measured", says };
}
