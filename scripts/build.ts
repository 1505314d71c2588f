/** Builds the deployable bundle into dist/. */
import { build } from "./project.ts";

build();
console.log("Built dist/index.js");
