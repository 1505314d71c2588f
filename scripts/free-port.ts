import { listeningProblem } from "./listening.ts";

/**
 * Below the ports that systems give to connections (32768 and up on Linux, RFC 6335's 49152 and up elsewhere): until the
 * port is used, no connection of another process takes it.
 */
const [MIN, MAX] = [20_000, 32_000];
/** Ports of this process. Another process most likely draws other ones. */
const used = new Set<number>();

/** A TCP port of 127.0.0.1 without a listener. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = MIN + Math.floor(Math.random() * (MAX - MIN));
    if (used.has(port)) continue;
    used.add(port);
    if ((await listeningProblem("127.0.0.1", port)) === undefined) return port;
  }
}
