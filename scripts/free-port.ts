import { listeningProblem } from "./listening.ts";

/** Below the ports of outgoing connections (from 32768 on Linux, 49152 elsewhere, RFC 6335). */
const [MIN, MAX] = [20_000, 32_000];
/** Ports of this process. Another process most likely draws other ones. */
const used = new Set<number>();

export async function freePort(): Promise<number> {
  for (;;) {
    const port = MIN + Math.floor(Math.random() * (MAX - MIN));
    if (used.has(port)) continue;
    used.add(port);
    if ((await listeningProblem("127.0.0.1", port)) === undefined) return port;
  }
}
