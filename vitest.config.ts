import { cloudflareTest } from "@cloudflare/vitest-plugin";
import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";
import { TEST_POLICIES, TEST_TOKENS } from "./test/support/fixtures.ts";

/** What tests read of the environment; workerd has none of its own. */
const env = Object.fromEntries(
  ["SEED", "NEW_SEED", "WEIR_DEEP"].flatMap((name) =>
    process.env[name] === undefined ? [] : [[name, process.env[name]]],
  ),
);
const setupFiles = ["test/support/seed.ts"];
/** On two cores vitest would use one of them. */
const maxWorkers = "100%";

const system = {
  globalSetup: [
    "test/support/build.ts",
    "test/support/require-prometheus.ts",
    "test/support/require-chromium.ts",
  ],
  testTimeout: 300_000,
  hookTimeout: 120_000,
};
/** Black-box tests wait more than they compute, so twice as many run as there are cores. */
const waitingWorkers = 2 * availableParallelism();
/** They say how much must be admitted at least, run dozens of isolates, or bring all that a machine answers in time. */
const SATURATING = ["pools", "exactness", "isolates", "client-processes", "changed-kinds"].map(
  (name) => `test/system/${name}.test.ts`,
);

export default defineConfig({
  test: {
    globalSetup: ["test/support/require-redis.ts", "test/support/build-dashboard.ts"],
    projects: [
      {
        // The pure core and the project's structure: plain Node, thousands of cases a second.
        // Examples import the package by its name: here that is its source.
        resolve: { alias: [{ find: /^weir\/(.*)$/, replacement: `${import.meta.dirname}/package/$1.ts` }] },
        test: {
          name: "core",
          setupFiles,
          maxWorkers,
          include: ["test/**/*.test.ts", "examples/**/*.test.ts"],
          exclude: ["test/**/*.workerd.test.ts", "test/system/**", "test/release/**"],
          // Properties take seconds where a machine is busy, and no test is about how long it takes.
          testTimeout: 120_000,
        },
      },
      {
        // Worker and objects inside real workerd, with a way to evict objects and run their alarms.
        plugins: [
          cloudflareTest({
            wrangler: { configPath: "./wrangler.toml" },
            miniflare: {
              bindings: {
                JURISDICTIONS: "ignored",
                POLICIES: TEST_POLICIES,
                API_TOKENS: JSON.stringify(TEST_TOKENS),
              },
            },
          }),
        ],
        test: {
          name: "workerd",
          setupFiles,
          maxWorkers,
          env,
          include: ["test/**/*.workerd.test.ts"],
          testTimeout: 60_000,
          expect: { poll: { timeout: 20_000 } },
        },
      },
      {
        // Black box: the built bundle on plain workerd, over HTTP, and killed.
        test: {
          ...system,
          name: "system",
          maxWorkers: waitingWorkers,
          sequence: { groupOrder: 1 },
          include: ["test/system/**/*.test.ts"],
          exclude: SATURATING,
        },
      },
      {
        // What takes npm, wrangler or a generator: packages as they are installed, and commands. `npm run test:release`.
        test: {
          ...system,
          name: "release",
          maxWorkers,
          sequence: { groupOrder: 3 },
          include: ["test/release/**/*.test.ts"],
        },
      },
      {
        // The same, of tests that use up the machine: one at a time.
        test: {
          ...system,
          name: "saturation",
          fileParallelism: false,
          sequence: { groupOrder: 2 },
          include: SATURATING,
        },
      },
    ],
  },
});
