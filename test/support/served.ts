/** Serves the built bundle on plain workerd, with a storage folder of its own. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BUNDLE } from "../../scripts/project.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS } from "./fixtures.ts";
import { inMilliseconds } from "./milliseconds.ts";

/** A folder for objects' storage; remove it with `removeState`. */
export function makeState(): string {
  return mkdtempSync(join(tmpdir(), "weir-state-"));
}

export function removeState(stateDir: string): void {
  rmSync(stateDir, { recursive: true, force: true });
}

interface Options {
  readonly main?: string;
  /** Whether that module has the classes of the catalog and the statistics too. */
  readonly hasDeploymentObjects?: boolean;
  readonly caller?: string;
  /** By name: the `props` of further bindings of the caller. */
  readonly callerProps?: Readonly<Record<string, object>>;
  readonly isolates?: number;
  /** The policies of all isolates but the first, which has the objects. */
  readonly callersPolicies?: object;
  /** The bundle of all isolates but the first, which has the objects. */
  readonly callersMain?: string;
  readonly log?: object;
  /** The path of a worker that gets the events of the first's traces. */
  readonly tail?: string;
  /** By binding: classes of that module, where it has not all. */
  readonly classes?: Readonly<Record<string, string>>;
  /** The host and port of a server that gets what is written to ANALYTICS. */
  readonly analytics?: string;
  /** The entries of API_TOKENS. */
  readonly tokens?: readonly object[];
  /** Where notices go, and the secret that signs them. */
  readonly notices?: { readonly target: object; readonly secret?: string };
  readonly onOutput?: (text: string) => void;
}

/** Adds a long deadline, for slow test machines, to policies without one. */
const patient = (policies: object): object =>
  Object.fromEntries(
    Object.entries(policies).map(([name, policy]: [string, object]) => [
      name,
      "removed" in policy ? policy : { deadlineMs: 20_000, ...policy },
    ]),
  );

/** Changes apply, and counts are sent, after 200 ms instead of 2, 5 and 10 s. */
export const BACKGROUND_MS = 200;

/** Serves the bundle with these policies and the tests' tokens. */
export function serveBundle(
  stateDir: string,
  policies: object,
  {
    main,
    hasDeploymentObjects,
    caller,
    callerProps,
    callersPolicies,
    callersMain,
    isolates = 1,
    log,
    tail,
    classes = {},
    analytics,
    tokens = TEST_TOKENS,
    notices,
    onOutput = () => undefined,
  }: Options = {},
): Promise<Serving> {
  return serve({
    stateDir,
    policies: inMilliseconds(patient(policies)),
    apiTokens: JSON.stringify(tokens),
    isolates,
    backgroundMs: BACKGROUND_MS,
    ...(main !== undefined && { main, modules: { "weir.js": BUNDLE } }),
    ...(hasDeploymentObjects !== undefined && { hasDeploymentObjects }),
    ...(caller !== undefined && { caller }),
    log,
    tail,
    classes,
    analytics,
    notices,
    ...(callerProps !== undefined && { callerProps }),
    ...(callersPolicies !== undefined && { callersPolicies: patient(callersPolicies) }),
    ...(callersMain !== undefined && { callersMain }),
    onOutput,
  });
}
