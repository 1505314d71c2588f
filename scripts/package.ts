/** Builds what the npm package has, into dist/package/: one module an entry, and its types. */
import { packageEntries, buildTypes } from "./package-build.ts";

await packageEntries();
buildTypes();
console.log("Built dist/package");
