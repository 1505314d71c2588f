/** Makes tokens. A token is random, is shown once, and is kept only as a hash. */
import { createHash, randomBytes } from "node:crypto";
import type { Policies } from "../core/policies/policy.ts";
import { meant } from "../core/violations.ts";
import { configurationProblem } from "../worker/auth/tokens.ts";

/** One entry of the secret API_TOKENS: docs/deploying.md has the meaning of its fields. */
export interface TokenEntry {
  readonly name: string;
  /** Of the complete token, in hexadecimal. */
  readonly sha256: string;
  readonly scopes: readonly string[];
  readonly policies?: readonly string[];
  readonly keyPrefix?: string;
  readonly maxCallsAtOnce?: number;
  readonly maxNewKeysPerSecond?: number;
}

/** A new token of 256 random bits, and its entry for API_TOKENS. */
export function makeToken(fields: Omit<TokenEntry, "sha256">): { token: string; entry: TokenEntry } {
  const token = `weir_${randomBytes(32).toString("base64url")}`;
  const { name, ...rest } = fields;
  return { token, entry: { name, sha256: sha256Of(token), ...rest } };
}

export function sha256Of(token: string): string {
  return createHash("sha256").update(token).digest("hex");
}

/**
 * @returns notes on entries with missing policies, which may be for policies to come @throws Error for a
 * secret with which the worker would answer every call with 503
 */
export function checkTokens(secret: string, policies: Policies): string[] {
  const problem = configurationProblem(secret);
  if (problem !== undefined) throw new Error(problem.detail);
  return (JSON.parse(secret) as TokenEntry[]).flatMap(({ name, policies: allowed = [] }) =>
    allowed
      .filter((each) => !policies.has(each))
      .map(
        (each) =>
          `API_TOKENS: the token ${JSON.stringify(name)} may use ${JSON.stringify(each)}, which is no policy here` +
          meant(each, policies.keys()),
      ),
  );
}
