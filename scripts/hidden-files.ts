/** Files of the template that npm reads for its own, or omits: in the package they are without their dot. */
export const HIDDEN: readonly string[] = [".gitignore", ".dockerignore", ".dev.vars.example"];
