/** Has the driver make calls over the service binding, in batches. */
import { buildSync } from "esbuild";
import { join } from "node:path";
import type { Serving } from "../../../scripts/workerd.ts";
import type { Asked, Told } from "./binding/driver.ts";
import { LONGEST } from "./http-fuzz.ts";

/** Bundles the driver into a file of this folder, and returns its path. */
export function bundledDriver(folder: string, name = "driver"): string {
  const outfile = join(folder, `${name}.js`);
  buildSync({
    entryPoints: [join(import.meta.dirname, "binding", `${name}.ts`)],
    outfile,
    bundle: true,
    format: "esm",
    target: "es2024",
    external: ["cloudflare:workers"],
    logLevel: "error",
  });
  return outfile;
}

export interface BindingFuzz {
  readonly serving: Serving;
  readonly seed: number;
  readonly calls: number;
  /** Whether the run has met every required outcome. */
  readonly isEnough: (outcomes: Outcomes) => boolean;
  readonly concurrency: number;
  /** Called beside each batch; throws when something is wrong. */
  readonly check?: (made: number) => Promise<void>;
}

/** The number of outcomes of each method. */
export type Outcomes = Map<string, Map<string, number>>;

/** Calls in one request, which then takes a second or so. */
const BATCH = 4_000;

/** @throws Error that names the seed and the call, at the first outcome that breaks a law */
export async function fuzzBinding(fuzz: BindingFuzz): Promise<Outcomes> {
  const { serving, seed, calls, isEnough, concurrency, check } = fuzz;
  const outcomes: Outcomes = new Map();
  const goesOn = (made: number) => made < LONGEST * calls && !isEnough(outcomes);
  const batch = Math.min(BATCH, calls);
  for (let from = 0; from < calls || goesOn(from); from += batch) {
    const asked: Asked = { seed, from, calls: batch, concurrency };
    const [told] = await Promise.all([drive(serving.callerUrl, asked), check?.(from)]);
    for (const [method, counts] of Object.entries(told.outcomes)) note(outcomes, method, counts);
    if (told.fault !== undefined) throw new Error(`SEED=${seed}: ${told.fault}`);
  }
  return outcomes;
}

async function drive(url: string, asked: Asked): Promise<Told> {
  const response = await fetch(url, { method: "POST", body: JSON.stringify(asked) });
  if (!response.ok) throw new Error(`SEED=${asked.seed}: the driver failed: ${await response.text()}`);
  return (await response.json()) as Told;
}

function note(outcomes: Outcomes, method: string, counts: Readonly<Record<string, number>>): void {
  const known = outcomes.get(method) ?? new Map<string, number>();
  outcomes.set(method, known);
  for (const [outcome, count] of Object.entries(counts))
    known.set(outcome, (known.get(outcome) ?? 0) + count);
}
