/** Runs the deep tests at full length. Arguments go to vitest: `npm run test:deep -- --bail 1`. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT, run } from "./project.ts";

const deep = readdirSync(join(ROOT, "test"), { recursive: true, encoding: "utf8" })
  .filter((file) => file.endsWith(".test.ts"))
  .map((file) => join("test", file))
  .filter((file) => /from "[^"]*support\/depth\.ts"/.test(readFileSync(join(ROOT, file), "utf8")));

process.env["WEIR_DEEP"] = "1";
process.exitCode = run("vitest", ["run", ...deep, ...process.argv.slice(2)]);
