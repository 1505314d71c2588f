/**
 * npm run verify -- URL --account: puts a worker on trial beside the limiter, measures, and removes it again, whatever
 * happens. For a limiter on this machine the trial runs on plain workerd, without an account.
 */
import { join } from "node:path";
import { dollarsOf } from "../../../bench/prices.ts";
import type { ListedPolicy } from "../../../core/protocol/reservation-messages.ts";
import { readWranglerToml, ROOT } from "../../project.ts";
import { Calls, pause } from "../calls.ts";
import { type Finding, linesOf } from "../report.ts";
import { CloudflareApi, partsOfFreeDay, plain } from "./cloudflare.ts";
import type { Account, Lengths } from "./measure.ts";
import { mostOf, PARTS } from "./parts.ts";
import { deployTrial, type Left, serveTrial, type Trial, trialName, type Wrangler } from "./trial.ts";

export { FULL, QUICK } from "./parts.ts";

export interface AccountOptions {
  readonly calls: Calls;
  readonly policies: readonly ListedPolicy[];
  /** The limiter runs on plain workerd of this machine. */
  readonly isPlain: boolean;
  readonly lengths: Lengths;
  /** The limiter's name on the account; absent: by its address, or as in wrangler.toml. */
  readonly worker?: string | undefined;
  readonly env: NodeJS.Dict<string>;
  /** How wrangler is called; absent: that of this project, for 3 minutes at most. */
  readonly wrangler?: Pick<Wrangler, "command" | "maxMs">;
  readonly say: (line: string) => void;
  /** Whether to go on. It is asked before anything is deployed. */
  readonly confirm: (question: string) => Promise<boolean>;
  /** Ends the run early. What was deployed is removed. */
  readonly stop: AbortSignal;
}

const WRANGLER_MAX_MS = 180_000;
const REMOVALS = 3;
const REMOVAL_PAUSE_MS = 2_000;
const DAY_MS = 86_400_000;
const TOKENS_PAGE = "https://dash.cloudflare.com/profile/api-tokens";

/**
 * Measures, and returns the report and the exit code: 0, or 1 when something could not be removed, 2 when nothing was
 * measured, 130 when it was stopped.
 * @throws Error about bad input, before anything is deployed
 */
export async function verifyAccount(
  options: AccountOptions,
): Promise<{ readonly text: string; readonly exitCode: number }> {
  const { calls, env, isPlain, lengths, say, stop } = options;
  const policy = options.policies.find(({ keyKind }) => keyKind === "text")?.name;
  if (policy === undefined)
    throw new Error("no policy of the limiter has keys that are texts: --account needs one");
  await requireAdmin(calls);
  const account = isPlain ? undefined : await accountOf(options);
  const name = trialName();
  if (account !== undefined) {
    const most = mostOf(lengths);
    say(
      `This deploys the worker ${name} to the account ${env["CLOUDFLARE_ACCOUNT_ID"]}, calls it and ${account.script} for ` +
        `some minutes, and deletes ${name} with its objects. ${account.script} is not changed.`,
    );
    say(
      `It costs at most $${(Math.ceil(100 * dollarsOf(most)) / 100).toFixed(2)}: ${partsOfFreeDay(most)} of a free day.`,
    );
    if (!(await options.confirm("Go on?"))) throw new Error("nothing was deployed");
  } else say("The limiter runs on this machine: the trial does too, on plain workerd, and needs no account.");

  if (stop.aborted) throw new Error("stopped: nothing was deployed");
  const secrets = [calls.token, env["CLOUDFLARE_API_TOKEN"] ?? ""];
  const wrangler: Wrangler = {
    command: [join(ROOT, "node_modules", ".bin", "wrangler")],
    maxMs: WRANGLER_MAX_MS,
    ...options.wrangler,
    secrets,
    env,
  };
  const findings: Finding[] = [];
  let left: Left | undefined;
  let failure: unknown;
  try {
    const onLeft = (its: Left) => (left = its);
    const starting = isPlain ? serveTrial(wrangler, onLeft) : deployTrial(wrangler, name, onLeft);
    const trial = await orStopped(starting, stop);
    await measureAll({ ...options, account, policy, trial, secrets }, findings);
  } catch (error) {
    failure = error;
  }
  const kept = left === undefined ? undefined : await removed(left, account, say);
  if (failure !== undefined && !stop.aborted) {
    if (kept !== undefined) say(kept);
    throw failure;
  }
  const text = [
    linesOf(findings),
    ...(stop.aborted ? ["", "stopped early"] : []),
    ...(kept ? ["", kept] : []),
  ].join("\n");
  const isMeasured = findings.some(({ verdict }) => verdict === "measured");
  return { text, exitCode: kept !== undefined ? 1 : stop.aborted ? 130 : isMeasured ? 0 : 2 };
}

async function measureAll(
  {
    calls: limiter,
    account,
    lengths,
    say,
    policy,
    trial,
    stop,
    secrets,
  }: AccountOptions & {
    readonly account: Account | undefined;
    readonly policy: string;
    readonly trial: Trial;
    readonly secrets: readonly string[];
  },
  findings: Finding[],
): Promise<void> {
  const calls = new Calls(trial.url, trial.token, "");
  const measuring = { limiter, policy, trial, calls, account, lengths };
  for (const { name, documented, source, measure } of PARTS) {
    // A part that fails says so, and the others go on.
    const measured = measure(measuring).catch((error: unknown) => ({
      skipped: `it failed: ${String(error)}`,
    }));
    const outcome = await orStopped(measured, stop);
    const isSkipped = "skipped" in outcome;
    const says = isSkipped ? [`skipped: ${outcome.skipped}`] : outcome.map((line) => `measured: ${line}`);
    const lines = [
      ...says.map((line) => plain(line, [...secrets, trial.token], 600)),
      `documented: ${documented} (${source})`,
    ];
    const finding: Finding = { name, verdict: isSkipped ? "skipped" : "measured", says: lines };
    findings.push(finding);
    say(`${finding.verdict}: ${name}`);
  }
}

/** @throws Error when the run is stopped before that */
function orStopped<Value>(work: Promise<Value>, stop: AbortSignal): Promise<Value> {
  return new Promise((done, fail) => {
    const end = () => fail(new Error("stopped"));
    if (stop.aborted) end();
    stop.addEventListener("abort", end);
    void work.then(done, fail).finally(() => stop.removeEventListener("abort", end));
  });
}

/** Removes what was deployed, and returns what is left; `undefined`: nothing. */
async function removed(
  left: Left,
  account: Account | undefined,
  say: (line: string) => void,
): Promise<string | undefined> {
  for (let attempt = 1; ; attempt += 1) {
    const problem = await left.remove();
    if (left.script !== undefined && problem === undefined) say(`removed: ${left.script}`);
    if (problem === undefined || left.script === undefined) return problem;
    // wrangler also fails when there is nothing to delete.
    const listed = await account?.api.namespaces();
    if (
      listed !== undefined &&
      "value" in listed &&
      !listed.value.some(({ script }) => script.startsWith(left.script ?? ""))
    ) {
      say(`not there: ${left.script}`);
      return undefined;
    }
    if (attempt === REMOVALS)
      return (
        `NOT REMOVED: ${left.script} may still be on the account. Delete it: npx wrangler delete ${left.script} --force\n` +
        `(${problem})`
      );
    await pause(REMOVAL_PAUSE_MS);
  }
}

async function requireAdmin(calls: Calls): Promise<void> {
  const answered = await calls.make("GET", "/v1/token");
  const scopes = answered?.body["scopes"];
  if (answered?.status !== 200 || !Array.isArray(scopes))
    throw new Error(
      `${calls.url} does not describe TOKEN (${answered?.status ?? "no answer"}): it is not a limiter, or too old`,
    );
  if (!scopes.includes("admin") || !scopes.includes("limit"))
    throw new Error(
      `TOKEN has the scopes ${scopes.join(", ")}: --account needs limit and admin (npm run token -- --name verify --scope limit --scope admin)`,
    );
}

/** @throws Error that says what is missing, and how to get it */
async function accountOf({ env, worker, calls }: AccountOptions): Promise<Account> {
  const { CLOUDFLARE_ACCOUNT_ID: accountId = "", CLOUDFLARE_API_TOKEN: token = "" } = env;
  if (!/^[0-9a-f]{32}$/.test(accountId))
    throw new Error(
      `CLOUDFLARE_ACCOUNT_ID is ${accountId === "" ? "missing" : "not 32 hexadecimal digits"}: npx wrangler whoami prints it`,
    );
  if (!/^[\x21-\x7e]+$/.test(token))
    throw new Error(
      `CLOUDFLARE_API_TOKEN is ${token === "" ? "missing" : "not a token"}: make one at ${TOKENS_PAGE} with ` +
        "Workers Scripts: Edit and Account Analytics: Read",
    );
  const api = new CloudflareApi({ accountId, token, baseUrl: env["CLOUDFLARE_API_BASE_URL"] });
  const namespaces = await api.namespaces();
  if ("problem" in namespaces) throw new Error(namespaces.problem);
  const nowMs = Date.now();
  const used = await api.usage(nowMs - (nowMs % DAY_MS), nowMs);
  if ("problem" in used) throw new Error(used.problem);
  const script = worker ?? nameIn(calls.url) ?? readWranglerToml().bound.name ?? "";
  const limiters = namespaces.value
    .filter((each) => each.class === "LimiterObject")
    .map((each) => each.script);
  if (!limiters.includes(script))
    throw new Error(
      `the account has no limiter ${JSON.stringify(script)}: ` +
        (limiters.length === 0
          ? "it has none at all, so CLOUDFLARE_ACCOUNT_ID is another account's"
          : `--worker must be one of ${plain(limiters.join(", "), [])}`),
    );
  return { api, script, namespaces: namespaces.value };
}

/** The worker's name in an address of workers.dev. */
function nameIn(url: string): string | undefined {
  return /^([^.]+)\.[^.]+\.workers\.dev$/.exec(new URL(url).hostname)?.[1];
}
