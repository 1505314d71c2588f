/** `weir types`: writes the types of the policies in wrangler.toml, so that a misspelt name does not compile. */
import { writeFileSync } from "node:fs";
import { relative, resolve } from "node:path";
import { limitedRules } from "../core/policies/plans.ts";
import type { Policies, Policy, Rule } from "../core/policies/policy.ts";
import { calledIn, readFlags, requireNotTaken, runCommand } from "./call.ts";
import { readConfiguration } from "./configuration.ts";
import { ROOT } from "./project-folder.ts";
import { findWranglerFile } from "./wrangler-file.ts";

const USAGE = `Usage: npx weir types [--config wrangler.toml] [--env NAME] [--out weir-policies.d.ts]

  --config  the limiter's wrangler.toml or wrangler.jsonc; in the project of an application, that of its limiter
  --env     the environment of wrangler
  --out     the file that is written; tsconfig.json must include it`;

function main(): void {
  const { values } = readFlags({
    options: {
      config: { type: "string", short: "c" },
      env: { type: "string", short: "e" },
      out: { type: "string", default: "weir-policies.d.ts" },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) return console.log(USAGE);
  requireNotTaken(["config", "env", "out"], "npx weir types");
  const from = values.config === undefined ? findWranglerFile(ROOT) : resolve(calledIn(), values.config);
  const { policies } = readConfiguration({}, values.env, from, { runsOn: "nowhere" });
  const file = resolve(calledIn(), values.out);
  writeFileSync(file, policyTypes(policies));
  console.log(`${relative(calledIn(), file)}: ${policies.size} policies`);
}

/** The augmentation for these policies. */
function policyTypes(policies: Policies): string {
  const lines = [...policies].map(([name, policy]) => `    ${JSON.stringify(name)}: ${typeOf(policy)};`);
  return `// Written by \`weir types\`. Run it again when the policies change.
import "weir-limiter";

declare module "weir-limiter" {
  interface Policies {
${lines.join("\n")}
  }
}
`;
}

function typeOf({ rules, plans, priorities, keyKind, isFair, lease }: Policy): string {
  // The plan "" is the policy itself.
  const named = [...(plans?.keys() ?? [])].filter((plan) => plan !== "");
  const isLimited = plans?.get("")?.limitInCall !== undefined;
  const fields = [
    ["unit", unitsOf(rules)],
    ...(isLimited ? [["limits", unitsOf(limitedRules(rules))]] : []),
    ...(named.length > 0 ? [["plan", textsOf(named)]] : []),
    ["priority", textsOf(priorities.names)],
    ["keyKind", textsOf([keyKind])],
    ...(isFair === true ? [["fair", "true"]] : []),
    ...(lease === undefined ? [] : [["leases", "true"]]),
  ];
  return `{ ${fields.map(([field, type]) => `${field}: ${type}`).join("; ")} }`;
}

function unitsOf(rules: readonly Rule[]): string {
  return textsOf(rules.map(({ unit }) => unit));
}

function textsOf(texts: readonly string[]): string {
  return [...new Set(texts)].map((text) => JSON.stringify(text)).join(" | ");
}

await runCommand(main);
