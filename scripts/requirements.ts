import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** The oldest Node that runs the command: wrangler's. `engines` of package.json says the same. */
export const MIN_NODE = "22.13";
/** The oldest wrangler that works: the first whose workerd has the compatibility date 2026-10-20. */
export const MIN_WRANGLER = "4.155.0";

/** Whether a version in the form of a package.json is at least `least`. */
export function isRecent(version: string, least = MIN_WRANGLER): boolean {
  const [given, wanted] = [version, least].map((each) => each.split(/[.-]/).slice(0, 3).map(Number));
  for (const [index, part] of (wanted ?? []).entries()) {
    const other = given?.[index] ?? 0;
    if (other !== part) return other > part;
  }
  return true;
}

/** The version of this package, whose manifest is above the scripts, or above the command. */
export function ownVersion(): string {
  const found = ["..", "../../.."]
    .map((up) => join(import.meta.dirname, up, "package.json"))
    .find(existsSync);
  if (found === undefined) throw new Error("the package has no package.json");
  return (JSON.parse(readFileSync(found, "utf8")) as { version: string }).version;
}
