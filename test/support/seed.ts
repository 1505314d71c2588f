/** Before each test file: properties begin with SEED if there is one, and whichever fails says with which it did. */
import fc from "fast-check";

const seed = process.env["SEED"];

fc.configureGlobal({
  ...(seed !== undefined && { seed: Number(seed) }),
  reporter: (run) => {
    if (!run.failed) return;
    throw new Error(`SEED=${run.seed}: ${fc.defaultReportMessage(run)}`, { cause: run.errorInstance });
  },
});
