/** Short lengths for `verify --account`, and how its report is read. */
import { QUICK } from "../../scripts/verify/account/parts.ts";

/** The limiter's policies. */
export const POLICIES = { api: { algorithm: "token-bucket", limit: 1_000, window: "1s" } };
/** So short that bounds of calls are reached. */
export const SHORT = {
  ...QUICK,
  loadMs: 200,
  callers: [1, 4],
  objects: 50,
  messageCallers: [1],
  restMs: 100,
  maxMessages: 200,
  waitMs: 200,
  hotSeconds: 1,
  overrides: 50,
  settleMs: 300,
  coldAfterMs: 100,
  maxCalls: 16,
  subrequests: 60,
  analyticsMs: 1_000,
};

/** The lines of a part. */
export function partIn(text: string, name: string): string {
  const lines = text.split("\n");
  const begin = lines.findIndex((line) => line.endsWith(` ${name}`));
  const length = lines.slice(begin + 1).findIndex((line) => !line.startsWith(" "));
  return lines.slice(begin, length < 0 ? undefined : begin + 1 + length).join("\n");
}
