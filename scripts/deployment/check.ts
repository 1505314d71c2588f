/** npm run deploy -- --check: all checks of a deployment that are possible before anything is uploaded. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import { unstable_readConfig as readConfig } from "wrangler";
import { requireNotices } from "../../core/policies/parse-notices.ts";
import {
  parseDeployment,
  parseLog,
  requireHome,
  requireKnownNames,
} from "../../core/policies/parse-policies.ts";
import type { Policies } from "../../core/policies/policy.ts";
import { propsProblems } from "../binding-props.ts";
import { A_QUEUE, requireInVars, withLines } from "../configuration.ts";
import { hasNoticeQueue, runWrangler, WRANGLER_TOML } from "../project.ts";
import { readWranglerFile } from "../wrangler-file.ts";
import { changes, type Deployed, type Line } from "./changes.ts";
import { objectLines, reachedLines } from "./objects.ts";

/** https://developers.cloudflare.com/workers/platform/limits/, November 2026. */
const MAX_VARIABLE_BYTES = 5_120;
const MAX_VARIABLES = { free: 64, paid: 128 };
const WRANGLER_MAX_MS = 60_000;
const MAX_BUNDLE_BYTES = { free: 3 * 1_048_576, paid: 10 * 1_048_576 };

interface Asked {
  readonly environment: string | undefined;
  readonly file: string;
  /** The address of the deployed limiter; absent: it is not called. */
  readonly against: string | undefined;
}
type Config = ReturnType<typeof readConfig>;

/** Prints the findings, and returns the exit code: 1 when something is bad. */
export async function checkDeployment(args: readonly string[]): Promise<number> {
  const asked = askedBy(args);
  const { environment: env, file } = asked;
  // wrangler names no line where the file cannot be read.
  readWranglerFile(file);
  const config = readConfig({ config: file, ...(env !== undefined && { env }) });
  const [policies, ofPolicies] = readPolicies(config, asked);
  const sections: [string, readonly Line[]][] = [
    ["policies", ofPolicies],
    ["variables", [...nameLines(config, asked), ...variableLines(config)]],
    ["objects", [...objectLines(config), ...(await reachedLines(asked.against, process.env["TOKEN"]))]],
    ["bindings", bindingLines(config, policies)],
    ["bundle", bundleLines(config, asked)],
    ["secrets", secretLines(asked, policies, config.vars["NOTICES"] !== undefined)],
    ["keys in use", policies === undefined ? [] : await changeLines(asked, policies)],
  ];
  console.log(
    `${config.name ?? "weir"}${env === undefined ? "" : `, environment ${env}`}: nothing is uploaded\n`,
  );
  for (const [section, lines] of sections)
    for (const { verdict, text } of lines) console.log(`${verdict.padEnd(8)} ${section}: ${text}`);
  const bad = sections.flatMap(([, lines]) => lines).filter(({ verdict }) => verdict === "BAD").length;
  console.log(bad === 0 ? "\nready to deploy" : `\nnot ready: ${bad} bad`);
  return bad === 0 ? 0 : 1;
}

function askedBy(args: readonly string[]): Asked {
  const { values } = parseArgs({
    args: [...args],
    options: {
      check: { type: "boolean" },
      env: { type: "string", short: "e" },
      config: { type: "string", short: "c" },
      against: { type: "string" },
    },
  });
  const { env, config = WRANGLER_TOML, against } = values;
  return { environment: env, file: config, against };
}

function readPolicies(config: Config, asked: Asked): [Policies | undefined, Line[]] {
  const { vars } = config;
  try {
    const { policies } = parseDeployment({ policies: vars["POLICIES"], regions: vars["REGIONS"] });
    const lines: Line[] = [{ verdict: "ok", text: `${policies.size}, all valid` }];
    return [policies, [...lines, ...noticeLines(config, asked, policies)]];
  } catch (error) {
    return [undefined, badLines(error, asked)];
  }
}

/** Where notices go, if that is said. */
function noticeLines(config: Config, asked: Asked, policies: Policies): Line[] {
  try {
    const target = requireNotices(noticesIn(config), false, policies);
    if (target === undefined) return [];
    return [{ verdict: "ok", text: `notices go to ${"queue" in target ? "a Queue" : target.webhook}` }];
  } catch (error) {
    return badLines(error, asked);
  }
}

/** The misspelt and bad variables, which keep the worker from starting. */
function nameLines({ vars }: Config, asked: Asked): Line[] {
  const checks = [
    () => requireInVars(asked.file, asked.environment),
    () => requireKnownNames(vars),
    () => parseLog(vars["LOG"]),
    () => requireHome(vars["HOME"]),
  ];
  return checks.flatMap((check) => {
    try {
      check();
      return [];
    } catch (error) {
      return badLines(error, asked);
    }
  });
}

/** What is wrong, each with its place in the file. The title of the error is that of a start. */
function badLines(error: unknown, { file, environment }: Asked): Line[] {
  const message = error instanceof Error ? error.message : String(error);
  const found = withLines(message.replace(/^bad configuration.*\n/, ""), file, environment);
  return found.split("\n").map((text) => ({ verdict: "BAD", text }));
}

function noticesIn({ vars, queues }: Config): unknown {
  return vars["NOTICES"] ?? (hasNoticeQueue(queues) ? A_QUEUE : undefined);
}

function variableLines({ vars }: Config): Line[] {
  const sizes = Object.entries(vars).map(([name, value]): Line => {
    const bytes = Buffer.byteLength(typeof value === "string" ? value : JSON.stringify(value));
    const text = `${name} has ${bytes} of ${MAX_VARIABLE_BYTES} bytes`;
    return { verdict: bytes <= MAX_VARIABLE_BYTES ? "ok" : "BAD", text };
  });
  const { free, paid } = MAX_VARIABLES;
  const count = Object.keys(vars).length;
  if (count > free)
    sizes.push({ verdict: "note", text: `${count}: the free plan has ${free}, the paid one ${paid}` });
  for (const name of ["JURISDICTIONS", "OBJECT_BOUNDS", "SOCKETS"])
    if (vars[name] !== undefined)
      sizes.push({ verdict: "BAD", text: `${name} is for plain workerd: take it away` });
  return sizes;
}

/** The bindings to the limiter in its own file. Those of other workers are in theirs. */
function bindingLines({ name, services }: Config, policies: Policies = new Map()): Line[] {
  const wrong = policies.size === 0 ? [] : propsProblems({ name, services }, policies);
  return wrong.map((text) => ({ verdict: "BAD", text }));
}

/** Bundles into a folder of its own, since another process may be serving the bundle. */
function bundleLines({ limits }: Config, { environment = "", file }: Asked): Line[] {
  const folder = mkdtempSync(join(tmpdir(), "weir-check-"));
  try {
    const args = ["deploy", "--dry-run", "--outdir", folder, "-c", file, "--env", environment];
    const bundled = runWrangler(args, WRANGLER_MAX_MS);
    if (bundled.status !== 0) return [{ verdict: "BAD", text: `${bundled.stdout}${bundled.stderr}`.trim() }];
    return sizeLines(gzipSync(readFileSync(join(folder, "index.js"))).length, limits);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function sizeLines(bytes: number, limits: unknown): Line[] {
  const { free, paid } = MAX_BUNDLE_BYTES;
  const size = `${Math.ceil(bytes / 1_024)} KiB compressed: the free plan takes ${free / 1_024}, the paid one ${paid / 1_024}`;
  const line: Line = { verdict: bytes <= free ? "ok" : bytes <= paid ? "note" : "BAD", text: size };
  if (limits === undefined) return [line];
  return [line, { verdict: "note", text: "limits are set: the free plan refuses a deployment with them" }];
}

/** The names of the secrets that are set; `undefined`: wrangler does not list them. */
function namesOfSecrets({ environment, file }: Asked): readonly string[] | undefined {
  const args = ["secret", "list", "--format", "json", "-c", file, "--env", environment ?? ""];
  const listed = runWrangler(args, WRANGLER_MAX_MS);
  try {
    const secrets = JSON.parse(listed.stdout) as readonly { readonly name: string }[];
    return listed.status === 0 ? secrets.map(({ name }) => name) : undefined;
  } catch {
    return undefined;
  }
}

function secretLines(asked: Asked, policies: Policies | undefined, hasWebhook: boolean): Line[] {
  const hasPool = [...(policies?.values() ?? [])].some(({ pool }) => pool !== undefined);
  const needed = [
    "API_TOKENS",
    ...(hasPool ? ["UPSTASH_REDIS_REST_URL", "UPSTASH_REDIS_REST_TOKEN"] : []),
    ...(hasWebhook ? ["NOTICES_SECRET"] : []),
  ];
  const there = namesOfSecrets(asked);
  if (there === undefined) {
    const text = `${needed.join(", ")}: whether they are set is not known (npx wrangler login; nothing is deployed yet?)`;
    return [{ verdict: "unknown", text }];
  }
  return needed.map((name): Line => {
    if (there.includes(name)) return { verdict: "ok", text: `${name} is set` };
    const isTokens = name === "API_TOKENS";
    const then = isTokens
      ? "until then every call is answered with 503"
      : "without it the worker does not start";
    const text = `${name} is missing: npx wrangler secret put ${name}; ${then}`;
    return { verdict: isTokens ? "note" : "BAD", text };
  });
}

async function changeLines({ against }: Asked, policies: Policies): Promise<Line[]> {
  const how = "--against https://... and a TOKEN in the environment with the scope limit, for every policy";
  const token = process.env["TOKEN"];
  if (against === undefined || token === undefined) {
    const verdict = against === undefined ? "unknown" : "BAD";
    return [{ verdict, text: `not compared with what is deployed: give ${how}` }];
  }
  try {
    const headers = { authorization: `Bearer ${token}` };
    // The bundle was built without a look at the network: a connection that was closed meanwhile would be used.
    await new Promise((seen) => setTimeout(seen, 50));
    const answered = await fetch(`${against.replace(/\/+$/, "")}/v1/policies`, {
      headers,
      signal: AbortSignal.timeout(10_000),
    });
    if (!answered.ok)
      return [{ verdict: "BAD", text: `not compared: ${against} answers ${answered.status}: give ${how}` }];
    const { policies: deployed } = (await answered.json()) as { policies: readonly Deployed[] };
    return changes(deployed, policies);
  } catch (error) {
    return [{ verdict: "BAD", text: `not compared: ${against} does not answer: ${String(error)}` }];
  }
}
