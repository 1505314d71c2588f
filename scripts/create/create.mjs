#!/usr/bin/env node
/** `npm create weir-limiter`: `weir init` of the package that this one depends on. The release sets its version. */
process.argv.splice(2, 0, "init");
await import(new URL("bin/weir.js", import.meta.resolve("weir-limiter")).href);
