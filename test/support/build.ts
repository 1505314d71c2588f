import { build } from "../../scripts/project.ts";

/** Builds the bundle once, before the black-box tests. */
export default build;
