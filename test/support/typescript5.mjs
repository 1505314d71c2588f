/** Resolves `typescript` to TypeScript 5, whose API the generators of clients need and TypeScript 7 lacks. */
import { registerHooks } from "node:module";

registerHooks({
  resolve: (specifier, context, next) =>
    next(specifier === "typescript" ? "typescript5" : specifier, context),
});
