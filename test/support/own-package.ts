/** Before the first file of a process: examples import the package by its name, and here that is its source. */
import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";

const SOURCE = pathToFileURL(`${import.meta.dirname}/../../package/`).href;

registerHooks({
  resolve: (specifier, context, next) =>
    next(
      specifier.replace(/^weir-limiter\/(.*)$/, (_, name) => `${SOURCE}${name}.ts`),
      context,
    ),
});
