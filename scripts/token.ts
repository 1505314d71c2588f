/** Makes a token, and prints it with its entry for the secret API_TOKENS. */
import { DEFAULT_BOUNDS, MAX_BOUNDS } from "../core/policies/policy.ts";
import { meant } from "../core/violations.ts";
import { commandOf, readFlags } from "./call.ts";
import { readConfiguration } from "./configuration.ts";
import { WRANGLER_TOML } from "./project.ts";
import { makeToken } from "./tokens.ts";

const COMMAND = commandOf("token");
const USAGE = `Usage: ${COMMAND} --name NAME --scope limit [--scope ...] [--policy NAME ...] [--key-prefix PREFIX]
         [--env NAME] [--max-calls-at-once N] [--max-new-keys-per-second N]

  --name        who the token is for; errors name it
  --scope       limit (decide, refund own charges, read), refund (also what others took), force (take what is not there),
                reserve (hold units in its own process, as weir-limiter/client does), metrics (read /metrics)
                or admin (reset and list keys, set what they have used, force, read); may be repeated
  --policy      a policy the token may use; may be repeated; default: every one
  --env         the environment of wrangler.toml whose policies they are
  --key-prefix  what its keys must begin with; default: nothing
  --max-calls-at-once        calls under way to one object, in each isolate, 1 to ${MAX_BOUNDS.maxCallsAtOnce};
                             default: ${DEFAULT_BOUNDS.maxCallsAtOnce}
  --max-new-keys-per-second  new keys a second, in each isolate, 1 to ${MAX_BOUNDS.maxNewKeysPerSecond};
                             default: ${DEFAULT_BOUNDS.maxNewKeysPerSecond}`;

const SCOPES = ["limit", "refund", "force", "reserve", "metrics", "admin"];

/** @returns absent when it was asked how the command is called */
function readArguments() {
  const { values } = readFlags({
    options: {
      name: { type: "string" },
      scope: { type: "string", multiple: true },
      policy: { type: "string", multiple: true },
      env: { type: "string" },
      "key-prefix": { type: "string" },
      "max-calls-at-once": { type: "string" },
      "max-new-keys-per-second": { type: "string" },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) return undefined;
  const { name, scope, policy, env } = values;
  const scopes = (scope ?? []).flatMap((each) => each.split(","));
  if (name === undefined || name === "") throw new Error("--name is missing");
  if (scopes.length === 0) throw new Error(`--scope is missing: must be one of ${SCOPES.join(", ")}`);
  const wrong = scopes.find((each) => !SCOPES.includes(each));
  if (wrong !== undefined)
    throw new Error(
      `--scope is ${JSON.stringify(wrong)}: must be one of ${SCOPES.join(", ")}${meant(wrong, SCOPES)}`,
    );
  if (policy !== undefined) requirePolicies(policy, env);
  const keyPrefix = values["key-prefix"];
  const maxCallsAtOnce = readBound("max-calls-at-once", values, MAX_BOUNDS.maxCallsAtOnce);
  const maxNewKeysPerSecond = readBound("max-new-keys-per-second", values, MAX_BOUNDS.maxNewKeysPerSecond);
  return {
    name,
    scopes,
    ...(policy && { policies: policy }),
    ...(keyPrefix !== undefined && { keyPrefix }),
    ...(maxCallsAtOnce !== undefined && { maxCallsAtOnce }),
    ...(maxNewKeysPerSecond !== undefined && { maxNewKeysPerSecond }),
  };
}

function requirePolicies(names: readonly string[], environment: string | undefined): void {
  const { policies } = readConfiguration({}, environment, WRANGLER_TOML, { runsOn: "nowhere" });
  const known = [...policies.keys()];
  for (const name of names) {
    const listed = known.map((each) => JSON.stringify(each)).join(", ");
    if (!known.includes(name))
      throw new Error(`--policy is ${JSON.stringify(name)}: must be one of ${listed}${meant(name, known)}`);
  }
}

function readBound(
  option: string,
  values: Readonly<Record<string, unknown>>,
  max: number,
): number | undefined {
  const given = values[option];
  if (given === undefined) return undefined;
  const bound = typeof given === "string" && /^\d{1,9}$/.test(given) ? Number(given) : 0;
  if (bound < 1 || bound > max)
    throw new Error(`--${option} is ${JSON.stringify(given)}: must be an integer from 1 to ${max}`);
  return bound;
}

try {
  const fields = readArguments();
  if (fields === undefined) console.log(USAGE);
  else printToken(makeToken(fields));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`);
  process.exitCode = 1;
}

function printToken({ token, entry }: ReturnType<typeof makeToken>): void {
  console.log(`The token, shown only once, for the caller ${JSON.stringify(entry.name)}:

${token}

Its entry for API_TOKENS, which has only the hash; add it to the array:

${JSON.stringify(entry)}

Then set the whole array, which replaces the one before (tokens not in it stop working):

npx wrangler secret put API_TOKENS`);
}
