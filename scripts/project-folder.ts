import { join } from "node:path";

/** The project's folder: this one, or the one in which the command of the package was called. */
export const ROOT = process.env["WEIR_PROJECT"] ?? join(import.meta.dirname, "..");
