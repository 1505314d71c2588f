/** Runs every test, the long ones at their quick length. Arguments go to vitest: `npm test -- --project core`. */
import { run } from "./project.ts";

process.exitCode = run("vitest", ["run", ...process.argv.slice(2)]);
