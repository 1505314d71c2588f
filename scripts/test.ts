/** Runs the tests. Arguments are passed to vitest: `npm test -- --project core`. */
import { run } from "./project.ts";

process.exitCode = run("vitest", ["run", ...process.argv.slice(2)]);
