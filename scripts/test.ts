/** Runs all tests but release tests, quickly. Arguments go to vitest: `npm test -- --project core`. */
import { run, testArguments } from "./project.ts";

process.exitCode = run("vitest", ["run", ...testArguments(process.argv.slice(2))]);
