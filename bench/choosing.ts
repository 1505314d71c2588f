/** Draws the picture of docs/choosing.md: what each algorithm admits of the same traffic. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { picture } from "./choosing-picture.ts";

writeFileSync(join(import.meta.dirname, "..", "docs", "images", "choosing.svg"), picture());
