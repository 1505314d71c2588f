/** Builds the content of the npm package into dist/package/: one module per entry, and its types. */
import { packageEntries, buildTypes } from "./package-build.ts";

await packageEntries();
buildTypes();
console.log("Built dist/package");
