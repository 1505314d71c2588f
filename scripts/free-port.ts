import { listeningProblem } from "./listening.ts";

/**
 * Below the ports that systems give to connections (32768 and up on Linux, RFC 6335's 49152 and up elsewhere): until the
 * port is used, no connection of another process takes it.
 */
const [MIN, MAX] = [20_000, 32_000];
/** Those that this process was given. Another process draws other ones, most likely. */
const given = new Set<number>();

/** A TCP port of 127.0.0.1 that nobody listens at. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = MIN + Math.floor(Math.random() * (MAX - MIN));
    if (given.has(port)) continue;
    given.add(port);
    if ((await listeningProblem("127.0.0.1", port)) === undefined) return port;
  }
}
