/**
 * Measures how wrong the sliding window counter is, against the exact log on the same calls:
 * `node scripts/with-packages.mjs bench/window-counter-error.ts`. It prints the table of docs/policies.md.
 */
import { counterErrorRows } from "../test/support/counter-error.ts";

console.log(
  "| traffic | admitted by the log | by the counter | wrongly admitted | wrongly denied | most in a window |",
);
console.log("| --- | --- | --- | --- | --- | --- |");
for (const row of counterErrorRows()) console.log(row);
