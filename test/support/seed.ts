/** Before each test file: properties begin with SEED or NEW_SEED if there is one, and failures print it. */
import fc from "fast-check";
import { chai } from "vitest";
import { depth } from "./depth.ts";
import { newSeed } from "./random.ts";

// A proxy of each assertion would only report misspelled ones, and those do not compile.
chai.config.useProxy = false;

const seed = process.env["SEED"] ?? newSeed();

fc.configureGlobal({
  ...(seed !== undefined && { seed: Number(seed) }),
  numRuns: depth(15, 100),
  reporter: (run) => {
    if (!run.failed) return;
    throw new Error(`SEED=${run.seed}: ${fc.defaultReportMessage(run)}`, { cause: run.errorInstance });
  },
});
