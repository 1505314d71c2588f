import type { NextConfig } from "next";

// Next would bundle the package's entry for Node. Left outside, OpenNext finds the one for workers.
export default { serverExternalPackages: ["weir-limiter"] } satisfies NextConfig;
