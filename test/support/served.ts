/** Serves the built bundle on plain workerd, with a storage folder of its own. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BUNDLE } from "../../scripts/project.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS } from "./fixtures.ts";

/** A folder for objects' storage; remove it with `removeState`. */
export function makeState(): string {
  return mkdtempSync(join(tmpdir(), "weir-state-"));
}

export function removeState(stateDir: string): void {
  rmSync(stateDir, { recursive: true, force: true });
}

/** Serves the bundle with these policies and the tests' tokens. */
export function serveBundle(
  stateDir: string,
  policies: object,
  {
    main,
    caller,
    isolates = 1,
  }: { readonly main?: string; readonly caller?: string; readonly isolates?: number } = {},
): Promise<Serving> {
  return serve({
    stateDir,
    policies,
    apiTokens: JSON.stringify(TEST_TOKENS),
    isolates,
    ...(main !== undefined && { main, modules: { "weir.js": BUNDLE } }),
    ...(caller !== undefined && { caller }),
    onOutput: () => undefined,
  });
}
