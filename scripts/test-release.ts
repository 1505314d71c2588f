/** Runs the release tests, which take npm, wrangler or a generator. Arguments go to vitest. */
import { run } from "./project.ts";

process.exitCode = run("vitest", ["run", "--project", "release", ...process.argv.slice(2)]);
