import { cloudflareTest } from "@cloudflare/vitest-plugin";
import { subscribe } from "node:diagnostics_channel";
import type { ClientRequest } from "node:http";
import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";
import { TEST_POLICIES, TEST_TOKENS } from "./test/support/fixtures.ts";

/** What tests read of the environment; workerd has none of its own. */
const env = Object.fromEntries(
  ["SEED", "NEW_SEED", "WEIR_DEEP"].flatMap((name) =>
    process.env[name] === undefined ? [] : [[name, process.env[name]]],
  ),
);
const setupFiles = ["test/support/seed.ts"];
const isDeep = process.env["WEIR_DEEP"] !== undefined;
/** On two cores vitest would use one of them. Quick tests wait more than those at full length, so more of them run. */
const maxWorkers = Math.ceil((isDeep ? 1 : 1.5) * availableParallelism());

/** Node imports modules itself: Vite's transforms and getters for imports are a tenth of their processor time. */
const native = { experimental: { viteModuleRunner: false, nodeLoader: false } };
/** No test is about how long it takes: what it ends is only one that hangs. */
const testTimeout = 600_000;
const core = { setupFiles, maxWorkers, testTimeout };
/**
 * They need a process of their own: simulations are up to seven times as slow where other tests have run before, as what
 * those froze or called with other shapes stays slow; and one test measures memory.
 */
const OWN_PROCESS = ["test/simulation/**/*.test.ts", "test/client/reservation-cache.test.ts"];

/**
 * vitest's process and those of workerd tell each other modules and results over a WebSocket. They would compress all of
 * it, which is a tenth of their processor time.
 */
subscribe("http.client.request.created", (message) =>
  (message as { readonly request: ClientRequest }).request.removeHeader("sec-websocket-extensions"),
);

const insideWorkerd = cloudflareTest({
  wrangler: { configPath: "./wrangler.toml" },
  miniflare: {
    bindings: {
      JURISDICTIONS: "ignored",
      POLICIES: TEST_POLICIES,
      API_TOKENS: JSON.stringify(TEST_TOKENS),
    },
  },
});
const workerd = {
  setupFiles,
  maxWorkers,
  env,
  testTimeout,
  expect: { poll: { timeout: 60_000 } },
};

const system = {
  ...native,
  globalSetup: ["test/support/prepare-system.ts"],
  testTimeout,
  hookTimeout: testTimeout,
};
/**
 * Black-box tests wait more than they compute, so more run than there are cores, beside simulations: one file in three
 * of a run. At full length they compute more.
 */
const waitingWorkers = Math.ceil((isDeep ? 2.5 : 3.5) * availableParallelism());
/** They read or change what all files of a deployment have in common, its classes too, or expect empty storage. */
const OWN_STORAGE = [
  "test/client/retry.workerd.test.ts",
  "test/durable-objects/limiter-object.workerd.test.ts",
  "test/durable-objects/keys/capacity-checks.workerd.test.ts",
  "test/durable-objects/keys/left-behind.workerd.test.ts",
  "test/durable-objects/storage/rows-written.workerd.test.ts",
  "test/durable-objects/operations/wait-places.workerd.test.ts",
  "test/worker/calls/keys.workerd.test.ts",
  "test/worker/delays.workerd.test.ts",
  "test/worker/http/stats.workerd.test.ts",
  "test/worker/calls/catalog/*.workerd.test.ts",
];
/** The longest black-box tests and simulations: begun last, one of them would be waited for alone. */
const LONGEST = [
  "left-behind",
  "groups",
  "regions",
  "scale",
  "slots",
  "reservation-cache",
  "pools",
  "clients",
  "adaptive",
  "schedules",
  "verify",
  "account-here",
  "pool-leases",
  "account",
  "waiting",
  "catalog",
  "notices",
  "contract",
  "campaign",
  "attacker",
  "unsteady-stats",
  "unsteady-catalog",
  "fuzz",
  "pool-outcomes",
  "pool-faults",
];

/**
 * Begins with the longest, and runs simulations, which only compute, beside black-box tests, which mostly wait. At full
 * length they are spread. Quick ones come when there is no further black-box file: one between two of these ends their
 * process, and the next one takes a second and a half until it has imported wrangler.
 */
class Spread extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const places = new Map<TestSpecification, number>();
    const sorted = await BaseSequencer.prototype.sort.call(this, files);
    const isLong = ({ moduleId }: TestSpecification) =>
      LONGEST.some((name) => moduleId.endsWith(`/${name}.test.ts`));
    for (const [name, ofProject] of Map.groupBy(sorted, ({ project }) => project.name)) {
      const after = name === "simulation" && !isDeep ? 1 : 0;
      for (const [index, file] of ofProject
        .toSorted((a, b) => Number(isLong(b)) - Number(isLong(a)))
        .entries())
        places.set(file, after + (index + 0.5) / ofProject.length);
    }
    const placeOf = (file: TestSpecification) => places.get(file) ?? 0;
    const isSpread = ({ project }: TestSpecification) => ["simulation", "system"].includes(project.name);
    return [
      ...sorted.filter((file) => !isSpread(file)),
      ...sorted.filter(isSpread).toSorted((a, b) => placeOf(a) - placeOf(b)),
    ];
  }
}

const systemFiles = (...names: readonly string[]) => names.map((name) => `test/system/${name}.test.ts`);
/** They say how much must be admitted at least, of what a machine without another test could ask for. */
const SATURATING = systemFiles("pools", "client-processes");
/** They run dozens of isolates or hundreds of clients, and wait as much as they compute. */
const STORMS = systemFiles("isolates", "lease-storm", "exactness", "changed-kinds");

export default defineConfig({
  test: {
    globalSetup: ["test/support/prepare.ts"],
    sequence: { sequencer: Spread },
    projects: [
      {
        // The pure core and the project's structure: plain Node, thousands of cases a second.
        test: {
          ...native,
          ...core,
          name: "core",
          execArgv: ["--import", `${import.meta.dirname}/test/support/own-package.ts`],
          // Most of these files take less time than their imports: one process runs many.
          isolate: false,
          include: ["test/**/*.test.ts", "examples/**/*.test.ts"],
          exclude: ["test/**/*.workerd.test.ts", "test/system/**", "test/release/**", ...OWN_PROCESS],
        },
      },
      {
        test: {
          ...native,
          setupFiles: [...setupFiles, "test/support/behind-others.ts"],
          testTimeout,
          name: "simulation",
          maxWorkers: waitingWorkers,
          sequence: { groupOrder: 1 },
          include: OWN_PROCESS,
          // Hundreds of holders make garbage that outlives a small young generation: a third of their time. No core is idle.
          execArgv: ["--min-semi-space-size=32", "--max-semi-space-size=64", "--single-threaded-gc"],
        },
      },
      {
        // Worker and objects inside real workerd, with a way to evict objects and run their alarms. Files share storage.
        plugins: [insideWorkerd],
        test: {
          ...workerd,
          name: "workerd",
          isolate: false,
          include: ["test/**/*.workerd.test.ts"],
          exclude: OWN_STORAGE,
        },
      },
      {
        plugins: [insideWorkerd],
        // The same, with storage that is empty before each file.
        test: {
          ...workerd,
          name: "workerd-storage",
          isolate: false,
          setupFiles: [...setupFiles, "test/support/empty-storage.ts"],
          include: OWN_STORAGE,
        },
      },
      {
        // Black box: the built bundle on plain workerd, over HTTP, and killed.
        test: {
          ...system,
          name: "system",
          isolate: false,
          maxWorkers: waitingWorkers,
          sequence: { groupOrder: 1 },
          include: ["test/system/**/*.test.ts"],
          exclude: [...SATURATING, ...STORMS],
        },
      },
      {
        // What takes npm, wrangler or a generator, and how each page of the dashboard looks: `npm run test:release`.
        test: {
          ...system,
          globalSetup: [...system.globalSetup, "test/support/prepare-release.ts"],
          name: "release",
          maxWorkers,
          sequence: { groupOrder: 4 },
          include: ["test/release/**/*.test.ts"],
        },
      },
      {
        // The bundle too, in tests that would be too much for six at a time: two at a time.
        test: {
          ...system,
          name: "storms",
          isolate: false,
          maxWorkers: 2,
          sequence: { groupOrder: 2 },
          include: STORMS,
        },
      },
      {
        // The same, of tests that use up the machine: one at a time.
        test: {
          ...system,
          name: "saturation",
          isolate: false,
          fileParallelism: false,
          sequence: { groupOrder: 3 },
          include: SATURATING,
        },
      },
    ],
  },
});
