/**
 * Gives programs that ask for `typescript` the newest one that has the API they need. The generators of clients write
 * their output with the API of TypeScript 5, which TypeScript 7 has no more.
 */
import { registerHooks } from "node:module";

registerHooks({
  resolve: (specifier, context, next) =>
    next(specifier === "typescript" ? "typescript5" : specifier, context),
});
