/** Makes a token, and prints it with its entry for the secret API_TOKENS. */
import { parseArgs } from "node:util";
import { makeToken } from "./tokens.ts";

const USAGE = `Usage: npm run token -- --name NAME --scope limit [--scope admin] [--policy NAME ...] [--key-prefix PREFIX]

  --name        who the token is for; errors name it
  --scope       limit (decide, refund, read) or admin (reset keys, read); may be given twice
  --policy      a policy the token may use; may be repeated; default: every one
  --key-prefix  what its keys must begin with; default: nothing`;

const SCOPES = ["limit", "admin"];

function readArguments() {
  const { values } = parseArgs({
    options: {
      name: { type: "string" },
      scope: { type: "string", multiple: true },
      policy: { type: "string", multiple: true },
      "key-prefix": { type: "string" },
    },
  });
  const { name, scope, policy } = values;
  const scopes = (scope ?? []).flatMap((each) => each.split(","));
  if (name === undefined || name === "") throw new Error("--name is missing");
  if (scopes.length === 0) throw new Error(`--scope is missing: must be ${SCOPES.join(" or ")}`);
  const wrong = scopes.find((each) => !SCOPES.includes(each));
  if (wrong !== undefined)
    throw new Error(`--scope is ${JSON.stringify(wrong)}: must be ${SCOPES.join(" or ")}`);
  const keyPrefix = values["key-prefix"];
  return { name, scopes, ...(policy && { policies: policy }), ...(keyPrefix !== undefined && { keyPrefix }) };
}

try {
  const { token, entry } = makeToken(readArguments());
  console.log(`The token, shown this once; give it to whoever calls as ${JSON.stringify(entry.name)}:

${token}

Its entry for API_TOKENS, which has only the hash; add it to the array:

${JSON.stringify(entry)}

Then set the whole array, which replaces the one before (tokens not in it stop working):

npx wrangler secret put API_TOKENS`);
} catch (error) {
  console.error(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`);
  process.exitCode = 1;
}
