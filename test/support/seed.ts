/** Before each test file: properties begin with SEED or NEW_SEED if there is one, and failures print it. */
import fc from "fast-check";
import { newSeed } from "./random.ts";

const seed = process.env["SEED"] ?? newSeed();

fc.configureGlobal({
  ...(seed !== undefined && { seed: Number(seed) }),
  reporter: (run) => {
    if (!run.failed) return;
    throw new Error(`SEED=${run.seed}: ${fc.defaultReportMessage(run)}`, { cause: run.errorInstance });
  },
});
