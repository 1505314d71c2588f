/** The configuration of wrangler.toml, checked before anything is started or uploaded. */
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { type NoticeQueue, parseNotices, requireNotices } from "../core/policies/parse-notices.ts";
import {
  parseDeployment,
  parseLog,
  requireHome,
  requireKnownNames,
} from "../core/policies/parse-policies.ts";
import type { Policies } from "../core/policies/policy.ts";
import { didYouMean, oneOfNames, violation } from "../core/violations.ts";
import { propsProblems } from "./binding-props.ts";
import { readWranglerToml, WRANGLER_TOML } from "./project.ts";
import { lineOf } from "./toml-lines.ts";
import { readWranglerFile, type WranglerFile } from "./wrangler-file.ts";

/** Replaces the tables of wrangler.toml, as JSON text. */
interface InPlace {
  readonly POLICIES?: string | undefined;
  readonly REGIONS?: string | undefined;
  readonly NOTICES?: string | undefined;
}

/**
 * Where the limiter is to run. Plain workerd has no Queues, and only the machine's owner may have a webhook there.
 * `nowhere`: only the policies are read, without wrangler, and neither bindings nor where notices go are checked.
 */
type Where =
  | { readonly runsOn: "nowhere" }
  | { readonly runsOn: "cloudflare" }
  | { readonly runsOn: "wrangler" | "workerd"; readonly secret: string | undefined };

/** Policies and regions as written, and the parsed policies. */
interface Configuration {
  readonly given: { readonly policies: unknown; readonly regions: unknown; readonly notices: unknown };
  readonly policies: Policies;
}

/**
 * Reads and checks policies and regions. @param environment the environment of wrangler (`--env`)
 * @throws Error that names file and line, every bad field and value, and what is allowed
 */
export function readConfiguration(
  { POLICIES, REGIONS, NOTICES }: InPlace = {},
  environment?: string,
  file = WRANGLER_TOML,
  where: Where = { runsOn: "cloudflare" },
): Configuration {
  const raw = readWranglerFile(file);
  requireInVars(file, environment, raw);
  const toml =
    where.runsOn === "nowhere" ? plainSettings(raw, environment) : readWranglerToml(environment, file);
  const given = {
    policies: POLICIES ?? toml.policies,
    regions: REGIONS ?? toml.regions,
    notices: NOTICES ?? toml.notices,
  };
  try {
    requireKnownNames(toml.vars);
    parseLog(toml.log);
    requireHome(toml.home);
    const { policies } = parseDeployment(given);
    const hasQueue = "bound" in toml && toml.hasNoticeQueue && where.runsOn !== "workerd";
    const target = given.notices ?? (hasQueue ? A_QUEUE : undefined);
    if (where.runsOn === "cloudflare") requireNotices(target, false, policies);
    else if (where.runsOn !== "nowhere")
      parseNotices({ NOTICES: target, NOTICES_SECRET: where.secret }, true, policies);
    // Replaced policies need not be those that the file's bindings name.
    const wrong = POLICIES === undefined && "bound" in toml ? propsProblems(toml.bound, policies) : [];
    if (wrong.length > 0) throw new Error(wrong.map((each) => `${basename(file)}: ${each}`).join("\n"));
    return { given, policies };
  } catch (error) {
    if (!(error instanceof Error) || POLICIES !== undefined) throw error;
    throw new Error(withLines(error.message, file, environment), { cause: error });
  }
}

const TABLES = {
  POLICIES: "POLICIES",
  POLICY: "POLICIES",
  REGIONS: "REGIONS",
  NOTICES: "NOTICES",
  LOG: "LOG",
};

/** wrangler ignores a table that it does not know. @throws Error that names those that are meant to be in `vars` */
export function requireInVars(
  file: string,
  environment: string | undefined,
  raw: WranglerFile = readWranglerFile(file),
): void {
  const own = environment === undefined ? undefined : raw.env?.[environment];
  const text = file.endsWith(".toml") ? readFileSync(file, "utf8") : "";
  const places = [[[], raw] as const, ...(own ? [[["env", environment ?? ""], own] as const] : [])];
  const found = places.flatMap(([above, table]) =>
    Object.entries(TABLES).flatMap(([name, meant]) => {
      if (!(name in table)) return [];
      const line = lineOf(text, [...above, name]);
      const place = line === undefined ? basename(file) : `${basename(file)}:${line}`;
      const hint = didYouMean([...above, "vars", meant].join("."));
      return `${place}: ${[...above, name].join(".")} is not a table that is read${hint}`;
    }),
  );
  if (found.length > 0) throw new Error(found.join("\n"));
}

/** In place of the binding, which only the worker has. */
export const A_QUEUE: NoticeQueue = { send: () => Promise.resolve() };

/** The variables of the top, or of an environment. @throws Error that names the environments there are */
function plainSettings({ vars: ofTop, env = {} }: WranglerFile, environment: string | undefined) {
  const named = Object.keys(env);
  if (environment !== undefined && !Object.hasOwn(env, environment))
    throw new Error(violation(["--env"], environment, oneOfNames(environment, named)));
  const vars = (environment === undefined ? ofTop : env[environment]?.vars) ?? {};
  const { POLICIES: policies, REGIONS: regions, NOTICES: notices, LOG: log, HOME: home } = vars;
  return { policies, regions, notices, log, home, vars };
}

const NAMED = /^(?<kind>policy|region) (?<name>"(?:[^"\\]|\\.)*"): (?<field>[^\s:]*)/;

/** Each line of an error with the file and line that it is about, where the file is TOML. */
export function withLines(message: string, file: string, environment: string | undefined): string {
  if (!file.endsWith(".toml")) return message;
  const above = environment === undefined ? ["vars"] : ["env", environment, "vars"];
  const text = readFileSync(file, "utf8");
  const place = (path: readonly string[]) => {
    const line = lineOf(text, [...above, ...path]);
    return line === undefined ? `${basename(file)}: ` : `${basename(file)}:${line}: `;
  };
  const lines = message.split("\n").map((line) => {
    const { kind, name, field = "" } = NAMED.exec(line)?.groups ?? {};
    if (kind !== undefined && name !== undefined) {
      const table = kind === "policy" ? "POLICIES" : "REGIONS";
      return place([table, JSON.parse(name) as string, ...field.split(".")]) + line;
    }
    const logged = /^LOG: (\w+) is/.exec(line)?.[1];
    if (logged !== undefined) return place(["LOG", logged]) + line;
    const variable = /^(HOME|NOTICES|\S+(?= is not a variable that is read))(?:\.webhook)? /.exec(line)?.[1];
    return variable === undefined ? line : place([variable]) + line;
  });
  return lines.join("\n");
}
