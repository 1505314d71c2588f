/**
 * How a request with a slot ended: answered whole, or torn, when its handler has thrown, its stream has failed, or its
 * caller has gone. How long a torn one took says nothing of the upstream: a limit that adapts must not learn from it.
 */
export type End = "whole" | "torn";
