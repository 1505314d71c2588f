/** What a policy says of its pool, and of regions that go on without it. */
import { violation } from "../validation.ts";
import type { Rule } from "./policy.ts";

interface Given {
  readonly onFailure: string;
  readonly localShare: number | undefined;
  readonly pool: string | undefined;
  readonly rules: readonly Rule[];
}

/** What is wrong with these fields together; `undefined`: nothing. */
export function poolProblem({ onFailure, localShare, pool, rules }: Given): string | undefined {
  if (pool === undefined && localShare !== undefined)
    return violation(["localShare"], localShare, 'left out, or with pool = "redis"');
  if (pool === undefined && onFailure === "local")
    return violation(["onFailure"], onFailure, 'left out, or with pool = "redis"');
  if (localShare !== undefined && onFailure !== "local")
    return violation(["localShare"], localShare, 'left out, or with onFailure = "local"');
  const stray = rules.find(({ algorithm }) => algorithm.isPoolable !== true);
  if (pool === undefined || stray === undefined) return undefined;
  const { isPenal, name } = stray.algorithm;
  const what = stray.capacity === 0 ? "a limit of 0" : isPenal ? "blockFor" : `algorithm "${name}"`;
  return violation(["pool"], pool, `left out with ${what}`);
}
