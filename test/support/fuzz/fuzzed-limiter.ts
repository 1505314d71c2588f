/** A limiter that is served to be fuzzed, and the checks besides its answers. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { vi } from "vitest";
import type { Serving } from "../../../scripts/workerd.ts";
import { HttpClient } from "../http-client.ts";
import { makeState, removeState, serveBundle } from "../served.ts";
import { bundledDriver, fuzzBinding, type Outcomes } from "./binding-fuzz.ts";
import { Canary, CANARY_POLICIES } from "./canary.ts";
import { fuzzHttp, type Answered } from "./http-fuzz.ts";
import { Operations, type OpenApi, type Operation } from "./openapi-operations.ts";
import { Watch } from "./served-watch.ts";
import { FUZZED_POLICIES, KEYS } from "./valid-calls.ts";

export interface Fuzzing<Met> {
  readonly seed: number;
  /** The number of requests or calls. */
  readonly count: number;
  /** Whether everything required was met: otherwise the run continues, up to `LONGEST` times its length. */
  readonly isEnough: (met: Met, operations: readonly Operation[]) => boolean;
  /** The number of simultaneous ones. */
  readonly concurrency: number;
  /** The text of a module to serve in place of the bundle, which it imports as weir.js. */
  readonly main?: string;
}

const CANARY_EVERY = 500;

/** Fuzzes HTTP. @throws Error that names the fault, the seed and the request */
export function fuzzedOverHttp({
  seed,
  count,
  isEnough,
  concurrency,
  main,
}: Fuzzing<Answered>): Promise<{ readonly answered: Answered; readonly operations: readonly Operation[] }> {
  return served(seed, main, undefined, async ({ serving, operations, check }) => {
    const every = { requests: CANARY_EVERY, check };
    const run = { serving, operations, seed, requests: count, connections: concurrency, every };
    const met = (answered: Answered) => isEnough(answered, operations.all);
    return { answered: await fuzzHttp({ ...run, isEnough: met }), operations: operations.all };
  });
}

/** Fuzzes the service binding. @throws Error that names the fault, the seed and the call */
export async function fuzzedOverBinding({
  seed,
  count,
  isEnough,
  concurrency,
  main,
}: Fuzzing<Outcomes>): Promise<Outcomes> {
  return served(seed, main, bundledDriver, ({ serving, operations, check }) => {
    const met = (outcomes: Outcomes) => isEnough(outcomes, operations.all);
    return fuzzBinding({ serving, seed, calls: count, isEnough: met, concurrency, check });
  });
}

interface Served {
  readonly serving: Serving;
  readonly operations: Operations;
  /** Checks the canary, the process's memory and its log; throws when something is wrong. */
  readonly check: () => Promise<void>;
}

/** The runtime reports unhandled rejections only on request. */
const TELLS_REJECTIONS = `
addEventListener("unhandledrejection", ({ reason }) => console.error("nobody awaits:", reason));
`;
const BUNDLE_ITSELF = `
export * from "weir.js";
export { default } from "weir.js";
`;

async function served<Result>(
  seed: number,
  text: string = BUNDLE_ITSELF,
  makeCaller: ((folder: string) => string) | undefined,
  fuzz: (served: Served) => Promise<Result>,
): Promise<Result> {
  const state = makeState();
  const watch = new Watch();
  const main = join(state, "main.js");
  writeFileSync(main, `${TELLS_REJECTIONS}${text}`);
  const caller = makeCaller?.(state);
  const serving = await serveBundle(
    state,
    { ...FUZZED_POLICIES, ...CANARY_POLICIES },
    { main, ...(caller !== undefined && { caller }), onOutput: watch.hear },
  );
  watch.start(serving);
  const client = new HttpClient(serving.url, 1);
  const canary = new Canary(client);
  try {
    const document = (await (await fetch(`${serving.url}/openapi.json`)).json()) as OpenApi;
    const check = async () => {
      const wrong = await canary.check();
      watch.weigh();
      const fault = wrong ?? watch.fault();
      if (fault !== undefined) throw new Error(fault);
    };
    const result = await fuzz({ serving, operations: new Operations(document), check });
    await check().catch((error: unknown) => {
      throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
    });
    await leasesEnded(client);
    console.log(`memory: ${JSON.stringify(watch.weighed())}`);
    return result;
  } finally {
    client.close();
    await serving.stop("SIGKILL");
    removeState(state);
  }
}

/** Waits until no lease is left: none here lasts long. */
async function leasesEnded(client: HttpClient): Promise<void> {
  for (const policy of ["export", "shadow-export", "mixed"])
    for (let key = 0; key < KEYS; key += 1)
      await vi.waitFor(
        async () => {
          const { body } = await client.peek(policy, `k${key}`);
          if (body["leases"] !== 0 || body["queueLength"] !== 0)
            throw new Error(`a lease or a waiter is left of nobody: ${JSON.stringify(body)}`);
        },
        { timeout: 60_000, interval: 50 },
      );
}
