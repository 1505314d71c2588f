/** The token to try things with on this machine, which .dev.vars keeps. */
import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import type { Policies } from "../core/policies/policy.ts";
import { DEV_VARS, readDevVars } from "./project.ts";
import { checkTokens, makeToken, sha256Of, type TokenEntry } from "./tokens.ts";

/** All that a client needs which holds units in its own process, and all that one person tries out. */
const SCOPES = ["limit", "refund", "reserve", "admin"];
/** Those of tokens that were made by earlier versions. */
const SCOPES_BEFORE = ["limit", "refund", "admin"];

/**
 * The token to try things with. It is made at the first start and kept in .dev.vars, in plain text, because it opens
 * only the limiter on this machine. `undefined`: .dev.vars has API_TOKENS of its own, without a LOCAL_TOKEN in it.
 *
 * @throws Error when API_TOKENS cannot be used
 */
export function localToken(policies: Policies): string | undefined {
  const { API_TOKENS, LOCAL_TOKEN } = readDevVars();
  if (API_TOKENS === undefined) return madeToken();
  for (const note of checkTokens(API_TOKENS, policies)) console.warn(note);
  if (LOCAL_TOKEN === undefined) return undefined;
  const sha256 = sha256Of(LOCAL_TOKEN);
  widen(API_TOKENS, { name: "local", sha256, scopes: SCOPES_BEFORE });
  return (JSON.parse(API_TOKENS) as TokenEntry[]).some((entry) => entry.sha256 === sha256)
    ? LOCAL_TOKEN
    : undefined;
}

function madeToken(): string {
  const { token, entry } = makeToken({ name: "local", scopes: SCOPES });
  const isOpen = existsSync(DEV_VARS) && !readFileSync(DEV_VARS, "utf8").endsWith("\n");
  appendFileSync(
    DEV_VARS,
    `${isOpen ? "\n" : ""}# Made by npm start, for this machine only.\nLOCAL_TOKEN=${token}\nAPI_TOKENS='${JSON.stringify([entry])}'\n`,
    { mode: 0o600 },
  );
  return token;
}

/** Gives a token that `npm start` made, and nobody has changed, the scopes that it makes now. */
function widen(given: string, before: TokenEntry): void {
  const was = JSON.stringify([before]);
  if (given !== was) return;
  const text = readFileSync(DEV_VARS, "utf8");
  writeFileSync(
    DEV_VARS,
    text.replace(was, () => JSON.stringify([{ ...before, scopes: SCOPES }])),
  );
}
