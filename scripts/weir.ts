/** `weir`: the command of the package. It runs this project's scripts in the caller's project. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { clip, meant } from "../core/violations.ts";
import { endWithNpm } from "./end-with-npm.mjs";
import { isRecent, MIN_NODE, MIN_WRANGLER, ownVersion } from "./requirements.ts";

const COMMANDS: Readonly<Record<string, () => Promise<unknown>>> = {
  init: () => import("./init.ts"),
  start: () => import("./start.ts"),
  serve: () => import("./serve.ts"),
  token: () => import("./token.ts"),
  deploy: () => import("./deploy.ts"),
  verify: () => import("./verify.ts"),
  policies: () => import("./policies.ts"),
  types: () => import("./policy-types.ts"),
};

const USAGE = `Usage: weir COMMAND

  init    writes a project with a limiter of its own into this folder; --on-failure open|closed says what
          an answer is without a decision
  start   runs it on this machine, with wrangler, and prints a curl line that works
  serve   runs it with plain workerd, to host it without Cloudflare
  token   makes a token: weir token --name NAME --scope limit
  deploy  deploys it to Cloudflare; arguments are passed to wrangler
  verify  verifies a deployment from outside: TOKEN=weir_... weir verify URL
  policies  keeps what changes at run time in a file: TOKEN=weir_... weir policies pull|diff|push URL
  types   writes the types of the policies in wrangler.toml: a misspelt policy does not compile

  weir COMMAND --help says more, and weir --version which one this is`;

const REPLACED = "  POLICIES, REGIONS, NOTICES  JSON that replaces what wrangler.toml has";
/** Of commands that do not say it themselves. */
const HELP: Readonly<Record<string, string>> = {
  init: `Usage: npx weir init [--on-failure open|closed]

  Writes a project with a limiter of its own into this folder. No file is overwritten.

  --on-failure  what an answer is without a decision; default: closed`,
  start: `Usage: npx weir start

  Runs the limiter on this machine with wrangler, until Ctrl+C. It has no flags, and reads from the environment:

  PORT                        default: 8787
${REPLACED}`,
  serve: `Usage: npx weir serve

  Runs the limiter with plain workerd, until SIGTERM. It has no flags, and reads from the environment:

  HOST, PORT                  default: 127.0.0.1, 8787
  STATE_DIR                   the folder of its storage; default: .weir in this folder
  API_TOKENS                  the tokens' entries; default: those of .dev.vars
${REPLACED}`,
  deploy: `Usage: npx weir deploy [--check] [--env NAME] [--config FILE] [...]

  Checks the policies, and deploys the limiter with wrangler, which gets all arguments.

  --check   makes all checks that are possible before an upload, and deploys nothing
  --env     the environment of wrangler.toml
  --config  default: wrangler.toml`,
};

/** The missing part of this project for a command, if any. */
function missing(project: string, command: string): string | undefined {
  const { node } = process.versions;
  if (!isRecent(node, `${MIN_NODE}.0`))
    return `Node ${node} is too old: weir and wrangler need ${MIN_NODE} or newer (npm install node@24 puts one into this project)`;
  // They write a project, read its policies, or call a limiter that runs elsewhere.
  if (["init", "types", "verify", "policies"].includes(command)) return undefined;
  const install = `npm install wrangler@^${MIN_WRANGLER}`;
  const file = join(project, "node_modules", "wrangler", "package.json");
  if (!existsSync(file)) return `wrangler is not installed in ${project}: ${install}`;
  const { version } = JSON.parse(readFileSync(file, "utf8")) as { version: string };
  return isRecent(version)
    ? undefined
    : `wrangler ${version} is too old for weir, which needs ${MIN_WRANGLER}: ${install}`;
}

const project = process.cwd();
process.env["WEIR_PROJECT"] = project;
process.env["WEIR_CALLED_IN"] = process.env["INIT_CWD"] ?? project;
const [name = ""] = process.argv.splice(2, 1);
const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
const [flag = ""] = process.argv.slice(2);
const isHelp = flag === "--help" || flag === "-h";
const help = isHelp && command !== undefined ? HELP[name] : undefined;
const wrong = command === undefined || isHelp ? undefined : missing(project, name);
if (help !== undefined) console.log(help);
else if (name === "--version" || name === "-v") console.log(ownVersion());
else if (command === undefined || wrong !== undefined) {
  const isAsked = ["--help", "-h", "help"].includes(name);
  const isWord = command === undefined && !isAsked && name !== "";
  const unknown = isWord ? `${clip(name)} is not a command${meant(name, Object.keys(COMMANDS))}\n\n` : "";
  console[isAsked ? "log" : "error"](wrong ?? unknown + USAGE);
  process.exitCode = isAsked ? 0 : 1;
} else {
  endWithNpm();
  await command();
}
